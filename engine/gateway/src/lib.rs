//! The auth gateway around its pure core.
//!
//! A [`Gateway`] is an HTTP edge whose host is a door (`door`: who comes in, on which terms, the audit log) in front of a pool of engines (`pool`: connections,
//! routing, waiting). What a configuration means is in [`Settings`]; `reload` takes over its new versions. Engines come from [`discovery`],
//! limits are kept in [`store`].

mod clock;
pub mod discovery;
mod door;
mod gateway;
mod keys;
mod metrics;
mod pool;
mod probes;
mod reload;
mod secure;
mod settings;
pub mod store;
mod verifier;

pub use gateway::{Gateway, StartError};
pub use keys::{KeyFileError, NewKey, new_key, parse_key_file};
pub use reload::LoadError;
pub use settings::{Settings, SettingsError};
pub use verifier::RingVerifier;
