//! Key sets of token issuers (RFC 7517), read with limits.
//!
//! A key's type decides its one algorithm; what a token says can only agree. That closes key confusion: a public RSA key never serves as a
//! shared secret, because there are no shared secrets here at all.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;

use super::Reason;

/// Longest key set, in bytes, and most keys in it. Real ones have two to ten keys of about 500 bytes.
const MAX_SET_BYTES: usize = 256 * 1024;
const MAX_KEYS: usize = 64;

/// Smallest and largest RSA modulus, in bits: RFC 7518 section 3.3 demands the first, the second bounds the work of one verification.
const RSA_BITS: std::ops::RangeInclusive<usize> = 2048..=8192;

/// A signature algorithm that tokens may use.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Algorithm {
    /// RSASSA-PKCS1-v1_5 with SHA-256.
    Rs256,
    /// ECDSA on P-256 with SHA-256.
    Es256,
    /// EdDSA on Ed25519.
    EdDsa,
}

/// A public key, its numbers as big-endian bytes.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum PublicKey {
    /// RSA.
    Rsa {
        /// The modulus, 2048 to 8192 bits, without leading zeros.
        modulus: Vec<u8>,
        /// The exponent, odd, 3 to 2^32 - 1, without leading zeros.
        exponent: Vec<u8>,
    },
    /// A point on P-256. Whether it's on the curve is the verifier's to check.
    P256 {
        /// The point, uncompressed: 4, x, y.
        point: [u8; 65],
    },
    /// An Ed25519 key.
    Ed25519 {
        /// The key.
        key: [u8; 32],
    },
}

/// The keys of one issuer; immutable.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Jwks {
    keys: Vec<Jwk>,
    num_skipped: usize,
}

#[derive(Clone, Debug, Eq, PartialEq)]
struct Jwk {
    id: Option<String>,
    key: PublicKey,
}

/// Why a text is no key set.
#[derive(Debug, thiserror::Error)]
pub enum JwksError {
    /// It's too long.
    #[error("a key set of {num_bytes} bytes is longer than {MAX_SET_BYTES}")]
    TooLong {
        /// Its length.
        num_bytes: usize,
    },
    /// It isn't the JSON of a key set.
    #[error("not a JSON key set: {0}")]
    Json(#[source] serde_json::Error),
    /// There are too many keys.
    #[error("{num_keys} keys are more than {MAX_KEYS}")]
    TooMany {
        /// How many there are.
        num_keys: usize,
    },
    /// Two usable keys of one algorithm have one id, so a token that names it names none.
    #[error("two keys have the id {id:?}: the issuer must give each key an id of its own")]
    DuplicateId {
        /// The id; `None` for two keys without one.
        id: Option<String>,
    },
    /// None of the keys can be used.
    #[error("none of {num_keys} keys can verify RS256, ES256 or EdDSA: the issuer must publish one that can")]
    NoUsableKey {
        /// How many keys there are.
        num_keys: usize,
    },
}

#[derive(Deserialize)]
struct RawSet {
    keys: Vec<serde_json::Value>,
}

#[derive(Deserialize)]
struct RawKey {
    kty: String,
    #[serde(rename = "use")]
    usage: Option<String>,
    key_ops: Option<Vec<String>>,
    alg: Option<String>,
    kid: Option<String>,
    crv: Option<String>,
    n: Option<String>,
    e: Option<String>,
    x: Option<String>,
    y: Option<String>,
}

impl Algorithm {
    /// Reads an `alg`; `None` for every other, `none` and the shared-secret ones among them. `Ed25519` is RFC 9864's name for `EdDSA`.
    pub fn parse(alg: &str) -> Option<Self> {
        match alg {
            "RS256" => Some(Self::Rs256),
            "ES256" => Some(Self::Es256),
            "EdDSA" | "Ed25519" => Some(Self::EdDsa),
            _ => None,
        }
    }
}

impl PublicKey {
    /// The one algorithm of the key.
    pub fn algorithm(&self) -> Algorithm {
        match self {
            Self::Rsa { .. } => Algorithm::Rs256,
            Self::P256 { .. } => Algorithm::Es256,
            Self::Ed25519 { .. } => Algorithm::EdDsa,
        }
    }
}

impl Jwks {
    /// Reads a key set. Keys of other types, for other uses or with other algorithms are skipped, because issuers publish them together.
    ///
    /// # Errors
    /// The text is no key set, is too large, is ambiguous, or has no key that can be used.
    pub fn parse(text: &[u8]) -> Result<Self, JwksError> {
        if text.len() > MAX_SET_BYTES {
            return Err(JwksError::TooLong {
                num_bytes: text.len(),
            });
        }
        let set: RawSet = serde_json::from_slice(text).map_err(JwksError::Json)?;
        let num_keys = set.keys.len();
        if num_keys > MAX_KEYS {
            return Err(JwksError::TooMany { num_keys });
        }
        let mut keys: Vec<Jwk> = Vec::new();
        for raw in set.keys {
            let Some(jwk) = serde_json::from_value(raw)
                .ok()
                .and_then(|raw: RawKey| raw.usable())
            else {
                continue;
            };
            let same = |other: &Jwk| other.id == jwk.id && other.key.algorithm() == jwk.key.algorithm();
            if keys.iter().any(same) {
                return Err(JwksError::DuplicateId { id: jwk.id });
            }
            keys.push(jwk);
        }
        if keys.is_empty() {
            return Err(JwksError::NoUsableKey { num_keys });
        }
        let num_skipped = num_keys - keys.len();
        Ok(Self { keys, num_skipped })
    }

