//! Signatures of tokens, verified by the crypto library that serves TLS.

use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ED25519, RSA_PKCS1_2048_8192_SHA256, RsaPublicKeyComponents, UnparsedPublicKey,
};

/// RSASSA-PKCS1-v1_5 with SHA-256, for keys of 2048 to 8192 bits. Numbers are big-endian, without leading zeros. False for anything malformed.
pub fn is_valid_rs256(modulus: &[u8], exponent: &[u8], message: &[u8], signature: &[u8]) -> bool {
    let key = RsaPublicKeyComponents {
        n: modulus,
        e: exponent,
    };
    key.verify(&RSA_PKCS1_2048_8192_SHA256, message, signature)
        .is_ok()
}

/// ECDSA on P-256 with SHA-256; the point is uncompressed, the signature is `r` and `s` of 32 bytes each. False for anything malformed.
pub fn is_valid_es256(point: &[u8; 65], message: &[u8], signature: &[u8]) -> bool {
    let key = UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point);
    key.verify(message, signature).is_ok()
}

/// EdDSA on Ed25519. False for anything malformed.
pub fn is_valid_ed25519(key: &[u8; 32], message: &[u8], signature: &[u8]) -> bool {
    UnparsedPublicKey::new(&ED25519, key)
        .verify(message, signature)
        .is_ok()
}
