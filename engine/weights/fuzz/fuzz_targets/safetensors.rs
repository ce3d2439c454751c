//! Whatever the bytes, the parser returns, and the ranges that it hands out cover the data exactly.
//!
//! `cargo +nightly fuzz run safetensors -- -max_len=4096`

#![no_main]

use kvasir_weights::safetensors;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(header) = safetensors::parse(bytes) {
        let sum: usize = header
            .tensors
            .values()
            .map(|entry| bytes[entry.start..entry.end].len())
            .sum();
        assert_eq!(header.len + sum, bytes.len());
    }
});
