//! How texts become typed values, the same way for flags, environment and file.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;

use serde_json::Value as Json;

use crate::address::{ListenAddress, LocalAddress};
use crate::bytes::{ByteCount, Count};
use crate::choice::{
    Dtype, Fraction, KvCacheDtype, LoadFormat, LogLevel, SchedulerCompat, SchedulingPolicy, Seconds,
};
use crate::gateway::CertificateName;
use crate::options::Kind;
use crate::secret::Secret;

/// A type that an option can have.
pub trait Value: Sized {
    /// How often it is given, and whether it takes a value.
    const KIND: Kind = Kind::One;
    /// Whether it must never be shown.
    const SECRET: bool = false;
    /// The words it can be, if it is one of a few.
    const WORDS: &'static [&'static str] = &[];

    /// Parses one text.
    ///
    /// # Errors
    /// What is allowed, as a sentence.
    fn parse(text: &str) -> Result<Self, String>;

    /// Parses all texts of an option; scalars take the only one.
    ///
    /// # Errors
    /// As for `parse`.
    fn parse_all(texts: &[String]) -> Result<Self, String> {
        match texts {
            [text] => Self::parse(text),
            _ => Err(format!("expected one value, found {}", texts.len())),
        }
    }

    /// The value for the report; secrets are `<set>`.
    fn to_json(&self) -> Json;
}

impl Value for bool {
    const KIND: Kind = Kind::Switch;

    fn parse(text: &str) -> Result<Self, String> {
        match text.to_ascii_lowercase().as_str() {
            "true" | "1" | "yes" | "on" => Ok(true),
            "false" | "0" | "no" | "off" => Ok(false),
            _ => Err("expected true or false".to_owned()),
        }
    }

    fn to_json(&self) -> Json {
        Json::Bool(*self)
    }
}

impl Value for String {
    fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            Err("must not be empty".to_owned())
        } else {
            Ok(text.to_owned())
        }
    }

    fn to_json(&self) -> Json {
        Json::from(self.as_str())
    }
}

impl Value for PathBuf {
    fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            Err("expected a path".to_owned())
        } else {
            Ok(Self::from(text))
        }
    }

    fn to_json(&self) -> Json {
        Json::from(self.to_string_lossy())
    }
}

impl Value for Secret {
    const SECRET: bool = true;

    fn parse(text: &str) -> Result<Self, String> {
        // A key travels in an HTTP header: white space around it would never compare equal, and an empty one protects nothing.
        if text.is_empty() || text.trim() != text || text.chars().any(char::is_control) {
            return Err(
                "a key must not be empty nor hold spaces at its ends or control characters".to_owned(),
            );
        }
        Ok(Self::new(text))
    }

    fn to_json(&self) -> Json {
        Json::from("<set>")
    }
}

impl Value for u16 {
    fn parse(text: &str) -> Result<Self, String> {
        text.parse()
            .map_err(|_| format!("expected a whole number from 0 to {}", Self::MAX))
    }

    fn to_json(&self) -> Json {
        Json::from(*self)
    }
}

impl Value for u64 {
    fn parse(text: &str) -> Result<Self, String> {
        text.parse()
            .map_err(|_| "expected a whole number from 0 to 2^64 - 1".to_owned())
    }

    fn to_json(&self) -> Json {
        Json::from(*self)
    }
}

impl Value for u32 {
    fn parse(text: &str) -> Result<Self, String> {
        Count::parse(text).and_then(|count| {
            Self::try_from(count.0).map_err(|_| format!("expected a whole number from 0 to {}", Self::MAX))
        })
    }

    fn to_json(&self) -> Json {
        Json::from(*self)
    }
}

impl Value for NonZeroU32 {
    fn parse(text: &str) -> Result<Self, String> {
        <u32 as Value>::parse(text)
            .ok()
            .and_then(Self::new)
            .ok_or_else(|| {
                format!(
                    "expected a whole number from 1 to {} such as 4096 or 4k",
                    u32::MAX
                )
            })
    }

