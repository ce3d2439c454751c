//! A tenant's rules.

use std::collections::BTreeSet;

use super::Scopes;
use crate::limits::Limits;

/// A class of urgency: lower runs first, as in the engine.
pub type Priority = i32;

/// What a tenant may do. The default may do nothing.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Tenant {
    /// Routes by their scopes.
    pub scopes: Scopes,
    /// Models it may use.
    pub models: Allowed,
    /// Adapters it may use, on top of models it may use.
    pub adapters: Allowed,
    /// Its class.
    pub priority: Priority,
    /// Its share among those of its class; 0 counts as 1.
    pub weight: u32,
    /// Most output tokens of one sequence; `None`: as many as the model allows.
    pub max_tokens: Option<u32>,
    /// How much it may have.
    pub limits: Limits,
    /// The part of the waiting room that it may fill, in percent; 0 counts as 100.
    pub queue_share_percent: u8,
}

/// Names that are allowed, compared exactly.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Allowed {
    /// All names.
    All,
    /// These names.
    Only(BTreeSet<String>),
}

impl Allowed {
    /// Whether the name is allowed.
    pub fn contains(&self, name: &str) -> bool {
        match self {
            Self::All => true,
            Self::Only(names) => names.contains(name),
        }
    }
}

impl Default for Allowed {
    /// Nothing is allowed.
    fn default() -> Self {
        Self::Only(BTreeSet::new())
    }
}
