//! The auth gateway around its pure core.
//!
//! A [`Gateway`] is an HTTP edge whose host is a door (`door`: who comes in, on which terms, the audit log) in front of a pool of engines for each
//! model (`pool`: connections, routing, waiting; `pools` finds one by a model's name, `fleet` starts and ends them). What a configuration means is
//! in [`Settings`] and [`ModelSettings`]; `reload` takes over its new versions. Engines come from [`discovery`],
//! issuers' keys from [`jwks`], the API server's word on tokens from [`token_review`]; limits are kept in [`store`].

pub mod api_server;
mod clock;
pub mod discovery;
mod door;
mod fleet;
mod gateway;
pub mod jwks;
mod keys;
mod metrics;
mod model_settings;
mod outside;
mod pool;
mod pool_metrics;
mod pools;
mod probes;
mod reload;
mod secure;
mod settings;
pub mod store;
pub mod token_review;
mod verifier;
mod web;

pub use gateway::{AuditLog, Gateway, StartError};
pub use keys::{KeyFileError, NewKey, new_key, parse_key_file};
pub use model_settings::ModelSettings;
pub use outside::OutsideError;
pub use reload::LoadError;
pub use settings::{Settings, SettingsError};
pub use verifier::RingVerifier;
pub use web::HttpError;
