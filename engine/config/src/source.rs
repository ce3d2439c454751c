//! Where a value came from.

use std::fmt;

/// The layer that decided a value, strongest first.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Source {
    /// The command line.
    Flag,
    /// An environment variable, with its name.
    Env(String),
    /// A configuration file, with its path.
    File(String),
    /// The built-in default.
    Default,
    /// A default that was computed at start, with what it was computed from.
    Derived(String),
}

impl Source {
    /// One word for machines: `flag`, `env`, `file` or `default`.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Flag => "flag",
            Self::Env(_) => "env",
            Self::File(_) => "file",
            Self::Default | Self::Derived(_) => "default",
        }
    }

    /// True if a person chose the value.
    pub fn is_explicit(&self) -> bool {
        !matches!(self, Self::Default | Self::Derived(_))
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag => f.write_str("flag"),
            Self::Env(name) => write!(f, "env {name}"),
            Self::File(path) => write!(f, "file {path}"),
            Self::Default => f.write_str("default"),
            Self::Derived(from) => write!(f, "default: {from}"),
        }
    }
}

/// A value and its source.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Setting<T> {
    /// The value.
    pub value: T,
    /// Which layer decided it.
    pub source: Source,
}

impl<T> Setting<T> {
    /// A built-in default.
    pub fn default_of(value: T) -> Self {
        Self {
            value,
            source: Source::Default,
        }
    }

    /// Replaces the value by one that was computed at start from `from`.
    pub fn derive(&mut self, value: T, from: impl Into<String>) {
        *self = Self {
            value,
            source: Source::Derived(from.into()),
        };
    }
}

impl<T: Copy> Setting<Option<T>> {
    /// The value if one was given; else computes it, and records what it was computed from.
    pub fn get_or_derive(&mut self, default: impl FnOnce() -> (T, String)) -> T {
        if let Some(value) = self.value {
            return value;
        }
        let (value, from) = default();
        self.derive(Some(value), from);
        value
    }
}
