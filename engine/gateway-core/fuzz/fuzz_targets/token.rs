//! Whatever the bearer, it's nobody's without a good signature, and with one only if issuer, audience and time are right.
//!
//! `cargo +nightly fuzz run token -- -max_len=4096`

#![no_main]

use std::sync::LazyLock;

use kvasir_gateway_core::auth::{
    Authenticator, Identification, Jwks, JwtIssuer, Method, Presented, PublicKey, Reason, SignatureVerifier,
    TenantFromClaims,
};
use kvasir_gateway_core::names::TenantName;
use kvasir_gateway_core::time::UnixSeconds;
use libfuzzer_sys::fuzz_target;

const NOW: UnixSeconds = UnixSeconds(1_000_000);

struct Always(bool);

impl SignatureVerifier for Always {
    fn is_valid(&self, _: &PublicKey, _: &[u8], _: &[u8]) -> bool {
        self.0
    }
}

static AUTHENTICATOR: LazyLock<Authenticator> = LazyLock::new(|| {
    let keys = br#"{"keys": [{"kty": "OKP", "crv": "Ed25519", "kid": "k", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}"#;
    let issuer = JwtIssuer::new(
        "i".to_owned(),
        vec!["a".to_owned()],
        30,
        Jwks::parse(keys).expect("it is a set"),
        TenantFromClaims::Fixed(TenantName::new("t").expect("it is a name")),
    );
    Authenticator {
        issuers: vec![issuer.expect("it is an issuer")],
        ..Authenticator::default()
    }
});

fn identify(bearer: &str, is_signed: bool) -> Result<Identification, Reason> {
    let presented = Presented {
        bearer: Some(bearer),
        certificate: None,
    };
    AUTHENTICATOR.identify(presented, &Always(is_signed), NOW)
}

fuzz_target!(|bearer: &str| {
    assert!(identify(bearer, false).is_err());
    if let Ok(identification) = identify(bearer, true) {
        let Identification::Known(principal) = identification else {
            panic!("no reviews are configured")
        };
        assert_eq!((principal.tenant.as_str(), principal.method), ("t", Method::Jwt));
        assert_eq!(bearer.matches('.').count(), 2);
    }
});
