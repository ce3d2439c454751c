//! Tokens' signatures, verified by the library that serves TLS.

use kvasir_gateway_core::auth::{PublicKey, SignatureVerifier};
use kvasir_tls::signature::{is_valid_ed25519, is_valid_es256, is_valid_rs256};

/// Verifies with ring.
#[derive(Clone, Copy, Debug, Default)]
pub struct RingVerifier;

impl SignatureVerifier for RingVerifier {
    fn is_valid(&self, key: &PublicKey, message: &[u8], signature: &[u8]) -> bool {
        match key {
            PublicKey::Rsa { modulus, exponent } => is_valid_rs256(modulus, exponent, message, signature),
            PublicKey::P256 { point } => is_valid_es256(point, message, signature),
            PublicKey::Ed25519 { key } => is_valid_ed25519(key, message, signature),
        }
    }
}
