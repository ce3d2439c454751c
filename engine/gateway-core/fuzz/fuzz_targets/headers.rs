//! Whatever the header lines, there is at most one credential, it's visible ASCII and came as a whole, and two are never resolved by picking one.
//!
//! `cargo +nightly fuzz run headers -- -max_len=1024`

#![no_main]

use kvasir_gateway_core::auth::{ApiKey, HeaderValues, bearer};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|lines: (Vec<Vec<u8>>, Vec<Vec<u8>>)| {
    let authorization: Vec<&[u8]> = lines.0.iter().map(Vec::as_slice).collect();
    let api_key: Vec<&[u8]> = lines.1.iter().map(Vec::as_slice).collect();
    let headers = HeaderValues {
        authorization: &authorization,
        api_key: &api_key,
    };
    match bearer(headers) {
        Ok(None) => assert!(authorization.is_empty() && api_key.is_empty()),
        Ok(Some(token)) => {
            assert_eq!(authorization.len() + api_key.len(), 1);
            assert!(!token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic()));
            let line = authorization.first().or(api_key.first()).expect("there is one");
            assert!(line.windows(token.len()).any(|part| part == token.as_bytes()));
            if let Some(key) = ApiKey::parse(token) {
                assert!(token.contains(key.id()));
            }
        }
        Err(_) => {}
    }
});
