//! The engine's configuration file. Its keys are the options of `kvasir engine`; a test holds that the engine knows each.

use kvasir_operator_api::{Dtype, LogLevel, ModelSource, PvcSource};
use serde_json::{Map, Value, json};

use crate::quantity;
use crate::revision::Revision;
use crate::validate::Validated;

/// Where a volume with model files appears in the pod.
pub const MODEL_PATH: &str = "/models";
/// Where fetched models are kept.
pub const CACHE_PATH: &str = "/cache";
/// Where the configuration appears.
pub const CONFIG_PATH: &str = "/etc/kvasir";

/// The file of a group's engines, as JSON, which is YAML too.
pub fn engine(service: &Validated, revision: &Revision) -> Value {
    let engine = &revision.spec.engine;
    let mut file = Map::new();
    let mut set = |key: &str, value: Option<Value>| {
        if let Some(value) = value {
            file.insert(key.to_owned(), value);
        }
    };
    set("model", Some(model(&revision.spec.source).into()));
    set("listen", Some(format!("0.0.0.0:{}", engine.ports.grpc).into()));
    set("model-cache", Some(CACHE_PATH.into()));
    set("dtype", Some(dtype(engine.dtype).into()));
    set("max-model-len", engine.max_model_len.map(Value::from));
    set("max-num-seqs", engine.max_sequences.map(Value::from));
    set("max-num-batched-tokens", engine.max_batch_tokens.map(Value::from));
    set("enable-prefix-caching", Some(engine.prefix_caching.into()));
    set("block-size", engine.kv.block_size.map(Value::from));
    let memory = engine.kv.memory.as_ref().and_then(|m| quantity::units(&m.0));
    set(
        "kv-cache-memory-bytes",
        memory
            .and_then(|bytes| u64::try_from(bytes).ok())
            .map(Value::from),
    );
    set(
        "shutdown-timeout",
        Some(service.spec.disruption.drain_timeout_seconds.into()),
    );
    set(
        "log-level",
        Some(log_level(service.spec.observability.log_level).into()),
    );
    set("json", Some(json!(true)));
    Value::Object(file)
}

/// The model as the engine's command line takes it.
pub fn model(source: &ModelSource) -> String {
    let within =
        |path: Option<&String>| path.map_or(MODEL_PATH.to_owned(), |path| format!("{MODEL_PATH}/{path}"));
    match source {
        ModelSource {
            pvc: Some(PvcSource { path, .. }),
            ..
        } => within(path.as_ref()),
        ModelSource {
            image: Some(image), ..
        } => within(image.path.as_ref()),
        ModelSource {
            hugging_face: Some(hub),
            ..
        } => {
            let revision = hub.revision.as_ref().map(|r| format!("@{r}")).unwrap_or_default();
            let file = hub.file.as_ref().map(|f| format!(":{f}")).unwrap_or_default();
            format!("{}{revision}{file}", hub.repo)
        }
        ModelSource { http: Some(http), .. } => http.url.clone(),
        _ => MODEL_PATH.to_owned(),
    }
}

fn dtype(dtype: Dtype) -> &'static str {
    match dtype {
        Dtype::Auto => "auto",
        Dtype::Float16 => "float16",
        Dtype::BFloat16 => "bfloat16",
        Dtype::Float32 => "float32",
    }
}

/// The level as both binaries take it.
pub fn log_level(level: LogLevel) -> &'static str {
    match level {
        LogLevel::Trace => "trace",
        LogLevel::Debug => "debug",
        LogLevel::Info => "info",
        LogLevel::Warn => "warn",
        LogLevel::Error => "error",
    }
}
