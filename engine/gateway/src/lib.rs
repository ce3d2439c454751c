//! The auth gateway around its pure core.
//!
//! So far: what a configuration means ([`Settings`]), new keys ([`NewKey`]), the verification of tokens' signatures ([`RingVerifier`]), where
//! engines are ([`discovery`]), and tenants' accounts ([`store`]).

pub mod discovery;
mod keys;
mod settings;
pub mod store;
mod verifier;

pub use keys::{KeyFileError, NewKey, new_key, parse_key_file};
pub use settings::{Settings, SettingsError};
pub use verifier::RingVerifier;
