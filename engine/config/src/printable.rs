//! Texts of others in messages of ours.

/// Whether a character does something else than being seen: moves a terminal's cursor, colours what isn't its own, changes the direction of
/// what follows or takes no place, so that a text looks like another one.
pub fn is_unprintable(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
}

/// A message with such characters written out, but for the ends of its lines.
pub fn printable(message: &str) -> String {
    let mut shown = String::with_capacity(message.len());
    for c in message.chars() {
        if c != '\n' && is_unprintable(c) {
            shown.extend(c.escape_default());
        } else {
            shown.push(c);
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_move_the_cursor_is_written_out_and_lines_stay() {
        let message = "host a\u{1b}[31mred\u{7}\r\nis n\u{202e}ot\u{200b} \u{e9} \u{1f336}";
        assert_eq!(
            printable(message),
            "host a\\u{1b}[31mred\\u{7}\\r\nis n\\u{202e}ot\\u{200b} \u{e9} \u{1f336}"
        );
    }
}
