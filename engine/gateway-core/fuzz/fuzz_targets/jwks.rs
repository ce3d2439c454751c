//! Whatever the text, a key set is refused or has keys, and reading it again gives the same.
//!
//! `cargo +nightly fuzz run jwks -- -max_len=4096`

#![no_main]

use kvasir_gateway_core::auth::Jwks;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &[u8]| {
    if let Ok(set) = Jwks::parse(text) {
        assert!(!set.is_empty() && set.len() + set.num_skipped() <= 64);
        assert_eq!(Jwks::parse(text).expect("it was one before"), set);
    }
});
