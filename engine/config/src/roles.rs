//! Which options a command has. The operator renders files for `kvasir engine`, so both know its options from here.

use crate::{AccessConfig, EngineConfig, GrpcConfig, ModelConfig, PlaceConfig, ProcessConfig, Spec};

/// Options of a model that only the processes before engines have: names, templates and default seeds are theirs.
const SERVED_BY_EDGES: [&str; 3] = ["served-model-name", "trust-request-chat-template", "seed"];

/// The options of `kvasir engine`, on its command line and in its file.
pub fn engine_options() -> Vec<Spec> {
    let model = ModelConfig::specs()
        .into_iter()
        .filter(|spec| !SERVED_BY_EDGES.contains(&spec.key))
        .collect();
    [
        GrpcConfig::specs(),
        AccessConfig::specs(),
        model,
        EngineConfig::specs(),
        PlaceConfig::specs(),
        ProcessConfig::specs(),
    ]
    .concat()
}
