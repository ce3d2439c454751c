//! What the cluster is: its version, and kinds that not every cluster knows.

use std::collections::BTreeSet;

use kube::Client;
use kvasir_operator_core::child::Kind;

use crate::kinds;
use crate::watch::chain;

/// Oldest Kubernetes 1.x whose API has all that is used: selectable fields of custom resources.
const OLDEST_MINOR: u32 = 31;

/// The cluster can't be worked with.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// It doesn't answer.
    #[error("can't ask the API server {what}: {}", chain(source))]
    Ask {
        /// For what.
        what: &'static str,
        /// What went wrong.
        source: kube::Error,
    },
    /// It is too old.
    #[error(
        "the API server is version {major}.{minor}, and at least 1.{OLDEST_MINOR} is needed: upgrade the cluster"
    )]
    Old {
        /// Its major version.
        major: String,
        /// Its minor version.
        minor: String,
    },
    /// It doesn't know our kind.
    #[error(
        "the cluster doesn't know InferenceServices (kvasir.dev/v1alpha1): run `kvasir-operator crd | kubectl apply --server-side -f -`"
    )]
    NoDefinition,
}

/// Checks the cluster's version and that it knows our kind.
pub(crate) async fn check(client: &Client) -> Result<(), ClusterError> {
    let version = client.apiserver_version().await;
    let version = version.map_err(|source| ClusterError::Ask {
        what: "for its version",
        source,
    })?;
    if is_too_old(&version.major, &version.minor) {
        return Err(ClusterError::Old {
            major: version.major,
            minor: version.minor,
        });
    }
    if has(client, "kvasir.dev/v1alpha1", "InferenceService").await? {
        Ok(())
    } else {
        Err(ClusterError::NoDefinition)
    }
}

/// Minor versions carry a plus sign on some clouds. What can't be read isn't refused.
fn is_too_old(major: &str, minor: &str) -> bool {
    let digits: String = minor.chars().take_while(char::is_ascii_digit).collect();
    major == "1" && digits.parse::<u32>().is_ok_and(|minor| minor < OLDEST_MINOR)
}

/// The kinds beyond Kubernetes' own that the cluster knows.
pub(crate) async fn known_kinds(client: &Client) -> Result<BTreeSet<Kind>, ClusterError> {
    let mut known = BTreeSet::new();
    for kind in Kind::ALL.into_iter().filter(|kind| !kind.is_native()) {
        let resource = kinds::resource(kind);
        if has(client, &resource.api_version, &resource.kind).await? {
            known.insert(kind);
        }
    }
    Ok(known)
}

async fn has(client: &Client, api_version: &str, kind: &str) -> Result<bool, ClusterError> {
    match client.list_api_group_resources(api_version).await {
        Ok(list) => Ok(list.resources.iter().any(|resource| resource.kind == kind)),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(false),
        Err(source) => Err(ClusterError::Ask {
            what: "which kinds it knows",
            source,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_versions_are_refused_and_odd_ones_are_not() {
        for (minor, old) in [
            ("30", true),
            ("30+", true),
            ("31", false),
            ("34+", false),
            ("", false),
        ] {
            assert_eq!(is_too_old("1", minor), old, "{minor}");
        }
        assert!(!is_too_old("2", "0"));
    }
}
