//! Frames of server-sent events.

use serde::Serialize;

use crate::error::ApiError;

/// The last frame of every stream, also after an error.
pub const DONE: &str = "data: [DONE]\n\n";
/// A comment that keeps idle connections open; clients skip it.
pub const KEEP_ALIVE: &str = ": keep-alive\n\n";

/// One event. JSON has no raw line breaks, so one `data:` line is enough.
///
/// # Panics
/// If `value` has a serializer that fails or keys that aren't strings; the types of this crate have neither.
pub fn data(value: &impl Serialize) -> String {
    let json = serde_json::to_string(value).expect("wire types have string keys and no fallible serializers");
    format!("data: {json}\n\n")
}

/// The event that reports an error inside a stream; [`DONE`] follows it.
pub fn error(error: &ApiError) -> String {
    data(&error.body())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_breaks_in_text_stay_inside_one_data_line() {
        assert_eq!(data(&"a\n\nb\r"), "data: \"a\\n\\nb\\r\"\n\n");
    }
}
