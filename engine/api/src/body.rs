//! Reads a JSON object field by field, without trusting its size, depth or types.
//!
//! The body is kept as text; only fields that are asked for are converted, straight into their type. So a hostile body
//! costs no more memory than its own length, every error names its field, and what nobody asked for is known by name.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{self, Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::error::{ApiError, ErrorKind};

/// Deepest nesting of arrays and objects in a body. vLLM allows schemas of depth 64; the request adds a few levels.
pub const MAX_JSON_DEPTH: usize = 96;
/// Most bytes of a field that is kept as a JSON value, which needs up to forty times its text.
const MAX_VALUE_BYTES: usize = 256 << 10;
/// Most keys of one object. The largest request type has fewer than 80.
const MAX_KEYS: usize = 256;

/// A JSON object whose fields are taken out one by one. Cheap to clone: its values stay where they are.
#[derive(Clone, Debug)]
pub struct Body<'a> {
    fields: BTreeMap<String, &'a RawValue>,
    /// Prefix of parameter names, for example `messages.3.`.
    path: String,
}

impl<'a> Body<'a> {
    /// Parses a request body.
    ///
    /// # Errors
    /// [`ErrorKind::Schema`] if it isn't UTF-8, isn't one JSON object, nests deeper than [`MAX_JSON_DEPTH`],
    /// or has more than 256 keys.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, ApiError> {
        let text = std::str::from_utf8(bytes)
            .map_err(|_| ApiError::new(ErrorKind::Schema, "the request body is not valid UTF-8"))?;
        if is_deeper_than(bytes, MAX_JSON_DEPTH) {
            let message = format!("the request body nests deeper than {MAX_JSON_DEPTH} levels");
            return Err(ApiError::new(ErrorKind::Schema, message));
        }
        let object: Object<'a> = serde_json::from_str(text).map_err(|error| {
            ApiError::new(ErrorKind::Schema, format!("the request body is invalid: {error}"))
        })?;
        Ok(Self {
            fields: object.0,
            path: String::new(),
        })
    }

    /// Parses an object inside a body; `path` is its place, for error messages.
    pub(crate) fn nested(raw: &'a RawValue, path: &str) -> Result<Self, ApiError> {
        let object: Object<'a> = serde_json::from_str(raw.get()).map_err(|error| type_error(path, &error))?;
        Ok(Self {
            fields: object.0,
            path: format!("{path}."),
        })
    }

    /// Takes a field; `null` is the same as absent.
    ///
    /// # Errors
    /// [`ErrorKind::Schema`] naming the field if its type is wrong.
    pub fn take<T: Deserialize<'a>>(&mut self, name: &str) -> Result<Option<T>, ApiError> {
        let value = self.peek(name);
        self.fields.remove(name);
        value
    }

    /// Reads a field that stays; `null` is the same as absent.
    ///
    /// # Errors
    /// As for [`take`](Self::take).
    pub(crate) fn peek<T: Deserialize<'a>>(&self, name: &str) -> Result<Option<T>, ApiError> {
        let Some(raw) = self.fields.get(name).filter(|raw| raw.get() != "null") else {
            return Ok(None);
        };
        serde_json::from_str(raw.get())
            .map(Some)
            .map_err(|error| type_error(&self.param(name), &error))
    }

    /// Takes a field that has to be there and not `null`.
    ///
    /// # Errors
    /// [`ErrorKind::Schema`] naming the field.
    pub fn require<T: Deserialize<'a>>(&mut self, name: &str) -> Result<T, ApiError> {
        let param = self.param(name);
        self.take(name)?
            .ok_or_else(|| ApiError::schema(&param, format!("{param} is required")))
    }

    /// Takes a field that is kept as a JSON value, or holds some; `null` is the same as absent.
    pub(crate) fn take_value<T: Deserialize<'a>>(&mut self, name: &str) -> Result<Option<T>, ApiError> {
        let length = self.fields.get(name).map_or(0, |raw| raw.get().len());
        if length > MAX_VALUE_BYTES {
            let message = format!("{} is longer than {MAX_VALUE_BYTES} bytes", self.param(name));
            return Err(ApiError::schema(&self.param(name), message));
        }
        self.take(name)
    }

    /// Takes a boolean.
    pub(crate) fn flag(&mut self, name: &str, default: bool) -> Result<bool, ApiError> {
        Ok(self.take(name)?.unwrap_or(default))
    }

    /// Takes a whole number; `2.0` counts as one, as JavaScript clients send it.
    pub(crate) fn int(&mut self, name: &str) -> Result<Option<i64>, ApiError> {
        Ok(self.take::<Int>(name)?.map(|int| int.0))
    }

    /// Takes a field as JSON text; `null` is the same as absent.
    pub(crate) fn take_raw(&mut self, name: &str) -> Option<&'a RawValue> {
        self.fields.remove(name).filter(|raw| raw.get() != "null")
    }

    /// The name of a field as error messages show it.
    pub(crate) fn param(&self, name: &str) -> String {
        format!("{}{name}", self.path)
    }

    /// The names that nobody took.
    pub(crate) fn into_unknown(self) -> Vec<String> {
        let path = self.path;
        self.fields
            .into_keys()
            .map(|name| format!("{path}{name}"))
            .collect()
    }
}

