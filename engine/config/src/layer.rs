//! Layers of unparsed values, and how they are merged.

use std::collections::BTreeMap;

use crate::source::Source;

/// What one source says: key to unparsed value.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Layer {
    values: BTreeMap<String, Raw>,
}

/// An unparsed value: one text for scalars and switches, several for lists.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Raw {
    /// Who said it.
    pub source: Source,
    /// The texts.
    pub texts: Vec<String>,
}

impl Layer {
    /// Sets a key, replacing what the layer said about it before.
    pub fn set(&mut self, key: impl Into<String>, source: Source, texts: Vec<String>) {
        self.values.insert(key.into(), Raw { source, texts });
    }

    /// What the layer says about a key.
    pub fn get(&self, key: &str) -> Option<&Raw> {
        self.values.get(key)
    }

    /// The keys it sets, in order.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.values.keys().map(String::as_str)
    }

    /// This layer on top of a weaker one: a key that both set keeps this layer's value. Lists are replaced, not joined,
    /// so that a flag can take away what a file gave.
    #[must_use]
    pub fn over(mut self, weaker: Layer) -> Self {
        for (key, raw) in weaker.values {
            self.values.entry(key).or_insert(raw);
        }
        self
    }
}
