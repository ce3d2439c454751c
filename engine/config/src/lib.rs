//! The configuration of every role: what can be set, how it is written, and where each value came from.
//!
//! An option is declared once, in a section ([`ModelConfig`], [`EngineConfig`], [`HttpConfig`],
//! [`GrpcConfig`], [`AccessConfig`], [`PlaceConfig`], [`ProcessConfig`]). Its key is the flag's name, the key in the
//! configuration file and, as `KVASIR_MAX_MODEL_LEN`, the environment variable;
//! all three are parsed by the same [`Value`]. Layers are merged as flag > environment > file > default and each
//! [`Setting`] keeps the [`Source`] it came from, so that a server can say why it behaves as it does.
//!
//! Nothing here reads a file, the environment or the clock: callers hand in text.

mod access;
mod address;
mod bytes;
mod choice;
mod env;
mod error;
mod file;
pub mod gateway;
mod http;
mod kv_events;
mod layer;
pub mod model_url;
mod options;
mod printable;
mod report;
mod roles;
mod secret;
mod sections;
mod source;
mod start_fault;
mod suggest;
mod value;
mod yaml;

pub use access::{AccessConfig, EngineTlsFiles, PlaceConfig};
pub use address::{ListenAddress, LocalAddress, is_loopback_host};
pub use bytes::{ByteCount, Count};
pub use choice::{
    Dtype, Fraction, KvCacheDtype, LoadFormat, LogLevel, SchedulerCompat, SchedulingPolicy, Seconds,
};
pub use env::{EnvLayer, env_layer};
pub use error::ConfigError;
pub use file::file_layer;
pub use http::{Bind, parse_key_file};
pub use kv_events::{KvEvents, KvEventsConfig};
pub use layer::{Layer, Raw};
pub use options::{Kind, Spec};
pub use printable::{is_unprintable, printable};
pub use report::{Entry, Report};
pub use roles::engine_options;
pub use secret::Secret;
pub use sections::{EngineConfig, GrpcConfig, HttpConfig, ModelConfig, ProcessConfig};
pub use source::{Setting, Source};
pub use start_fault::StartFault;
pub use suggest::closest;
pub use value::Value;
pub use yaml::{YamlRefusal, check_yaml};

#[cfg(test)]
mod tests;
