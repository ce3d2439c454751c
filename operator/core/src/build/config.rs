//! The engine's configuration file. Its keys are the options of `kvasir engine`; a test reads it with the engine's own parser.

use kvasir_config::model_url::DIGEST_MARK;
use kvasir_operator_api::{Dtype, LogLevel, ModelFormat, ModelSource, PvcSource};
use serde_json::{Map, Value, json};

use super::engine_pod;
use crate::identity;
use crate::quantity;
use crate::revision::{Revision, RevisionSpec};
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
    set("model", Some(model(&revision.spec).into()));
    set("revision-name", Some(revision.name.as_str().into()));
    set("listen", Some(listen(engine.ports.grpc)));
    set("health-listen", Some(listen(engine.ports.health)));
    set("metrics-listen", Some(listen(engine.ports.metrics)));
    set("admin-listen", Some(listen(engine.ports.admin)));
    set("tls-cert", Some(certificate(identity::CERTIFICATE_KEY)));
    set("tls-key", Some(certificate(identity::PRIVATE_KEY_KEY)));
    set("tls-client-ca", Some(certificate(identity::TRUST_KEY)));
    set(
        "tls-client-name",
        Some(format!("uri:{}", identity::gateway(service)).into()),
    );
    set(
        "tls-admin-name",
        Some(format!("uri:{}", identity::OPERATOR).into()),
    );
    // Requests bring their tenant's salt, so that tenants can't find out each other's prompts.
    set("gateway-mode", Some(true.into()));
    set("model-cache", Some(CACHE_PATH.into()));
    set("dtype", Some(dtype(engine.dtype).into()));
    set("load-format", load_format(revision.spec.format).map(Value::from));
    set("quantization", engine.quantization.clone().map(Value::from));
    // The address of an http source carries it.
    let digest = revision.spec.sha256.clone();
    let digest = digest.filter(|_| revision.spec.source.http.is_none());
    set("model-sha256", digest.map(Value::from));
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
    let share = engine.kv.memory_fraction_percent;
    set(
        "gpu-memory-utilization",
        share.map(|percent| (f64::from(percent) / 100.0).into()),
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

fn listen(port: i32) -> Value {
    format!("0.0.0.0:{port}").into()
}

fn certificate(key: &str) -> Value {
    format!("{}/{key}", engine_pod::TLS_PATH).into()
}

/// The model as the engine's command line takes it.
pub fn model(spec: &RevisionSpec) -> String {
    let within =
        |path: Option<&String>| path.map_or(MODEL_PATH.to_owned(), |path| format!("{MODEL_PATH}/{path}"));
    match &spec.source {
        ModelSource {
            pvc: Some(PvcSource { path, .. }),
            ..
        } => within(path.as_ref()),
        ModelSource {
            hugging_face: Some(hub),
            ..
        } => {
            let revision = hub.revision.as_ref().map(|r| format!("@{r}")).unwrap_or_default();
            let file = hub.file.as_ref().map(|f| format!(":{f}")).unwrap_or_default();
            format!("{}{revision}{file}", hub.repo)
        }
        // Without a digest, which `validate` refuses, the engine says what is missing.
        ModelSource { http: Some(http), .. } => {
            let digest = spec
                .sha256
                .as_ref()
                .map(|sha256| format!("{DIGEST_MARK}{sha256}"));
            format!("{}{}", http.url, digest.unwrap_or_default())
        }
        _ => MODEL_PATH.to_owned(),
    }
}

fn load_format(format: ModelFormat) -> Option<&'static str> {
    match format {
        ModelFormat::Auto => None,
        ModelFormat::SafeTensors => Some("safetensors"),
        ModelFormat::GGUF => Some("gguf"),
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
