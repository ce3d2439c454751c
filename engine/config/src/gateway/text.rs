//! Values that are written as texts with a form of their own.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Error as _, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::fault::quoted;

/// A list of names, or `"*"` for all.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Names {
    /// All names.
    All,
    /// These names.
    Only(BTreeSet<String>),
}

/// A name in a certificate, written `dns:engine.chat.svc` or `uri:spiffe://...`.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum CertificateName {
    /// A DNS name.
    Dns(String),
    /// A URI.
    Uri(String),
}

impl Names {
    /// How many are named.
    pub fn len(&self) -> usize {
        match self {
            Self::All => 0,
            Self::Only(names) => names.len(),
        }
    }

    /// Whether none is allowed.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl Default for Names {
    /// None.
    fn default() -> Self {
        Self::Only(BTreeSet::new())
    }
}

impl CertificateName {
    /// Parses `dns:NAME` or `uri:URI`.
    ///
    /// # Errors
    /// What is allowed, as a sentence.
    pub fn parse(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            Some(("dns", name)) if !name.is_empty() => Ok(Self::Dns(name.to_ascii_lowercase())),
            Some(("uri", uri)) if !uri.is_empty() => Ok(Self::Uri(uri.to_owned())),
            _ => Err(format!(
                "{} is no name in a certificate: write dns:NAME or uri:URI",
                quoted(text)
            )),
        }
    }
}

impl fmt::Display for CertificateName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dns(name) => write!(f, "dns:{name}"),
            Self::Uri(uri) => write!(f, "uri:{uri}"),
        }
    }
}

impl<'de> Deserialize<'de> for Names {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "a list of names, or \"*\" for all")]
        enum Raw {
            Text(String),
            List(BTreeSet<String>),
        }
        match Raw::deserialize(deserializer)? {
            Raw::Text(text) if text == "*" => Ok(Self::All),
            Raw::Text(text) => Err(D::Error::custom(format!(
                "{} is neither a list of names nor \"*\" for all",
                quoted(&text)
            ))),
            Raw::List(names) if names.contains("*") => Err(D::Error::custom(
                "\"*\" stands alone and not in a list: write \"*\" for all names",
            )),
            Raw::List(names) => Ok(Self::Only(names)),
        }
    }
}

impl<'de> Deserialize<'de> for CertificateName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = CertificateName;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a name in a certificate as one text, dns:NAME or uri:URI")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<CertificateName, E> {
                CertificateName::parse(text).map_err(E::custom)
            }
        }
        deserializer.deserialize_str(Text)
    }
}

impl Serialize for Names {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::All => serializer.serialize_str("*"),
            Self::Only(names) => names.serialize(serializer),
        }
    }
}

impl Serialize for CertificateName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Dns(name) => serializer.collect_str(&format_args!("dns:{name}")),
            Self::Uri(uri) => serializer.collect_str(&format_args!("uri:{uri}")),
        }
    }
}

impl JsonSchema for Names {
    fn schema_name() -> Cow<'static, str> {
        "Names".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "A list of names, or \"*\" for all.",
            "oneOf": [{"const": "*"}, {"type": "array", "items": {"type": "string", "not": {"const": "*"}}, "uniqueItems": true}]
        })
    }
}

impl JsonSchema for CertificateName {
    fn schema_name() -> Cow<'static, str> {
        "CertificateName".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "A name in a certificate.",
            "type": "string",
            "pattern": "^(dns|uri):.+$"
        })
    }
}
