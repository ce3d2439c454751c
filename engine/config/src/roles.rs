//! Which options a command has. The operator renders files for `kvasir engine`, so both know its options from here.

use crate::{AccessConfig, EngineConfig, GrpcConfig, ModelConfig, PlaceConfig, ProcessConfig, Spec};

/// Options of a model that only the processes before engines have: templates and default seeds are theirs. Names are too, but an engine's
/// figures carry the one that clients use.
const SERVED_BY_EDGES: [&str; 2] = ["trust-request-chat-template", "seed"];

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
