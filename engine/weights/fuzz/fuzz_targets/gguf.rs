//! Whatever the bytes, the parser returns, and every range that it hands out lies in them and has its shape's size.
//!
//! `cargo +nightly fuzz run gguf -- -max_len=4096`

#![no_main]

use kvasir_weights::{StoredType, gguf};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    match gguf::parse(bytes) {
        Ok(header) => {
            assert!(header.len <= bytes.len());
            for entry in header.tensors.values() {
                let data = &bytes[entry.start..entry.end];
                let StoredType::Known(dtype) = entry.stored else {
                    unreachable!("other types are refused")
                };
                let elements: usize = entry.shape.iter().product();
                assert_eq!(data.len(), elements / dtype.block_len() * dtype.block_bytes());
            }
        }
        Err(error) => assert!(error.offset <= bytes.len() as u64, "{error}"),
    }
});
