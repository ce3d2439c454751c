//! Names of everything that is made from an `InferenceService`, in one place.
//!
//! A name is the service's name, `-`, and a suffix that no other service's child can have: the suffixes of a service's own
//! objects contain no digit, those of its groups are `g<id>` alone or with one more part that is reserved for groups. A test
//! holds that two services never share a name, whatever they are called.
//!
//! The API server takes service names up to [`MAX_SERVICE_NAME`] characters; longer ones (a definition can be edited) are cut
//! and get a hash, so that a child's name is always valid.

use sha2::{Digest, Sha256};

/// Longest service name. A StatefulSet's name and `-` and ten characters must fit a label value of 63.
pub const MAX_SERVICE_NAME: usize = 40;
/// Largest group id. `-g4095-0` and the hash still fit a pod's labels.
pub const MAX_GROUP_ID: i32 = 4095;
/// Characters of the hash behind a cut name: 40 bits.
const HASH_CHARS: usize = 10;

/// Names of one service's children.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    base: String,
}

impl Names {
    /// Names for the service called `service`.
    pub fn new(service: &str) -> Self {
        Self {
            base: fit(service, MAX_SERVICE_NAME),
        }
    }

    /// The service's name as it stands in its children's names and labels.
    pub fn service(&self) -> &str {
        &self.base
    }

    /// Headless Service through which the ranks of all groups find each other. Never used for requests.
    pub fn ranks_service(&self) -> String {
        self.with("ranks")
    }

    /// Headless Service of the leading pods that are ready: where the gateway finds engines.
    pub fn engine_service(&self) -> String {
        self.with("engines")
    }

    /// Headless Service of all pods, through which a ServiceMonitor finds their metrics.
    pub fn metrics_service(&self) -> String {
        self.with("metrics")
    }

    /// The gateway's Deployment, Service, ServiceAccount, Role, Ingress, HTTPRoute and disruption budget.
    pub fn gateway(&self) -> String {
        self.with("gateway")
    }

    /// The gateway's configuration.
    pub fn gateway_config(&self) -> String {
        self.with("gateway-config")
    }

    /// Seed of the tenants' cache salts, known to the gateway only.
    pub fn gateway_secret(&self) -> String {
        self.with("gateway-salt")
    }

    /// The engines' ServiceAccount.
    pub fn engine_account(&self) -> String {
        self.with("engine")
    }

    /// Certificates that all pods of the service trust: a Secret, and beside an HTTPRoute a ConfigMap too.
    pub fn trust_bundle(&self) -> String {
        self.with("trust")
    }

    /// Key pair of the service's certificate authority.
    pub fn authority(&self) -> String {
        self.with("authority")
    }

    /// The gateway's certificate.
    pub fn gateway_certificate(&self) -> String {
        self.with("gateway-tls")
    }

    /// What cert-manager makes for the gateway.
    pub fn gateway_issued(&self) -> String {
        self.with("gateway-issued")
    }

    /// What the operator presents itself with, where cert-manager makes the certificates.
    pub fn operator_certificate(&self) -> String {
        self.with("operator-tls")
    }

    /// A network policy, by what it allows.
    pub fn policy(&self, what: &str) -> String {
        self.with(what)
    }

    /// A kept revision of the spec, by its hash.
    pub fn revision(&self, hash: &str) -> String {
        self.with(&format!("revision-{hash}"))
    }

    /// The hash in the name of a kept revision; nothing for any other name.
    pub fn revision_hash<'a>(&self, name: &'a str) -> Option<&'a str> {
        name.strip_prefix(&self.base)?.strip_prefix("-revision-")
    }

    /// A group's StatefulSet, disruption budget and rank policy.
    pub fn group(&self, id: i32) -> String {
        self.with(&format!("g{id}"))
    }

    /// A group's configuration.
    pub fn group_config(&self, id: i32) -> String {
        self.with(&format!("g{id}-settings"))
    }

    /// A group's certificate.
    pub fn group_certificate(&self, id: i32) -> String {
        self.with(&format!("g{id}-certificate"))
    }

    /// What cert-manager makes for a group.
    pub fn group_issued(&self, id: i32) -> String {
        self.with(&format!("g{id}-issued"))
    }

    /// The id of the group that cert-manager makes a certificate of that name for.
    pub fn group_of_issued(&self, name: &str) -> Option<i32> {
        self.group_id(name.strip_suffix("-issued")?)
    }

    /// The id of the group whose certificate has that name.
    pub fn group_of_certificate(&self, name: &str) -> Option<i32> {
        self.group_id(name.strip_suffix("-certificate")?)
    }

    /// Whether a Secret of that name is one of the service's own that its pods mount.
    pub fn is_pods_secret(&self, name: &str) -> bool {
        name == self.gateway_secret()
            || name == self.gateway_certificate()
            || self.group_of_certificate(name).is_some()
    }

    /// A group's pod.
    pub fn pod(&self, id: i32, ordinal: i32) -> String {
        format!("{}-{ordinal}", self.group(id))
    }

    /// Where the ranks of a group find rank 0. Fully qualified with a trailing dot, so that no search list is walked.
    pub fn rendezvous(&self, id: i32, namespace: &str, cluster_domain: &str, port: i32) -> String {
        format!(
            "{}.{}.{namespace}.svc.{}.:{port}",
            self.pod(id, 0),
            self.ranks_service(),
            cluster_domain.trim_matches('.')
        )
    }

    /// Name of a Service as clients in the cluster use it.
    pub fn dns(service: &str, namespace: &str) -> String {
        format!("{service}.{namespace}.svc")
    }

    /// The id of the group whose StatefulSet is called `name`.
    pub fn group_id(&self, name: &str) -> Option<i32> {
        let digits = name.strip_prefix(&self.base)?.strip_prefix("-g")?;
        let id: i32 = digits.parse().ok()?;
        // "g07" and "g+7" would be second names of group 7.
        (id.to_string() == digits && (0..=MAX_GROUP_ID).contains(&id)).then_some(id)
    }

    fn with(&self, suffix: &str) -> String {
        format!("{}-{suffix}", self.base)
    }
}

/// `name` made at most `limit` characters long and RFC 1035: a name that is cut or changed ends in a hash of the original.
pub fn fit(name: &str, limit: usize) -> String {
    if name.len() <= limit && is_rfc_1035(name) {
        return name.to_owned();
    }
    let keep = limit.saturating_sub(HASH_CHARS + 1);
    let mut out: String = name
        .chars()
        .map(|c| c.to_ascii_lowercase())
        .map(|c| {
            if c.is_ascii_lowercase() || c.is_ascii_digit() {
                c
            } else {
                '-'
            }
        })
        .take(keep)
        .collect();
    if !out.starts_with(|c: char| c.is_ascii_lowercase()) {
        out.insert(0, 'k');
        out.truncate(keep.max(1));
    }
    out.push('-');
    out.push_str(&short_hash(name.as_bytes()));
    out
}

/// Ten hexadecimal characters of the SHA-256 of `bytes`.
pub fn short_hash(bytes: &[u8]) -> String {
    const DIGITS: [char; 16] = [
        '0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'a', 'b', 'c', 'd', 'e', 'f',
    ];
    Sha256::digest(bytes)
        .iter()
        .flat_map(|byte| [byte >> 4, byte & 15])
        .take(HASH_CHARS)
        .map(|nibble| DIGITS[usize::from(nibble)])
        .collect()
}

/// Whether `name` can be the name of a Service.
pub fn is_rfc_1035(name: &str) -> bool {
    name.len() <= 63
        && name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.ends_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit())
        && name
            .chars()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
}
