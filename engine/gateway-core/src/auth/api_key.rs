//! API keys: `kv_<id>_<secret>`.
//!
//! The id is public: it finds the record and names the key in logs. Only the SHA-256 of the whole text is stored, and it is compared in
//! constant time, exactly (C78 of the engine research: a server that lower-cased keys before comparing). A secret has 256 random bits, so
//! a plain digest suffices where a password would need a slow one.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::{Method, Principal, Reason, base32};
use crate::names::TenantName;
use crate::time::UnixSeconds;

const PREFIX: &str = "kv_";

/// Bounds of an id and of a secret, in bytes. Generated ones have 16 and 52; others may come from elsewhere.
const ID_BYTES: std::ops::RangeInclusive<usize> = 1..=64;
const SECRET_BYTES: std::ops::RangeInclusive<usize> = 32..=256;

/// Most keys in one table.
const MAX_KEYS: usize = 100_000;

/// Random bytes that one generated key takes: 10 for the id, 32 for the secret.
pub const KEY_ENTROPY_BYTES: usize = 10 + 32;

/// Makes a new key from random bytes, which must come from a cryptographic source and be used once.
pub fn generate_key(entropy: &[u8; KEY_ENTROPY_BYTES]) -> GeneratedKey {
    let (id, secret) = entropy.split_at(10);
    let id = base32::encode(id);
    let text = format!("{PREFIX}{id}_{}", base32::encode(secret));
    GeneratedKey {
        digest: KeyDigest::of(&text),
        id: KeyId(id),
        text,
    }
}

/// A new key. Its text is shown once and stored nowhere.
#[derive(Clone)]
pub struct GeneratedKey {
    /// The id.
    pub id: KeyId,
    /// What a record keeps.
    pub digest: KeyDigest,
    /// What the client presents.
    pub text: String,
}

/// The public part of a key: 1 to 64 of `a-z`, `0-9`, `-`.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct KeyId(String);

/// SHA-256 of a key's whole text.
#[derive(Clone, Copy, Debug)]
pub struct KeyDigest([u8; 32]);

/// A key as a client presented it. Prints only its id.
#[derive(Clone, Copy)]
pub struct ApiKey<'a> {
    id: &'a str,
    text: &'a str,
}

/// What is known of a key.
#[derive(Clone, Debug)]
pub struct KeyRecord {
    /// The id.
    pub id: KeyId,
    /// SHA-256 of the text.
    pub digest: KeyDigest,
    /// Whose key it is. A tenant may have several.
    pub tenant: TenantName,
    /// The first second in which it's no longer valid; `None` if there is none.
    pub expires: Option<UnixSeconds>,
}

/// Keys by id; immutable, and a clone is the same table.
#[derive(Clone, Debug, Default)]
pub struct KeyTable(Arc<BTreeMap<String, KeyRecord>>);

/// Why records make no table.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum KeyTableError {
    /// Two records have one id.
    #[error("two keys have the id {id}: give each key an id of its own")]
    DuplicateId {
        /// The id.
        id: String,
    },
    /// There are too many.
    #[error("{num_keys} keys are more than {MAX_KEYS}: remove expired ones")]
    TooMany {
        /// How many there are.
        num_keys: usize,
    },
}

impl fmt::Debug for GeneratedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GeneratedKey")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for ApiKey<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ApiKey")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

impl KeyId {
    /// Checks an id; `None` if it breaks the rule that the type states.
    pub fn new(id: &str) -> Option<Self> {
        let allowed = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
        (ID_BYTES.contains(&id.len()) && id.bytes().all(allowed)).then(|| Self(id.to_owned()))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl KeyDigest {
    /// The digest of a key's text.
    pub fn of(text: &str) -> Self {
        Self(Sha256::digest(text.as_bytes()).into())
    }

    /// Reads 64 hexadecimal digits of either case; `None` for anything else.
    pub fn from_hex(hex: &str) -> Option<Self> {
        let digits: &[u8; 64] = hex.as_bytes().try_into().ok()?;
        let mut digest = [0; 32];
        for (byte, pair) in digest.iter_mut().zip(digits.chunks_exact(2)) {
            let high = char::from(pair[0]).to_digit(16)?;
            let low = char::from(pair[1]).to_digit(16)?;
            *byte = (high << 4 | low) as u8;
        }
        Some(Self(digest))
    }

    /// 64 hexadecimal digits in lower case.
    pub fn to_hex(self) -> String {
        self.0
            .iter()
            .flat_map(|byte| [byte >> 4, byte & 15])
            .filter_map(|digit| char::from_digit(u32::from(digit), 16))
            .collect()
    }

    /// Whether two digests are equal, in a time that doesn't depend on where they differ.
    pub fn matches(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl<'a> ApiKey<'a> {
    /// Reads a key; `None` if the text doesn't have a key's form. Any text is safe to give.
    pub fn parse(text: &'a str) -> Option<Self> {
        let (id, secret) = text.strip_prefix(PREFIX)?.split_once('_')?;
        KeyId::new(id)?;
        let allowed = |c: u8| c.is_ascii_alphanumeric() || c == b'-';
        (SECRET_BYTES.contains(&secret.len()) && secret.bytes().all(allowed)).then_some(Self { id, text })
    }

    /// The public part.
    pub fn id(&self) -> &'a str {
        self.id
    }
}

impl KeyTable {
    /// Makes a table.
    ///
    /// # Errors
    /// Two records have one id, or there are more than 100,000.
    pub fn new(records: impl IntoIterator<Item = KeyRecord>) -> Result<Self, KeyTableError> {
        let mut table = BTreeMap::new();
        for record in records {
            let id = record.id.0.clone();
            if table.insert(id.clone(), record).is_some() {
                return Err(KeyTableError::DuplicateId { id });
            }
        }
        match table.len() {
            num_keys if num_keys > MAX_KEYS => Err(KeyTableError::TooMany { num_keys }),
            _ => Ok(Self(Arc::new(table))),
        }
    }

    /// The number of keys.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is no key.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The id of a key that is in the table, whether the rest of the text is right or not: for logs of refusals.
    pub fn known_id(&self, text: &str) -> Option<&str> {
        let record = self.0.get(ApiKey::parse(text)?.id)?;
        Some(record.id.as_str())
    }

    pub(super) fn principal(&self, key: &ApiKey<'_>, now: UnixSeconds) -> Result<Principal, Reason> {
        let presented = KeyDigest::of(key.text);
        let record = self.0.get(key.id);
        // An unknown id costs a comparison too, so that its answer takes as long as a wrong secret's.
        let stored = record.map_or(KeyDigest([0; 32]), |record| record.digest);
        let is_equal = stored.matches(&presented);
        let record = record.ok_or(Reason::UnknownKey)?;
        if !is_equal {
            return Err(Reason::WrongSecret);
        }
        if record.expires.is_some_and(|expires| now >= expires) {
            return Err(Reason::Expired);
        }
        Ok(Principal {
            tenant: record.tenant.clone(),
            method: Method::ApiKey,
            subject: record.id.0.clone(),
        })
    }
}
