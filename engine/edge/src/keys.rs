//! Keys of one engine's edge, and which scopes they open. One kind of key never opens what the other is for.

use std::fmt;

use http::HeaderMap;
use http::header::AUTHORIZATION;
use kvasir_api::{ApiError, ErrorKind};
use sha2::{Digest, Sha256};
use subtle::{Choice, ConstantTimeEq};

use crate::routes::Scope;

/// An API key; only its SHA-256 is kept.
#[derive(Clone, PartialEq, Eq)]
pub struct ApiKey([u8; 32]);

impl ApiKey {
    /// The key with this exact text.
    pub fn new(secret: &str) -> Self {
        Self(Sha256::digest(secret.as_bytes()).into())
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Neither the key nor enough of the digest to try guesses against.
        f.write_str("ApiKey(..)")
    }
}

/// Who is let in.
#[derive(Clone, Debug, Default)]
pub(crate) struct Keys {
    /// They open inference and operations. Empty means that these need no key.
    pub(crate) clients: Vec<ApiKey>,
    /// They open the admin routes. Empty means that these need no key where nothing needs one, and are closed elsewhere.
    pub(crate) admins: Vec<ApiKey>,
}

impl Keys {
    /// Whether anybody may use admin routes.
    pub(crate) fn open_admin(&self) -> bool {
        !self.admins.is_empty() || self.clients.is_empty()
    }

    /// Refuses requests without a key for the scope. The scheme's case doesn't matter, the key's does (C78).
    ///
    /// # Errors
    /// 401 without a known key, 403 with one for other routes.
    pub(crate) fn authorize(&self, scope: Scope, headers: &HeaderMap) -> Result<(), ApiError> {
        let (right, other) = match scope {
            Scope::Public => return Ok(()),
            Scope::Inference | Scope::Operations => (&self.clients, &self.admins),
            Scope::Admin => (&self.admins, &self.clients),
        };
        if right.is_empty() && (scope != Scope::Admin || other.is_empty()) {
            return Ok(());
        }
        let token = headers
            .get(AUTHORIZATION)
            .and_then(|value| bearer_token(value.as_bytes()));
        match token {
            Some(token) if is_known_key(right, token) => Ok(()),
            Some(token) if is_known_key(other, token) => Err(ApiError::new(
                ErrorKind::Forbidden,
                if scope == Scope::Admin {
                    "this route needs an admin key, which an API key is not"
                } else {
                    "an admin key opens admin routes only: send an API key"
                },
            )),
            Some(_) => Err(ApiError::new(
                ErrorKind::Unauthorized,
                "the API key is not known to this server",
            )),
            None => {
                let message = "an API key is needed: send the header `Authorization: Bearer KEY`";
                Err(ApiError::new(ErrorKind::Unauthorized, message))
            }
        }
    }
}

fn bearer_token(value: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = value.split_at_checked(b"Bearer ".len())?;
    scheme
        .eq_ignore_ascii_case(b"bearer ")
        .then(|| token.trim_ascii_start())
}

/// Whether `token` is one of the keys. The time it takes depends on neither the token's content nor which key fits.
fn is_known_key(keys: &[ApiKey], token: &[u8]) -> bool {
    let digest: [u8; 32] = Sha256::digest(token).into();
    let found = keys
        .iter()
        .fold(Choice::from(0), |found, key| found | key.0.ct_eq(&digest));
    found.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bearer_scheme_ignores_case_and_the_key_does_not_change() {
        assert_eq!(bearer_token(b"Bearer AbC"), Some(&b"AbC"[..]));
        assert_eq!(bearer_token(b"bEARER  AbC"), Some(&b"AbC"[..]));
        assert_eq!(bearer_token(b"BearerAbC"), None);
        assert_eq!(bearer_token(b"Basic AbC"), None);
        assert_eq!(bearer_token(b"Bearer"), None);
    }

    #[test]
    fn keys_are_compared_exactly() {
        let keys = [ApiKey::new("other"), ApiKey::new("AbC")];
        assert!(is_known_key(&keys, b"AbC"));
        for wrong in ["abc", "ABC", "AbC ", "AbCd", "Ab", ""] {
            assert!(!is_known_key(&keys, wrong.as_bytes()), "{wrong:?}");
        }
        assert!(!is_known_key(&[], b""));
    }

    #[test]
    fn debug_output_does_not_show_keys() {
        let keys = Keys {
            clients: vec![ApiKey::new("hunter2")],
            admins: vec![ApiKey::new("hunter3")],
        };
        assert!(!format!("{keys:?}").contains("hunter"));
    }

    #[test]
    fn admin_routes_stay_closed_to_clients_even_if_one_were_served_without_an_admin_key() {
        let keys = Keys {
            clients: vec![ApiKey::new("client")],
            admins: Vec::new(),
        };
        assert!(!keys.open_admin());
        let headers = HeaderMap::from_iter([(AUTHORIZATION, "Bearer client".parse().unwrap())]);
        assert_eq!(keys.authorize(Scope::Admin, &headers).unwrap_err().status(), 403);
        assert_eq!(
            keys.authorize(Scope::Admin, &HeaderMap::new())
                .unwrap_err()
                .status(),
            401
        );
    }
}
