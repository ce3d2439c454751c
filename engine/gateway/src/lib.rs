//! The auth gateway around its pure core.
//!
//! So far: what a configuration means ([`Settings`]), new keys ([`NewKey`]), and the verification of tokens' signatures ([`RingVerifier`]).

mod keys;
mod settings;
mod verifier;

pub use keys::{KeyFileError, NewKey, new_key, parse_key_file};
pub use settings::{Settings, SettingsError};
pub use verifier::RingVerifier;
