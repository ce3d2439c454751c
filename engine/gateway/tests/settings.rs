//! A configuration and its files, put into effect.

#![allow(
    clippy::unwrap_used,
    reason = "test code outside of test functions, which the configuration's exceptions don't cover"
)]

use std::path::Path;
use std::time::Duration;

use kvasir_config::gateway::parse_gateway;
use kvasir_gateway::{ModelSettings, NewKey, RingVerifier, Settings, new_key};
use kvasir_gateway_core::auth::{CertificateFacts, Identification, Presented, Reason, ReviewFacts, San};
use kvasir_gateway_core::names::TenantName;
use kvasir_gateway_core::policy::{Entry, ModelUse, Scope};
use kvasir_gateway_core::routing::RoutingPolicy;
use kvasir_gateway_core::time::UnixSeconds;
use tempfile::TempDir;

const NOW: UnixSeconds = UnixSeconds(1_900_000_000);

/// An RS256 key set and one token of it, whose issuer is `https://issuer.test`.
const RS256: &str = include_str!("../../gateway-core/tests/rs256.json");

fn write(folder: &TempDir, name: &str, content: &[u8]) {
    std::fs::write(folder.path().join(name), content).unwrap();
}

/// A folder with all files, and a key of team-a.
fn folder() -> (TempDir, NewKey) {
    let folder = TempDir::new().unwrap();
    let key = new_key(TenantName::new("team-a").unwrap(), None);
    let rs256: serde_json::Value = serde_json::from_str(RS256).unwrap();
    write(&folder, "salt", &[7; 32]);
    write(&folder, "keys.yaml", key.key_file().as_bytes());
    write(
        &folder,
        "jwks.json",
        serde_json::json!({"keys": [rs256["jwk"]]}).to_string().as_bytes(),
    );
    (folder, key)
}

fn yaml(folder: &Path) -> String {
    let at = |name: &str| folder.join(name).display().to_string();
    format!(
        "
auth:
  apiKeys: {{files: ['{keys}']}}
  jwt:
    - {{issuer: 'https://issuer.test', audiences: [kvasir], jwks: {{file: '{jwks}'}}, claim: {{name: team, tenants: {{blue: team-a}}}}}}
    - {{issuer: far, audiences: [kvasir], jwks: {{url: 'https://far.test/keys'}}, tenant: ops}}
  tokenReview: {{audience: kvasir, rules: [{{namespace: ns, serviceAccount: one, tenant: team-a}}, {{namespace: ns, tenant: ops}}, {{group: g, tenant: ops}}, {{username: jo, tenant: team-a}}]}}
  certificates: [{{name: 'dns:ops.test', tenant: ops}}]
tls: {{certificate: /c, key: /k, clientAuthorities: /a}}
tenants:
  - {{name: team-a, models: [small], priority: 3, weight: 4, maxTokens: 50, limits: {{requestsPerMinute: 9, concurrency: 2, queueSharePercent: 20}}}}
  - {{name: ops, scopes: [operations, admin]}}
cacheSalt: {{secretFile: '{salt}'}}
engines: {{static: [{{address: '127.0.0.1:1'}}]}}
revisions: [{{name: old, weight: 9}}, {{name: new, weight: 1}}]
routing: {{policy: LeastKV, maxIndexBlocks: 77, maxAttempts: 5}}
limits: {{replicas: 3}}
waiting: {{capacity: 10, maxWaitSeconds: 30, holdSeconds: 40}}
",
        keys = at("keys.yaml"),
        jwks = at("jwks.json"),
        salt = at("salt"),
    )
}

fn settings(folder: &TempDir) -> Settings {
    Settings::load(&parse_gateway(&yaml(folder.path())).unwrap()).unwrap()
}

/// Whose request it is.
fn tenant(settings: &Settings, presented: Presented<'_>) -> Result<String, Reason> {
    match settings.authenticator.identify(presented, &RingVerifier, NOW)? {
        Identification::Known(principal) => Ok(principal.tenant.to_string()),
        Identification::NeedsReview => Ok("(review)".to_owned()),
    }
}

