//! New API keys, and the files that keep their digests.

use kvasir_config::check_yaml;
use kvasir_config::gateway::ApiKeyConfig;
use kvasir_gateway_core::auth::{GeneratedKey, KEY_ENTROPY_BYTES, generate_key};
use kvasir_gateway_core::names::TenantName;
use kvasir_gateway_core::time::UnixSeconds;
use serde::Serialize;
use uuid::Uuid;

/// A key that was just made.
#[derive(Debug)]
pub struct NewKey {
    key: GeneratedKey,
    tenant: TenantName,
    expires: Option<UnixSeconds>,
}

/// Why a key file can't be used. Says where and not what, because what is there may be a key.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error(
    "not a list of keys as {{id, sha256, tenant, expiresUnixSeconds}}: look at line {line}, column {column}"
)]
pub struct KeyFileError {
    /// From 1; 1 where the parser doesn't know.
    pub line: usize,
    /// From 1; 1 where the parser doesn't know.
    pub column: usize,
}

/// A record as key files and the configuration have it.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Record<'a> {
    id: &'a str,
    sha256: String,
    tenant: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_unix_seconds: Option<i64>,
}

/// Makes a key from the system's random source.
pub fn new_key(tenant: TenantName, expires: Option<UnixSeconds>) -> NewKey {
    NewKey {
        key: generate_key(&entropy()),
        tenant,
        expires,
    }
}

/// Reads a file that holds a list of keys.
///
/// # Errors
/// The text isn't such a list.
pub fn parse_key_file(yaml: &str) -> Result<Vec<ApiKeyConfig>, KeyFileError> {
    check_yaml(yaml).map_err(|refusal| KeyFileError {
        line: refusal.line,
        column: refusal.column,
    })?;
    let keys: Vec<ApiKeyConfig> = serde_yaml::from_str(yaml).map_err(|error| {
        let place = error.location();
        KeyFileError {
            line: place.as_ref().map_or(1, serde_yaml::Location::line),
            column: place.as_ref().map_or(1, serde_yaml::Location::column),
        }
    })?;
    // An empty text would be an empty list, and is more likely a file that was cut off. Who means no keys writes [].
    if keys.is_empty() && !yaml.contains('[') {
        return Err(KeyFileError { line: 1, column: 1 });
    }
    Ok(keys)
}

impl NewKey {
    /// The key itself. Show it once and keep it nowhere.
    pub fn text(&self) -> &str {
        &self.key.text
    }

    /// The public part.
    pub fn id(&self) -> &str {
        self.key.id.as_str()
    }

    /// A key file with this key, to be added to `auth.apiKeys.files` or under `auth.apiKeys.keys`, or to the end of another key file.
    pub fn key_file(&self) -> String {
        let record = Record {
            id: self.id(),
            sha256: self.key.digest.to_hex(),
            tenant: self.tenant.as_str(),
            expires_unix_seconds: self.expires.map(|expires| expires.0),
        };
        format!("- {}", serde_json::json!(record))
    }

    /// The manifest of a Secret that holds the key file, for a gateway in a cluster.
    pub fn secret_manifest(&self, name: &str) -> String {
        let manifest = serde_json::json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": name, "labels": {"app.kubernetes.io/managed-by": "kvasir"}},
            "type": "Opaque",
            "stringData": {format!("{}.yaml", self.id()): self.key_file()},
        });
        format!("{manifest:#}")
    }
}

/// Version 4 UUIDs are the system's random bytes but for six bits, which lie in two bytes; the others are taken.
fn entropy() -> [u8; KEY_ENTROPY_BYTES] {
    let random = || {
        Uuid::new_v4()
            .into_bytes()
            .into_iter()
            .enumerate()
            .filter(|(place, _)| *place != 6 && *place != 8)
    };
    let mut bytes = [0; KEY_ENTROPY_BYTES];
    let source = std::iter::repeat_with(random).flatten().map(|(_, byte)| byte);
    for (slot, byte) in bytes.iter_mut().zip(source) {
        *slot = byte;
    }
    bytes
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use kvasir_gateway_core::auth::{ApiKey, KeyDigest};

    use super::*;

    fn key(expires: Option<UnixSeconds>) -> NewKey {
        new_key(TenantName::new("team-a").unwrap(), expires)
    }

    #[test]
    fn a_new_key_has_the_form_of_a_key_and_its_file_the_digest() {
        let key = key(Some(UnixSeconds(2_000_000_000)));
        assert_eq!(ApiKey::parse(key.text()).unwrap().id(), key.id());
        let records = parse_key_file(&key.key_file()).unwrap();
        let [record] = records.as_slice() else {
            panic!("{records:?}")
        };
        assert_eq!((record.id.as_str(), record.tenant.as_str()), (key.id(), "team-a"));
        assert_eq!(record.sha256, KeyDigest::of(key.text()).to_hex());
        assert_eq!(record.expires_unix_seconds, Some(2_000_000_000));
    }

    #[test]
    fn neither_file_nor_manifest_nor_debug_holds_the_secret() {
        let key = key(None);
        let secret = key.text().rsplit('_').next().unwrap();
        for text in [key.key_file(), key.secret_manifest("keys"), format!("{key:?}")] {
            assert!(!text.contains(secret), "{text}");
        }
    }

    #[test]
    fn the_manifest_holds_the_key_file() {
        let key = key(None);
        let manifest: serde_json::Value = serde_json::from_str(&key.secret_manifest("my-keys")).unwrap();
        assert_eq!(manifest["metadata"]["name"], "my-keys");
        let file = manifest["stringData"][format!("{}.yaml", key.id())]
            .as_str()
            .unwrap();
        assert_eq!(parse_key_file(file).unwrap()[0].id, key.id());
    }

    #[test]
    fn key_files_one_behind_the_other_are_a_key_file() {
        let (old, new) = (key(None), key(Some(UnixSeconds(1))));
        let records = parse_key_file(&format!("{}\n{}\n", old.key_file(), new.key_file())).unwrap();
        let ids: Vec<&str> = records.iter().map(|record| record.id.as_str()).collect();
        assert_eq!(ids, [old.id(), new.id()]);
    }

    #[test]
    fn keys_differ_and_use_all_their_bits() {
        let entropies: BTreeSet<[u8; KEY_ENTROPY_BYTES]> = (0..200).map(|_| entropy()).collect();
        assert_eq!(entropies.len(), 200);
        let mut seen_one = [0_u8; KEY_ENTROPY_BYTES];
        let mut seen_zero = [0_u8; KEY_ENTROPY_BYTES];
        for bytes in &entropies {
            for (place, byte) in bytes.iter().enumerate() {
                seen_one[place] |= byte;
                seen_zero[place] |= !byte;
            }
        }
        assert!(seen_one.iter().chain(&seen_zero).all(|bits| *bits == 0xff));
    }

    #[test]
    fn what_is_no_key_file_is_refused() {
        for text in [
            "",
            "{}",
            "[{id: a}]",
            "[{id: a, sha256: b, tenant: c, secret: d}]",
            "kv_a_b",
        ] {
            assert!(parse_key_file(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_key_in_place_of_a_key_file_is_not_repeated() {
        for text in [
            "kv_a_secret",
            "[kv_a_secret]",
            "[{id: a, sha256: [kv_a_secret], tenant: b}]",
            "kv_a_secret: 1",
        ] {
            let error = parse_key_file(text).unwrap_err();
            assert!(!format!("{error} {error:?}").contains("secret"), "{error}");
        }
    }
}
