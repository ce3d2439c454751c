//! A first look at YAML, before anything is built from it.
//!
//! Small texts can ask for much: aliases that name each other multiply ("billion laughs"), and a list within a list within a list takes a
//! parser's time for each level with each token. So the text is read as a stream of events first, which keeps nothing and stops at the first
//! thing that no configuration needs.

use std::fmt;

use saphyr_parser::{Event, Parser};

/// Lists and mappings within each other; the gateway's file has 7.
const MAX_DEPTH: usize = 32;

/// Bytes of one key or value; the longest that means something is a path or a URL.
const MAX_SCALAR_BYTES: usize = 16 << 10;

/// Why a text isn't read. The texts quote nothing of it: it may hold secrets.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("line {line}, column {column}: {problem}")]
pub struct YamlRefusal {
    /// From 1.
    pub line: usize,
    /// From 1.
    pub column: usize,
    problem: Problem,
}

#[derive(Clone, Debug, Eq, PartialEq)]
enum Problem {
    Syntax(String),
    Alias,
    Depth,
    Scalar(usize),
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Syntax(reason) => write!(f, "not YAML: {reason}"),
            Self::Alias => f.write_str("aliases (*name) aren't supported; write the value out"),
            Self::Depth => write!(
                f,
                "lists and mappings are nested more than {MAX_DEPTH} deep; no setting is"
            ),
            Self::Scalar(num_bytes) => write!(
                f,
                "a key or value has {num_bytes} bytes, more than the limit of {MAX_SCALAR_BYTES}; is it in the right place?"
            ),
        }
    }
}

/// Checks that a text may be given to a parser that builds values: it is YAML without aliases, and its depth and its parts have bounds. The text itself is the caller's to bound.
///
/// # Errors
/// The first thing that is against it.
pub fn check_yaml(text: &str) -> Result<(), YamlRefusal> {
    let mut depth = 0_usize;
    for event in Parser::new_from_str(text) {
        let (event, span) = event.map_err(|error| {
            let marker = error.marker();
            let problem = match error.info() {
                // The reader looks ahead, where it has a bound of its own.
                "recursion limit exceeded" => Problem::Depth,
                other => Problem::Syntax(other.to_owned()),
            };
            refusal(marker.line(), marker.col(), problem)
        })?;
        let refuse = |problem| Err(refusal(span.start.line(), span.start.col(), problem));
        match event {
            Event::Alias(_) => return refuse(Problem::Alias),
            Event::SequenceStart(..) | Event::MappingStart(..) => {
                depth += 1;
            }
            Event::SequenceEnd | Event::MappingEnd => depth = depth.saturating_sub(1),
            Event::Scalar(text, ..) if text.len() > MAX_SCALAR_BYTES => {
                return refuse(Problem::Scalar(text.len()));
            }
            _ => {}
        }
        if depth > MAX_DEPTH {
            return refuse(Problem::Depth);
        }
    }
    Ok(())
}

/// Columns come from 0, lines from 1.
fn refusal(line: usize, column: usize, problem: Problem) -> YamlRefusal {
    YamlRefusal {
        line: line.max(1),
        column: column + 1,
        problem,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn refused(text: &str) -> String {
        check_yaml(text).unwrap_err().to_string()
    }

    #[test]
    fn configurations_pass() {
        for text in [
            "",
            "# nothing\n",
            "a: 1\nb: [x, 'y', {z: \"]\"}]\n",
            "---\nports: [80]\ntext: |\n  [[[[[[\n",
            "anchored: &here 1\n",
        ] {
            assert_eq!(check_yaml(text), Ok(()), "{text}");
        }
    }

    #[test]
    fn aliases_that_multiply_are_refused_where_they_stand() {
        let text = "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n";
        assert_eq!(
            refused(text),
            "line 2, column 8: aliases (*name) aren't supported; write the value out"
        );
    }

    #[test]
    fn depth_is_bounded_in_both_notations() {
        for deep in [
            "[".repeat(1 << 20),
            "{a: ".repeat(100_000),
            "- ".repeat(100_000),
            format!("a: {}", "[\"]\", ".repeat(100_000)),
        ] {
            let text = refused(&deep);
            assert!(text.contains("more than 32 deep"), "{text}");
        }
    }

    #[test]
    fn parts_are_bounded() {
        let text = refused(&format!("a: {}", "x".repeat(20_000)));
        assert!(
            text.contains("line 1, column 4: a key or value has 20000 bytes"),
            "{text}"
        );
    }

    #[test]
    fn what_is_no_yaml_is_named_by_its_place() {
        let text = refused("a: 1\nb: [1, 2\nc: }\n");
        assert!(text.starts_with("line 3, column "), "{text}");
    }

    proptest! {
        #[test]
        fn any_text_is_judged(text in "\\PC{0,60}|[\\[\\]{}:&*#\"'|>%@\\-,? \n\ta-c]{0,60}") {
            drop(check_yaml(&text));
        }
    }
}
