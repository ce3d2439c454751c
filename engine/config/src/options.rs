//! The declaration of options: one line gives an option its key, type, default and help.

use crate::layer::Raw;

/// How an option is given.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Kind {
    /// `--key`, `--no-key`, or `--key=true|false`.
    Switch,
    /// `--key VALUE`.
    One,
    /// `--key VALUE`, repeatable.
    Many,
}

/// What a command line, an environment or a file needs to know about an option.
#[derive(Clone, Debug)]
pub struct Spec {
    /// Its name, in kebab case.
    pub key: &'static str,
    /// Other names of the flag.
    pub aliases: &'static [&'static str],
    /// Placeholder of its value in help texts.
    pub value_name: &'static str,
    /// What it does, one or two sentences.
    pub help: &'static str,
    /// The group it is listed in.
    pub heading: &'static str,
    /// How it is given.
    pub kind: Kind,
    /// Whether its value must never be shown.
    pub secret: bool,
    /// The words it can be, if it is one of a few.
    pub words: &'static [&'static str],
    /// The built-in default as people read it; empty if there is none.
    pub default: String,
    /// Whether texts parse as its type.
    pub check: fn(&[String]) -> Result<(), String>,
}

impl Spec {
    /// The environment variable that sets it: `KVASIR_` and the key in upper snake case.
    pub fn env_name(&self) -> String {
        format!("KVASIR_{}", self.key.replace('-', "_").to_uppercase())
    }
}

/// The texts of a value for an error message.
pub(crate) fn quoted(raw: &Raw, secret: bool) -> String {
    if secret {
        "<set>".to_owned()
    } else {
        format!("{:?}", raw.texts.join(","))
    }
}

/// The default for help texts: plain words, nothing for absent values and for switches that are off.
pub(crate) fn default_text(json: &serde_json::Value) -> String {
    match json {
        serde_json::Value::Null | serde_json::Value::Bool(false) => String::new(),
        serde_json::Value::String(text) => text.clone(),
        serde_json::Value::Array(items) if items.is_empty() => String::new(),
        other => other.to_string(),
    }
}

/// Declares a section: a struct of settings, the table of its options, and how it is resolved and reported.
macro_rules! section {
    (
        $(#[$meta:meta])*
        $name:ident, $heading:literal {
            $($key:literal $([$($alias:literal),+])? => $field:ident: $ty:ty = $default:expr, $value_name:literal, $help:literal;)+
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq)]
        pub struct $name {
            $(#[doc = $help] pub $field: $crate::Setting<$ty>,)+
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $($field: $crate::Setting::default_of($default),)+ }
            }
        }

        impl $name {
            /// The options of this section, in the order of help texts.
            pub fn specs() -> Vec<$crate::Spec> {
                vec![$($crate::Spec {
                    key: $key,
                    aliases: &[$($($alias),+)?],
                    value_name: $value_name,
                    help: $help,
                    heading: $heading,
                    kind: <$ty as $crate::Value>::KIND,
                    secret: <$ty as $crate::Value>::SECRET,
                    words: <$ty as $crate::Value>::WORDS,
                    default: {
                        let default: $ty = $default;
                        $crate::options::default_text(&$crate::Value::to_json(&default))
                    },
                    check: |texts| <$ty as $crate::Value>::parse_all(texts).map(drop),
                },)+]
            }

            /// Parses the merged layers; what no layer sets has its default.
            ///
            /// # Errors
            /// The first value that doesn't parse.
            pub fn resolve(layer: &$crate::Layer) -> Result<Self, $crate::ConfigError> {
                let mut config = Self::default();
                $(if let Some(raw) = layer.get($key) {
                    let value = <$ty as $crate::Value>::parse_all(&raw.texts).map_err(|reason| {
                        $crate::ConfigError::InvalidValue {
                            key: $key,
                            text: $crate::options::quoted(raw, <$ty as $crate::Value>::SECRET),
                            from: raw.source.clone(),
                            reason,
                        }
                    })?;
                    config.$field = $crate::Setting { value, source: raw.source.clone() };
                })+
                Ok(config)
            }

            /// Each value with its source, secrets hidden, in the order of [`Self::specs`].
            pub fn entries(&self) -> Vec<$crate::Entry> {
                vec![$($crate::Entry {
                    key: $key,
                    value: $crate::Value::to_json(&self.$field.value),
                    source: self.$field.source.clone(),
                },)+]
            }
        }
    };
}
pub(crate) use section;