    /// The number of keys that can be used.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether no key can be used, as in the default.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// The number of keys that were skipped.
    pub fn num_skipped(&self) -> usize {
        self.num_skipped
    }

    /// The key that a token names. Without a name, the only key of its algorithm.
    pub(super) fn select(&self, id: Option<&str>, algorithm: Algorithm) -> Result<&PublicKey, Reason> {
        let Some(id) = id else {
            let mut candidates = self.keys.iter().filter(|jwk| jwk.key.algorithm() == algorithm);
            return match (candidates.next(), candidates.next()) {
                (Some(jwk), None) => Ok(&jwk.key),
                _ => Err(Reason::UnknownSigningKey),
            };
        };
        let mut named = self
            .keys
            .iter()
            .filter(|jwk| jwk.id.as_deref() == Some(id))
            .peekable();
        if named.peek().is_none() {
            return Err(Reason::UnknownSigningKey);
        }
        let fitting = named.find(|jwk| jwk.key.algorithm() == algorithm);
        fitting.map(|jwk| &jwk.key).ok_or(Reason::ForbiddenAlgorithm)
    }
}

impl RawKey {
    fn usable(self) -> Option<Jwk> {
        let is_for_signatures = self.usage.as_deref().is_none_or(|usage| usage == "sig");
        let may_verify = self
            .key_ops
            .as_ref()
            .is_none_or(|ops| ops.iter().any(|op| op == "verify"));
        if !is_for_signatures || !may_verify {
            return None;
        }
        let key = match (self.kty.as_str(), self.crv.as_deref()) {
            ("RSA", None) => rsa(self.n.as_deref()?, self.e.as_deref()?)?,
            ("EC", Some("P-256")) => p256(self.x.as_deref()?, self.y.as_deref()?)?,
            ("OKP", Some("Ed25519")) => PublicKey::Ed25519 {
                key: fixed(self.x.as_deref()?)?,
            },
            _ => return None,
        };
        match self.alg.as_deref().map(Algorithm::parse) {
            None => {}
            Some(alg) if alg == Some(key.algorithm()) => {}
            Some(_) => return None,
        }
        Some(Jwk { id: self.kid, key })
    }
}

fn rsa(n: &str, e: &str) -> Option<PublicKey> {
    let modulus = number(n)?;
    let exponent = number(e)?;
    let num_bits = modulus.len() * 8 - modulus.first()?.leading_zeros() as usize;
    let is_odd = exponent.last()? & 1 == 1;
    let in_range = exponent.len() <= 4 && exponent != [1];
    (RSA_BITS.contains(&num_bits) && is_odd && in_range).then_some(PublicKey::Rsa { modulus, exponent })
}

fn p256(x: &str, y: &str) -> Option<PublicKey> {
    let mut point = [4; 65];
    point[1..33].copy_from_slice(&fixed::<32>(x)?);
    point[33..].copy_from_slice(&fixed::<32>(y)?);
    Some(PublicKey::P256 { point })
}

/// A number without its leading zeros, which some issuers write.
fn number(text: &str) -> Option<Vec<u8>> {
    let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
    let first = bytes.iter().position(|byte| *byte != 0)?;
    Some(bytes[first..].to_vec())
}

fn fixed<const N: usize>(text: &str) -> Option<[u8; N]> {
    URL_SAFE_NO_PAD.decode(text).ok()?.try_into().ok()
}