fn bearer(token: &str) -> Presented<'_> {
    Presented {
        bearer: Some(token),
        certificate: None,
    }
}

#[test]
fn credentials_of_each_kind_name_their_tenants() {
    let (folder, key) = folder();
    let settings = settings(&folder);
    let rs256: serde_json::Value = serde_json::from_str(RS256).unwrap();
    assert_eq!(tenant(&settings, bearer(key.text())), Ok("team-a".to_owned()));
    assert_eq!(
        tenant(&settings, bearer(rs256["token"].as_str().unwrap())),
        Ok("team-a".to_owned())
    );
    assert_eq!(tenant(&settings, bearer("opaque")), Ok("(review)".to_owned()));
    let certificate = CertificateFacts {
        names: vec![San::Dns("ops.test".to_owned())],
        not_after: NOW,
    };
    let presented = Presented {
        bearer: None,
        certificate: Some(&certificate),
    };
    assert_eq!(tenant(&settings, presented), Ok("ops".to_owned()));
    assert_eq!(tenant(&settings, Presented::default()), Err(Reason::NoCredential));
}

#[test]
fn keys_of_all_files_of_a_folder_are_valid_and_an_empty_one_lets_nobody_in() {
    let (folder, _) = folder();
    let keys: Vec<NewKey> = (0..2)
        .map(|_| new_key(TenantName::new("team-a").unwrap(), None))
        .collect();
    // As Kubernetes mounts a Secret: the files are links into a folder that is exchanged as a whole.
    for name in ["secret", "secret/..data", "empty"] {
        std::fs::create_dir(folder.path().join(name)).unwrap();
    }
    for (i, key) in keys.iter().enumerate() {
        write(
            &folder,
            &format!("secret/..data/{i}.yaml"),
            key.key_file().as_bytes(),
        );
        let link = folder.path().join(format!("secret/{i}.yaml"));
        std::os::unix::fs::symlink(format!("..data/{i}.yaml"), link).unwrap();
    }
    let with = |name: &str| {
        let text = yaml(folder.path()).replace("keys.yaml", name);
        Settings::load(&parse_gateway(&text).unwrap()).unwrap()
    };
    for key in &keys {
        assert_eq!(
            tenant(&with("secret"), bearer(key.text())),
            Ok("team-a".to_owned())
        );
        assert_ne!(
            tenant(&with("empty"), bearer(key.text())),
            Ok("team-a".to_owned())
        );
    }
}

#[test]
fn review_rules_keep_their_order_and_kinds() {
    let (folder, _) = folder();
    let settings = settings(&folder);
    let reviewed = |username: &str, groups: &[&str]| {
        let facts = ReviewFacts {
            is_authenticated: true,
            username: username.to_owned(),
            groups: groups.iter().map(|group| (*group).to_owned()).collect(),
            audiences: vec!["kvasir".to_owned()],
        };
        settings
            .authenticator
            .reviewed(&facts)
            .map(|principal| principal.tenant.to_string())
    };
    assert_eq!(
        reviewed("system:serviceaccount:ns:one", &[]),
        Ok("team-a".to_owned())
    );
    assert_eq!(
        reviewed("system:serviceaccount:ns:two", &[]),
        Ok("ops".to_owned())
    );
    assert_eq!(reviewed("x", &["g"]), Ok("ops".to_owned()));
    assert_eq!(reviewed("jo", &[]), Ok("team-a".to_owned()));
    assert_eq!(reviewed("x", &[]), Err(Reason::NoTenant));
}

