//! Texts for people, with bounds.

const ELLIPSIS: char = '\u{2026}';

/// `text` without control characters, cut to at most `limit` bytes at a character, with an ellipsis where it was cut.
pub(crate) fn clip(text: &str, limit: usize) -> String {
    let clean: String = text
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    if clean.len() <= limit {
        return clean;
    }
    let mut end = limit.saturating_sub(ELLIPSIS.len_utf8());
    while !clean.is_char_boundary(end) {
        end -= 1;
    }
    let mut cut = clean[..end].to_owned();
    if limit >= ELLIPSIS.len_utf8() {
        cut.push(ELLIPSIS);
    }
    cut
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_is_cut_at_a_character_and_says_so() {
        assert_eq!(clip("short", 10), "short");
        assert_eq!(clip("äöüäöü", 8), "äö\u{2026}");
        assert_eq!(clip("two\nlines\u{1b}[31m", 99), "two lines [31m");
        assert!(clip("äöü", 2).len() <= 2);
    }
}
