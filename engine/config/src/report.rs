//! The resolved configuration, for people and for the operations route.

use serde_json::{Map, Value as Json, json};

use crate::source::Source;

/// One resolved option.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// The option.
    pub key: &'static str,
    /// Its value; secrets are `<set>`.
    pub value: Json,
    /// Where it came from.
    pub source: Source,
}

/// The resolved options of a process.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report(Vec<Entry>);

impl Report {
    /// Joins the entries of several sections.
    pub fn new(sections: impl IntoIterator<Item = Vec<Entry>>) -> Self {
        Self(sections.into_iter().flatten().collect())
    }

    /// The entries, in the order of the sections.
    pub fn entries(&self) -> &[Entry] {
        &self.0
    }

    /// `{"port": {"value": 8000, "source": "default"}, ...}`; a source of more than one word is explained in `detail`.
    pub fn to_json(&self) -> Json {
        let options = self.0.iter().map(|entry| {
            let mut option = json!({ "value": entry.value, "source": entry.source.kind() });
            let detail = match &entry.source {
                Source::Env(text) | Source::File(text) | Source::Derived(text) => Some(text),
                Source::Flag | Source::Default => None,
            };
            if let Some(detail) = detail {
                option["detail"] = Json::from(detail.as_str());
            }
            (entry.key.to_owned(), option)
        });
        Json::Object(options.collect::<Map<_, _>>())
    }

    /// Aligned lines `key  value  (source)`. Options that are unset or off by default are left out: they would be half of the list.
    pub fn to_lines(&self) -> Vec<String> {
        let shown: Vec<(&str, String, &Source)> = self
            .0
            .iter()
            .filter(|entry| entry.source.is_explicit() || !is_nothing(&entry.value))
            .map(|entry| (entry.key, shown(&entry.value), &entry.source))
            .collect();
        let key_width = shown.iter().map(|(key, ..)| key.len()).max().unwrap_or(0);
        // A long path shouldn't push all sources off the screen.
        let value_width = shown
            .iter()
            .map(|(_, value, _)| value.chars().count())
            .max()
            .unwrap_or(0)
            .min(28);
        shown
            .iter()
            .map(|(key, value, source)| format!("{key:key_width$}  {value:value_width$}  ({source})"))
            .collect()
    }
}

fn is_nothing(value: &Json) -> bool {
    match value {
        Json::Null | Json::Bool(false) => true,
        Json::Array(items) => items.is_empty(),
        _ => false,
    }
}

fn shown(value: &Json) -> String {
    match value {
        Json::Null => "-".to_owned(),
        Json::String(text) => text.clone(),
        Json::Array(items) => items.iter().map(shown).collect::<Vec<_>>().join(", "),
        other => other.to_string(),
    }
}
