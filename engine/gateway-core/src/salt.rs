//! The cache salt that keeps tenants' KV apart.
//!
//! The salt of a tenant is HMAC-SHA256 of its name under the gateway's secret. A client can neither choose it nor learn it, so it can't
//! find another tenant's blocks, nor tell from the time of an answer what others asked (C82 of the engine research). A client's own
//! `cache_salt` subdivides its tenant's blocks: it goes beside the tenant's salt in [`CacheIdentity`],
//! whose fields can't be taken for each other.

use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use kvasir_cache_key::{CacheIdentity, CacheRoot};
use sha2::Sha256;

use crate::names::TenantName;

/// Names the use, so that the same secret in another use gives other values.
const DOMAIN: &[u8] = b"kvasir.gateway.cache-salt.v1";

/// Fewest bytes of a secret: as many as the digest has.
const MIN_SECRET_BYTES: usize = 32;

/// Longest `cache_salt` of a client, in bytes.
const MAX_CLIENT_SALT_BYTES: usize = 256;

/// The gateway's secret. Every replica of a service needs the same one; another secret makes all cached blocks unreachable.
#[derive(Clone)]
pub struct SaltSecret(Hmac<Sha256>);

/// The salt of one tenant. Prints nothing of itself.
#[derive(Clone, Copy, Eq, PartialEq)]
pub struct TenantSalt([u8; 32]);

/// What is wrong with a secret or a salt.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum SaltError {
    /// The secret is too short.
    #[error(
        "a cache salt secret of {num_bytes} bytes is shorter than {MIN_SECRET_BYTES}: make one from random bytes"
    )]
    ShortSecret {
        /// Its length.
        num_bytes: usize,
    },
    /// The client's salt is too long.
    #[error("a cache_salt of {num_bytes} bytes is longer than {MAX_CLIENT_SALT_BYTES}")]
    LongClientSalt {
        /// Its length.
        num_bytes: usize,
    },
}

impl SaltSecret {
    /// Takes a secret of 32 bytes or more.
    ///
    /// # Errors
    /// It's shorter.
    pub fn new(secret: &[u8]) -> Result<Self, SaltError> {
        let mut mac = Hmac::new_from_slice(secret)
            .ok()
            .filter(|_| secret.len() >= MIN_SECRET_BYTES)
            .ok_or(SaltError::ShortSecret {
                num_bytes: secret.len(),
            })?;
        mac.update(DOMAIN);
        Ok(Self(mac))
    }

    /// The salt of a tenant.
    pub fn tenant_salt(&self, tenant: &TenantName) -> TenantSalt {
        let mut mac = self.0.clone();
        mac.update(tenant.as_str().as_bytes());
        TenantSalt(mac.finalize().into_bytes().into())
    }
}

impl TenantSalt {
    /// The bytes, for the engine.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The root of the tenant's block hashes. `model` brings weights, KV type, adapter and media; its salts are overwritten.
    ///
    /// # Errors
    /// The client's salt is too long.
    pub fn root(&self, model: CacheIdentity<'_>, client_salt: Option<&str>) -> Result<CacheRoot, SaltError> {
        let client_salt = client_salt.unwrap_or_default().as_bytes();
        if client_salt.len() > MAX_CLIENT_SALT_BYTES {
            return Err(SaltError::LongClientSalt {
                num_bytes: client_salt.len(),
            });
        }
        let identity = CacheIdentity {
            tenant_salt: &self.0,
            client_salt,
            ..model
        };
        Ok(identity.root())
    }
}

impl fmt::Debug for SaltSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SaltSecret(..)")
    }
}

impl fmt::Debug for TenantSalt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TenantSalt(..)")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn secret(byte: u8) -> SaltSecret {
        SaltSecret::new(&[byte; 32]).unwrap()
    }

    fn tenant(name: &str) -> TenantName {
        TenantName::new(name).unwrap()
    }

    fn root(secret: &SaltSecret, name: &str, client_salt: Option<&str>) -> CacheRoot {
        let salt = secret.tenant_salt(&tenant(name));
        salt.root(CacheIdentity::default(), client_salt).unwrap()
    }

    #[test]
    fn the_salt_is_the_published_construction() {
        // hmac.new(b"\x01" * 32, b"kvasir.gateway.cache-salt.v1" + b"team-a", "sha256") of Python.
        let salt = secret(1).tenant_salt(&tenant("team-a"));
        let expected = [
            0x0a, 0x9e, 0x5e, 0x91, 0xf9, 0x08, 0x05, 0x3f, 0x29, 0x8a, 0x25, 0x76, 0xb4, 0xe7, 0x8f, 0xf9,
            0xc2, 0xc5, 0x00, 0x5a, 0x1d, 0x3c, 0x1a, 0x07, 0x88, 0xbd, 0x69, 0x4d, 0x40, 0xd0, 0x15, 0xbe,
        ];
        assert_eq!(salt.as_bytes(), &expected);
    }

    #[test]
    fn equal_inputs_share_and_any_difference_separates() {
        let same = root(&secret(1), "a", Some("x"));
        assert_eq!(root(&secret(1), "a", Some("x")), same);
        assert_eq!(root(&secret(1), "a", Some("")), root(&secret(1), "a", None));
        let others = [
            root(&secret(2), "a", Some("x")),
            root(&secret(1), "b", Some("x")),
            root(&secret(1), "a", Some("y")),
            root(&secret(1), "a", None),
        ];
        assert!(others.iter().all(|other| *other != same));
    }

    #[test]
    fn secrets_and_salts_have_bounds() {
        assert_eq!(
            SaltSecret::new(&[0; 31]).unwrap_err(),
            SaltError::ShortSecret { num_bytes: 31 }
        );
        let salt = secret(1).tenant_salt(&tenant("a"));
        let error = salt
            .root(CacheIdentity::default(), Some(&"x".repeat(257)))
            .unwrap_err();
        assert_eq!(error, SaltError::LongClientSalt { num_bytes: 257 });
    }

    #[test]
    fn nothing_of_a_secret_is_printed() {
        let salt = secret(171).tenant_salt(&tenant("a"));
        assert_eq!(
            format!("{:?} {salt:?}", secret(171)),
            "SaltSecret(..) TenantSalt(..)"
        );
    }

    proptest! {
        #[test]
        fn no_client_salt_reaches_another_tenants_root(mine in "[a-z]{1,8}", other in "[a-z]{1,8}", salt in ".{0,40}", theirs in ".{0,40}") {
            prop_assume!(mine != other);
            prop_assert_ne!(root(&secret(1), &mine, Some(&salt)), root(&secret(1), &other, Some(&theirs)));
        }
    }
}