    fn to_json(&self) -> Json {
        Json::from(self.get())
    }
}

impl Value for Count {
    fn parse(text: &str) -> Result<Self, String> {
        Self::parse(text)
    }

    fn to_json(&self) -> Json {
        Json::from(self.0)
    }
}

impl Value for ByteCount {
    fn parse(text: &str) -> Result<Self, String> {
        Self::parse(text)
    }

    fn to_json(&self) -> Json {
        Json::from(self.0)
    }
}

impl Value for Fraction {
    fn parse(text: &str) -> Result<Self, String> {
        Self::parse(text)
    }

    fn to_json(&self) -> Json {
        Json::from(self.0)
    }
}

impl Value for Seconds {
    fn parse(text: &str) -> Result<Self, String> {
        Self::parse(text)
    }

    fn to_json(&self) -> Json {
        match self.0.subsec_nanos() {
            0 => Json::from(self.0.as_secs()),
            _ => Json::from(self.0.as_secs_f64()),
        }
    }
}

impl Value for LocalAddress {
    fn parse(text: &str) -> Result<Self, String> {
        Self::parse(text)
    }

    fn to_json(&self) -> Json {
        Json::from(self.to_string())
    }
}

impl Value for ListenAddress {
    fn parse(text: &str) -> Result<Self, String> {
        Self::parse(text)
    }

    fn to_json(&self) -> Json {
        Json::from(self.to_string())
    }
}

impl Value for CertificateName {
    fn parse(text: &str) -> Result<Self, String> {
        Self::parse(text)
    }

    fn to_json(&self) -> Json {
        Json::from(self.to_string())
    }
}

impl Value for SocketAddr {
    fn parse(text: &str) -> Result<Self, String> {
        text.parse()
            .map_err(|_| "expected IP:PORT, for example 0.0.0.0:8081".to_owned())
    }

    fn to_json(&self) -> Json {
        Json::from(self.to_string())
    }
}

impl<T: Value> Value for Option<T> {
    const KIND: Kind = T::KIND;
    const SECRET: bool = T::SECRET;
    const WORDS: &'static [&'static str] = T::WORDS;

    fn parse(text: &str) -> Result<Self, String> {
        T::parse(text).map(Some)
    }

    fn to_json(&self) -> Json {
        self.as_ref().map_or(Json::Null, T::to_json)
    }
}

impl<T: Value> Value for Vec<T> {
    const KIND: Kind = Kind::Many;
    const SECRET: bool = T::SECRET;
    const WORDS: &'static [&'static str] = T::WORDS;

    fn parse(text: &str) -> Result<Self, String> {
        T::parse(text).map(|value| vec![value])
    }

    fn parse_all(texts: &[String]) -> Result<Self, String> {
        texts.iter().map(|text| T::parse(text)).collect()
    }

    fn to_json(&self) -> Json {
        match (T::SECRET, self.len()) {
            (true, 0) => Json::Array(Vec::new()),
            // How many keys there are is no secret, what they look like is.
            (true, 1) => Json::from("<set>"),
            (true, count) => Json::from(format!("<set> ({count})")),
            (false, _) => Json::Array(self.iter().map(T::to_json).collect()),
        }
    }
}

macro_rules! word_value {
    ($($name:ident),+) => {$(
        impl Value for $name {
            const WORDS: &'static [&'static str] = $name::WORDS;

            fn parse(text: &str) -> Result<Self, String> {
                Self::from_word(text).ok_or_else(|| format!("expected one of {}", Self::WORDS.join(", ")))
            }

            fn to_json(&self) -> Json {
                Json::from(self.as_str())
            }
        }
    )+};
}

word_value!(
    Dtype,
    KvCacheDtype,
    LoadFormat,
    LogLevel,
    SchedulerCompat,
    SchedulingPolicy
);