#[test]
fn rules_of_tenants_are_taken_over() {
    let (folder, key) = folder();
    let settings = settings(&folder);
    let Ok(Identification::Known(principal)) =
        settings
            .authenticator
            .identify(bearer(key.text()), &RingVerifier, NOW)
    else {
        panic!("the key is good");
    };
    let entry = settings
        .policy
        .enter(Some(Scope::Inference), Ok(&principal))
        .unwrap();
    assert!(settings.policy.enter(Some(Scope::Admin), Ok(&principal)).is_err());
    let wanted = ModelUse {
        model: "small",
        ..ModelUse::default()
    };
    let grant = entry.grant(wanted).unwrap();
    assert_eq!((grant.max_tokens, grant.priority, grant.weight), (Some(50), 3, 4));
    assert!(
        entry
            .grant(ModelUse {
                model: "large",
                ..wanted
            })
            .is_err()
    );
    let Entry::Tenant { tenant, .. } = entry else {
        panic!("a tenant entered")
    };
    assert_eq!(
        (
            tenant.limits.requests_per_minute,
            tenant.limits.concurrency,
            tenant.queue_share_percent
        ),
        (Some(9), Some(2), 20)
    );
}

#[test]
fn routing_waiting_and_sharing_are_taken_over() {
    let (folder, _) = folder();
    let config = parse_gateway(&yaml(folder.path())).unwrap();
    let (shared, settings) = (settings(&folder), ModelSettings::of(&config.all_models()[0]));
    assert_eq!(
        (settings.router.policy, settings.router.max_index_pairs),
        (RoutingPolicy::LeastKv, 77)
    );
    assert_eq!(settings.retry.max_attempts, 5);
    let revisions: Vec<(String, u32)> = settings
        .revisions
        .iter()
        .map(|(revision, weight)| (revision.to_string(), *weight))
        .collect();
    assert_eq!(revisions, [("old".to_owned(), 9), ("new".to_owned(), 1)]);
    assert_eq!(
        (settings.door.max_wait, settings.door.hold),
        (Duration::from_secs(30), Duration::from_secs(40))
    );
    assert_eq!(
        (settings.room.capacity, settings.room.patience, shared.replicas),
        (10, Duration::from_secs(5), 3)
    );
    assert_eq!(shared.jwks_urls, [(1, "https://far.test/keys".to_owned())]);
}

#[test]
fn files_that_cannot_be_used_are_named() {
    let foreign_key = new_key(TenantName::new("nobody").unwrap(), None).key_file();
    let cases: [(&str, &[u8], &str); 6] = [
        ("salt", &[7; 31], "shorter than 32"),
        ("keys.yaml", b"kv_a_b", "not a list of keys"),
        ("keys.yaml", foreign_key.as_bytes(), "isn't under tenants"),
        (
            "keys.yaml",
            br#"[{"id": "a", "sha256": "kv_a_secret", "tenant": "team-a"}]"#,
            "64 hexadecimal digits",
        ),
        ("jwks.json", b"{}", "not a JSON key set"),
        ("jwks.json", br#"{"keys": []}"#, "none of 0 keys"),
    ];
    for (file, content, reason) in cases {
        let (folder, _) = folder();
        write(&folder, file, content);
        let error = Settings::load(&parse_gateway(&yaml(folder.path())).unwrap())
            .unwrap_err()
            .to_string();
        assert!(error.contains(reason), "{file}: {error}");
        assert!(!error.contains("secret\""), "{error}");
    }
    for file in ["salt", "keys.yaml", "jwks.json"] {
        let (folder, _) = folder();
        std::fs::remove_file(folder.path().join(file)).unwrap();
        let error = Settings::load(&parse_gateway(&yaml(folder.path())).unwrap())
            .unwrap_err()
            .to_string();
        assert!(error.contains(file) && error.contains("can't read"), "{error}");
    }
}

#[test]
fn two_files_with_one_key_are_refused() {
    let (folder, key) = folder();
    let again = folder.path().join("again.yaml");
    std::fs::write(&again, key.key_file()).unwrap();
    let yaml = yaml(folder.path()).replace("keys.yaml'", &format!("keys.yaml', '{}'", again.display()));
    let error = Settings::load(&parse_gateway(&yaml).unwrap())
        .unwrap_err()
        .to_string();
    assert!(error.contains("two keys have the id"), "{error}");
}
