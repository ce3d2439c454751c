//! Whatever the bytes, no shard's name leads out of the directory.
//!
//! `cargo +nightly fuzz run safetensors_index -- -max_len=4096`

#![no_main]

use std::path::{Component, Path};

use kvasir_weights::safetensors;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(map) = safetensors::parse_index(bytes) {
        for shard in map.values() {
            let parts: Vec<_> = Path::new(shard).components().collect();
            assert!(matches!(parts[..], [Component::Normal(_)]), "{shard}");
        }
    }
});
