use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use proptest::prelude::*;
use ring::rand::SystemRandom;
use ring::signature::{
    self, EcdsaKeyPair, Ed25519KeyPair, KeyPair, RsaPublicKeyComponents, UnparsedPublicKey,
};
use serde_json::{Value, json};

use super::*;

mod api_keys;
mod attacks;
mod jwks;
mod others;
mod tokens;

const NOW: UnixSeconds = UnixSeconds(1_900_000_000);

/// Verifies with ring, as the gateway does.
struct Ring;

impl SignatureVerifier for Ring {
    fn is_valid(&self, key: &PublicKey, message: &[u8], signature: &[u8]) -> bool {
        let verified = match key {
            PublicKey::Rsa { modulus, exponent } => RsaPublicKeyComponents {
                n: modulus,
                e: exponent,
            }
            .verify(&signature::RSA_PKCS1_2048_8192_SHA256, message, signature),
            PublicKey::P256 { point } => {
                UnparsedPublicKey::new(&signature::ECDSA_P256_SHA256_FIXED, point).verify(message, signature)
            }
            PublicKey::Ed25519 { key } => {
                UnparsedPublicKey::new(&signature::ED25519, key).verify(message, signature)
            }
        };
        verified.is_ok()
    }
}

fn tenant(name: &str) -> TenantName {
    TenantName::new(name).unwrap()
}

fn b64(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

/// An issuer with one Ed25519 and one P-256 key, and the means to sign.
struct Issuer {
    ed25519: Ed25519KeyPair,
    p256: EcdsaKeyPair,
}

impl Issuer {
    fn new(seed: u8) -> Self {
        let random = SystemRandom::new();
        let algorithm = &signature::ECDSA_P256_SHA256_FIXED_SIGNING;
        let pkcs8 = EcdsaKeyPair::generate_pkcs8(algorithm, &random).unwrap();
        Self {
            ed25519: Ed25519KeyPair::from_seed_unchecked(&[seed; 32]).unwrap(),
            p256: EcdsaKeyPair::from_pkcs8(algorithm, pkcs8.as_ref(), &random).unwrap(),
        }
    }

    fn jwk_ed25519(&self, kid: &str) -> Value {
        json!({"kty": "OKP", "crv": "Ed25519", "kid": kid, "x": b64(self.ed25519.public_key())})
    }

    fn jwk_p256(&self, kid: &str) -> Value {
        let point = self.p256.public_key().as_ref();
        json!({"kty": "EC", "crv": "P-256", "kid": kid, "x": b64(&point[1..33]), "y": b64(&point[33..])})
    }

    fn sign_ed25519(&self, header: &Value, claims: &Value) -> String {
        self.sign_text(&header.to_string(), &claims.to_string())
    }

    fn sign_text(&self, header: &str, claims: &str) -> String {
        let message = format!("{}.{}", b64(header), b64(claims));
        let signature = self.ed25519.sign(message.as_bytes());
        format!("{message}.{}", b64(signature))
    }

    fn sign_p256(&self, header: &Value, claims: &Value) -> String {
        let message = format!("{}.{}", b64(header.to_string()), b64(claims.to_string()));
        let signature = self.p256.sign(&SystemRandom::new(), message.as_bytes()).unwrap();
        format!("{message}.{}", b64(signature))
    }
}

fn jwks(keys: &[Value]) -> Jwks {
    Jwks::parse(json!({ "keys": keys }).to_string().as_bytes()).unwrap()
}

/// The committed RS256 key and its token.
fn rs256() -> (Value, String) {
    let file: Value = serde_json::from_str(include_str!("../../tests/rs256.json")).unwrap();
    (file["jwk"].clone(), file["token"].as_str().unwrap().to_owned())
}

fn claims() -> Value {
    json!({"iss": "https://issuer.test", "aud": "kvasir", "sub": "robot", "exp": NOW.0 + 60, "team": "blue"})
}

fn authenticator(keys: Jwks) -> Authenticator {
    let by_team = TenantFromClaims::Claim {
        claim: "team".to_owned(),
        tenants: TenantMap::from([
            ("blue".to_owned(), tenant("blue")),
            ("sky".to_owned(), tenant("blue")),
            ("red".to_owned(), tenant("red")),
        ]),
    };
    let issuer = JwtIssuer::new(
        "https://issuer.test".to_owned(),
        vec!["kvasir".to_owned()],
        30,
        keys,
        by_team,
    );
    Authenticator {
        issuers: vec![issuer.unwrap()],
        ..Authenticator::default()
    }
}

/// The tenant or the reason.
fn identify(authenticator: &Authenticator, bearer: &str) -> Result<String, Reason> {
    let presented = Presented {
        bearer: Some(bearer),
        certificate: None,
    };
    match authenticator.identify(presented, &Ring, NOW)? {
        Identification::Known(principal) => Ok(principal.tenant.to_string()),
        Identification::NeedsReview => Ok("(review)".to_owned()),
    }
}