fn type_error(param: &str, error: &serde_json::Error) -> ApiError {
    // The position counts from the field's own start, so it would mislead.
    let text = error.to_string();
    let text = text.split(" at line ").next().unwrap_or_default();
    ApiError::schema(param, format!("{param}: {text}"))
}

/// Whether brackets nest deeper than `limit`; strings are skipped. Iterative, so depth costs no stack.
fn is_deeper_than(bytes: &[u8], limit: usize) -> bool {
    let (mut depth, mut in_string, mut escaped) = (0usize, false, false);
    for &byte in bytes {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'[' | b'{' if !in_string => {
                depth += 1;
                if depth > limit {
                    return true;
                }
            }
            b']' | b'}' if !in_string => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    false
}

/// Keys and unparsed values; of equal keys the last one counts, as in Python.
struct Object<'a>(BTreeMap<String, &'a RawValue>);

impl<'de> Deserialize<'de> for Object<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ObjectVisitor;
        impl<'de> Visitor<'de> for ObjectVisitor {
            type Value = Object<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Self::Value, A::Error> {
                let mut fields = BTreeMap::new();
                while let Some((key, value)) = access.next_entry::<String, &RawValue>()? {
                    fields.insert(key, value);
                    if fields.len() > MAX_KEYS {
                        return Err(de::Error::custom(format_args!(
                            "an object has more than {MAX_KEYS} keys"
                        )));
                    }
                }
                Ok(Object(fields))
            }
        }
        deserializer.deserialize_map(ObjectVisitor)
    }
}

/// A whole number, also written as a float without a fraction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Int(pub(crate) i64);

impl<'de> Deserialize<'de> for Int {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct IntVisitor;
        impl Visitor<'_> for IntVisitor {
            type Value = Int;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a whole number of at most 64 bits")
            }
            fn visit_i64<E: de::Error>(self, value: i64) -> Result<Int, E> {
                Ok(Int(value))
            }
            fn visit_u64<E: de::Error>(self, value: u64) -> Result<Int, E> {
                i64::try_from(value)
                    .map(Int)
                    .map_err(|_| E::invalid_value(de::Unexpected::Unsigned(value), &self))
            }
            fn visit_f64<E: de::Error>(self, value: f64) -> Result<Int, E> {
                // Above 2^53 a float doesn't tell which integer was meant.
                if value.fract() == 0.0 && value.abs() <= 9_007_199_254_740_992.0 {
                    Ok(Int(value as i64))
                } else {
                    Err(E::invalid_value(de::Unexpected::Float(value), &self))
                }
            }
        }
        deserializer.deserialize_any(IntVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depth_is_refused_without_recursion() {
        let deep = format!("{{\"a\":{}{}}}", "[".repeat(100_000), "]".repeat(100_000));
        let error = Body::parse(deep.as_bytes()).unwrap_err();
        assert!(error.message().contains("nests deeper than 96"), "{error}");
    }

    #[test]
    fn brackets_in_strings_do_not_count_as_depth() {
        let text = format!("{{\"a\":\"\\\"{}\"}}", "[".repeat(1000));
        assert!(Body::parse(text.as_bytes()).is_ok());
    }

    #[test]
    fn too_many_keys_are_refused() {
        let keys: Vec<String> = (0..1000).map(|i| format!("\"k{i}\":0")).collect();
        let error = Body::parse(format!("{{{}}}", keys.join(",")).as_bytes()).unwrap_err();
        assert!(error.message().contains("more than 256 keys"), "{error}");
    }

    #[test]
    fn bodies_that_are_not_one_object_are_refused() {
        for text in [
            "",
            "[]",
            "null",
            "3",
            "{",
            "{} {}",
            "{\"a\":}",
            "{\"a\":NaN}",
            "\u{feff}{}",
            "{'a':1}",
        ] {
            let error = Body::parse(text.as_bytes()).unwrap_err();
            assert_eq!(error.status(), 400, "{text}");
        }
        assert_eq!(Body::parse(b"{\"a\":\"\xff\"}").unwrap_err().status(), 400);
    }

    #[test]
    fn wrong_types_name_their_field() {
        let mut body = Body::parse(br#"{"n": "three", "seed": 1.5, "x": 1e999}"#).unwrap();
        let error = body.int("n").unwrap_err();
        assert_eq!(error.param(), Some("n"));
        assert!(error.message().starts_with("n: invalid type: string"), "{error}");
        assert!(body.int("seed").is_err());
        assert!(body.take::<f64>("x").is_err());
    }

    #[test]
    fn lone_surrogates_are_an_error_of_their_field() {
        let mut body = Body::parse(br#"{"prompt": "\ud800"}"#).unwrap();
        assert_eq!(body.take::<String>("prompt").unwrap_err().param(), Some("prompt"));
    }

    #[test]
    fn whole_floats_are_integers_and_null_is_absent() {
        let mut body = Body::parse(br#"{"n": 2.0, "seed": null, "other": 1}"#).unwrap();
        assert_eq!(body.int("n").unwrap(), Some(2));
        assert_eq!(body.int("seed").unwrap(), None);
        assert_eq!(body.into_unknown(), ["other"]);
    }
}
