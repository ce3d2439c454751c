//! A reader over a JSON object that remembers which keys were read, so that the allow-list is the code that reads.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use crate::error::ModelError;

/// Error messages show at most this many characters of a value.
const MAX_SHOWN_CHARS: usize = 80;

/// The keys of one JSON object. Null counts as absent, as in transformers.
pub(crate) struct Fields<'a> {
    map: &'a Map<String, Value>,
    prefix: String,
    known: BTreeSet<String>,
}

impl<'a> Fields<'a> {
    /// Reads `map`; `prefix` goes before the keys in error messages.
    pub(crate) fn new(map: &'a Map<String, Value>, prefix: &str) -> Self {
        Self {
            map,
            prefix: prefix.to_owned(),
            known: BTreeSet::new(),
        }
    }

    /// Refuses every key that was neither read nor is in `harmless`.
    pub(crate) fn finish(self, harmless: &[&str]) -> Result<(), ModelError> {
        for (key, value) in self.map {
            let known = self.known.contains(key) || harmless.contains(&key.as_str());
            if !known && !value.is_null() {
                return Err(ModelError::UnknownKey {
                    key: self.full(key),
                    value: shown(value),
                });
            }
        }
        Ok(())
    }

    /// An integer in `1..=max`.
    pub(crate) fn count(&mut self, key: &str, max: usize) -> Result<usize, ModelError> {
        self.optional_count(key, max)?.ok_or_else(|| self.missing(key))
    }

    /// An integer in `1..=max`, if the key is there.
    pub(crate) fn optional_count(&mut self, key: &str, max: usize) -> Result<Option<usize>, ModelError> {
        let Some(value) = self.value(key) else {
            return Ok(None);
        };
        if !(value.is_u64() || value.is_i64()) {
            return Err(self.wrong_type(key, "an integer", value));
        }
        match value.as_u64().and_then(|number| usize::try_from(number).ok()) {
            Some(number) if (1..=max).contains(&number) => Ok(Some(number)),
            _ => Err(self.out_of_range(key, value, format!("in 1..={max}"))),
        }
    }

    /// A finite number for which `valid` holds, if the key is there.
    pub(crate) fn optional_number(
        &mut self,
        key: &str,
        range: &str,
        valid: impl Fn(f64) -> bool,
    ) -> Result<Option<f64>, ModelError> {
        let Some(value) = self.value(key) else {
            return Ok(None);
        };
        let number = value
            .as_f64()
            .ok_or_else(|| self.wrong_type(key, "a number", value))?;
        // Everything is computed in f32.
        if (number as f32).is_finite() && valid(number) {
            Ok(Some(number))
        } else {
            Err(self.out_of_range(key, value, range.to_owned()))
        }
    }

    /// A finite number for which `valid` holds.
    pub(crate) fn number(
        &mut self,
        key: &str,
        range: &str,
        valid: impl Fn(f64) -> bool,
    ) -> Result<f64, ModelError> {
        self.optional_number(key, range, valid)?
            .ok_or_else(|| self.missing(key))
    }

    /// A number greater than 0, if the key is there.
    pub(crate) fn optional_positive(&mut self, key: &str) -> Result<Option<f64>, ModelError> {
        self.optional_number(key, "greater than 0", |number| number as f32 > 0.0)
    }

    /// A number greater than 0.
    pub(crate) fn positive(&mut self, key: &str) -> Result<f64, ModelError> {
        self.optional_positive(key)?.ok_or_else(|| self.missing(key))
    }

    /// A boolean; `default` if the key is absent.
    pub(crate) fn flag(&mut self, key: &str, default: bool) -> Result<bool, ModelError> {
        let Some(value) = self.value(key) else {
            return Ok(default);
        };
        value
            .as_bool()
            .ok_or_else(|| self.wrong_type(key, "true or false", value))
    }

    /// A string, if the key is there.
    pub(crate) fn optional_text(&mut self, key: &str) -> Result<Option<&'a str>, ModelError> {
        let Some(value) = self.value(key) else {
            return Ok(None);
        };
        value
            .as_str()
            .map(Some)
            .ok_or_else(|| self.wrong_type(key, "a string", value))
    }

    /// A list of finite numbers greater than 0.
    pub(crate) fn positive_list(&mut self, key: &str, len: usize) -> Result<Vec<f32>, ModelError> {
        let value = self.value(key).ok_or_else(|| self.missing(key))?;
        let list = value
            .as_array()
            .ok_or_else(|| self.wrong_type(key, "a list of numbers", value))?;
        let numbers: Vec<f32> = list
            .iter()
            .filter_map(Value::as_f64)
            .map(|number| number as f32)
            .collect();
        if list.len() != len || numbers.len() != len || numbers.iter().any(|n| !n.is_finite() || *n <= 0.0) {
            return Err(self.out_of_range(
                key,
                value,
                format!("a list of {len} finite numbers greater than 0"),
            ));
        }
        Ok(numbers)
    }

    /// Token ids below `vocab_size`: one, or a list of them; absent is none.
    pub(crate) fn token_ids(&mut self, key: &str, vocab_size: usize) -> Result<Vec<u32>, ModelError> {
        let Some(value) = self.value(key) else {
            return Ok(Vec::new());
        };
        let ids = value
            .as_array()
            .map_or(std::slice::from_ref(value), Vec::as_slice);
        ids.iter()
            .map(|id| match id.as_u64() {
                Some(number) if number < vocab_size as u64 => Ok(number as u32),
                _ => Err(self.out_of_range(
                    key,
                    value,
                    format!("token ids below the vocabulary's size {vocab_size}"),
                )),
            })
            .collect()
    }

    /// A nested object, if the key is there.
    pub(crate) fn optional_object(&mut self, key: &str) -> Result<Option<Fields<'a>>, ModelError> {
        let Some(value) = self.value(key) else {
            return Ok(None);
        };
        match value {
            Value::Object(map) => Ok(Some(Fields::new(map, &format!("{}{key}.", self.prefix)))),
            _ => Err(self.wrong_type(key, "an object", value)),
        }
    }

    /// Whether the key is there, with null or a value.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.map.contains_key(key)
    }

    /// The value of a key, marked as known.
    pub(crate) fn value(&mut self, key: &str) -> Option<&'a Value> {
        self.known.insert(key.to_owned());
        self.map.get(key).filter(|value| !value.is_null())
    }

    /// Refuses the key unless it is absent or `accepts` its value.
    pub(crate) fn only(
        &mut self,
        key: &str,
        supported: &'static str,
        accepts: impl Fn(&Value) -> bool,
    ) -> Result<(), ModelError> {
        match self.value(key) {
            Some(value) if !accepts(value) => Err(self.unsupported(key, value, supported)),
            _ => Ok(()),
        }
    }

    pub(crate) fn unsupported(&self, key: &str, value: &Value, supported: &'static str) -> ModelError {
        ModelError::UnsupportedValue {
            key: self.full(key),
            value: shown(value),
            supported,
        }
    }

    pub(crate) fn out_of_range(&self, key: &str, value: &Value, range: String) -> ModelError {
        ModelError::OutOfRange {
            key: self.full(key),
            value: shown(value),
            range,
        }
    }

    fn wrong_type(&self, key: &str, wanted: &'static str, value: &Value) -> ModelError {
        ModelError::WrongType {
            key: self.full(key),
            wanted,
            found: shown(value),
        }
    }

    fn missing(&self, key: &str) -> ModelError {
        ModelError::MissingKey { key: self.full(key) }
    }

    fn full(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }
}

fn shown(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(MAX_SHOWN_CHARS) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}
