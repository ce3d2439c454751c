//! Whatever the text, a gateway's configuration is read or every fault of it is named, in bounded time and without a panic.
//!
//! `cargo +nightly fuzz run gateway_yaml -- -max_len=8192`

#![no_main]

use kvasir_config::gateway::parse_gateway;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|yaml: &str| {
    match parse_gateway(yaml) {
        Ok(config) => assert!(config.tls.is_some() || config.listen.ip().is_loopback()),
        Err(faults) => {
            assert!(!faults.0.is_empty());
            assert!(!faults.to_string().is_empty());
        }
    }
});
