//! Further models behind the same door.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::engines::{EnginesConfig, RevisionConfig, RoutingConfig};
use super::file::{GatewayConfig, WaitingConfig};

/// A model beside the file's first one, with engines of its own. Who may use it, and how much of it, is said by `tenants` for all models.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ModelConfig {
    /// Names that clients may call it by, the first one is in answers. At least one; no other model has any of them.
    pub served_model_names: Vec<String>,
    /// Where its engines are and how they are reached.
    pub engines: EnginesConfig,
    /// Its revisions with their weights; left out, all engines serve alike.
    #[serde(default)]
    pub revisions: Vec<RevisionConfig>,
    /// How its engines are chosen.
    #[serde(default)]
    pub routing: RoutingConfig,
    /// How long and how many of its requests wait.
    #[serde(default)]
    pub waiting: WaitingConfig,
}

impl GatewayConfig {
    /// All models, the first one first, whose fields are the file's own.
    pub fn all_models(&self) -> Vec<ModelConfig> {
        let first = ModelConfig {
            served_model_names: self.served_model_names.clone(),
            engines: self.engines.clone(),
            revisions: self.revisions.clone(),
            routing: self.routing.clone(),
            waiting: self.waiting.clone(),
        };
        std::iter::once(first)
            .chain(self.models.iter().cloned())
            .collect()
    }
}
