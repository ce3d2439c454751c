//! JSON objects that don't repeat a key.
//!
//! Ordinary maps keep the last of equal keys, and readers that keep the first would see another model in the same file.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor};

use super::SafetensorsError;

/// A JSON object as `(key, value)` pairs in the order of the keys.
#[derive(Clone, Debug)]
pub(super) struct UniqueMap<V>(pub(super) std::collections::BTreeMap<String, V>);

impl<V> Default for UniqueMap<V> {
    fn default() -> Self {
        Self(std::collections::BTreeMap::new())
    }
}

impl<V> UniqueMap<V> {
    /// Adds a pair, or fails as the reader of `M` does when the key is there already.
    pub(super) fn add<'de, M: MapAccess<'de>>(&mut self, key: String, value: V) -> Result<(), M::Error> {
        if self.0.contains_key(&key) {
            return Err(M::Error::custom(format_args!(
                "the name `{key}` occurs a second time"
            )));
        }
        self.0.insert(key, value);
        Ok(())
    }
}

impl<'de, V: Deserialize<'de>> Deserialize<'de> for UniqueMap<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(UniqueVisitor(PhantomData))
    }
}

struct UniqueVisitor<V>(PhantomData<V>);

impl<'de, V: Deserialize<'de>> Visitor<'de> for UniqueVisitor<V> {
    type Value = UniqueMap<V>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Self::Value, M::Error> {
        let mut all = UniqueMap::default();
        while let Some((key, value)) = map.next_entry()? {
            all.add::<M>(key, value)?;
        }
        Ok(all)
    }
}

/// A JSON error as one with a byte offset; `bytes` begin at byte `base` of the file.
pub(super) fn malformed(bytes: &[u8], base: u64, error: &serde_json::Error) -> SafetensorsError {
    let line_start: usize = bytes
        .split_inclusive(|&byte| byte == b'\n')
        .take(error.line().saturating_sub(1))
        .map(<[u8]>::len)
        .sum();
    let offset = base + (line_start + error.column()) as u64;
    SafetensorsError::Malformed {
        offset,
        reason: error.to_string(),
    }
}
