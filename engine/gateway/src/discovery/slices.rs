//! What EndpointSlices (`discovery.k8s.io/v1`) say of engines.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use kvasir_gateway_core::routing::Revision;
use serde::Deserialize;

use super::{Target, TargetState, Targets};

/// Labels of slices, which they take over from their service.
const GROUP_LABEL: &str = "kvasir.dev/group";
const REVISION_LABEL: &str = "kvasir.dev/revision";

/// A list of slices.
#[derive(Debug, Deserialize)]
pub(super) struct SliceList {
    /// Always there: an answer without it is no list, and must not empty the one that is known.
    pub(super) metadata: Metadata,
    #[serde(default)]
    pub(super) items: Vec<Slice>,
}

/// A line of a watch.
#[derive(Debug, Deserialize)]
pub(super) struct Event {
    #[serde(rename = "type")]
    pub(super) kind: String,
    pub(super) object: serde_json::Value,
}

/// A part of a service's endpoints.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Slice {
    #[serde(default)]
    pub(super) metadata: Metadata,
    #[serde(default)]
    endpoints: Option<Vec<Endpoint>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Metadata {
    #[serde(default)]
    pub(super) name: String,
    #[serde(default)]
    pub(super) resource_version: String,
    #[serde(default)]
    labels: BTreeMap<String, String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Endpoint {
    #[serde(default)]
    addresses: Vec<String>,
    #[serde(default)]
    conditions: Conditions,
    target_ref: Option<Reference>,
}

/// Absent ones mean ready and not terminating, as the API says.
#[derive(Debug, Default, Deserialize)]
struct Conditions {
    ready: Option<bool>,
    serving: Option<bool>,
    terminating: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
struct Reference {
    #[serde(default)]
    kind: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    uid: String,
}

/// All slices of a service.
#[derive(Debug, Default)]
pub(super) struct Slices(BTreeMap<String, Slice>);

impl Slices {
    pub(super) fn replace(&mut self, items: Vec<Slice>) {
        self.0 = items
            .into_iter()
            .map(|slice| (slice.metadata.name.clone(), slice))
            .collect();
    }

    pub(super) fn put(&mut self, slice: Slice) {
        self.0.insert(slice.metadata.name.clone(), slice);
    }

    pub(super) fn remove(&mut self, name: &str) {
        self.0.remove(name);
    }

    pub(super) fn targets(&self, port: u16) -> Targets {
        Targets::new(self.0.values().flat_map(|slice| slice.targets(port)))
    }
}

impl Slice {
    fn targets(&self, port: u16) -> impl Iterator<Item = Target> + '_ {
        let label = |name: &str| {
            self.metadata
                .labels
                .get(name)
                .map(|value| Arc::from(value.as_str()))
        };
        let (group, revision) = (label(GROUP_LABEL), label(REVISION_LABEL).map(Revision));
        self.endpoints.iter().flatten().flat_map(move |endpoint| {
            let (group, revision) = (group.clone(), revision.clone());
            // Names come from other services; pods have addresses.
            let addresses = endpoint
                .addresses
                .iter()
                .filter_map(|text| text.parse::<IpAddr>().ok());
            let pod = endpoint.target_ref.as_ref().filter(|of| of.kind == "Pod");
            let text = |text: Option<&String>| {
                text.filter(|text| !text.is_empty())
                    .map(|text| Arc::from(text.as_str()))
            };
            addresses.map(move |address| Target {
                address: SocketAddr::new(address, port),
                pod_uid: text(pod.map(|pod| &pod.uid)),
                pod_name: text(pod.map(|pod| &pod.name)),
                group: group.clone(),
                revision: revision.clone(),
                state: endpoint.conditions.state(),
            })
        })
    }
}

impl Conditions {
    /// `ready` is also true for pods that aren't, where the service publishes them; `serving` is the pod's own word.
    fn state(&self) -> TargetState {
        let ready = self.ready.unwrap_or(true);
        if self.terminating.unwrap_or(false) {
            TargetState::Draining
        } else if ready && self.serving.unwrap_or(ready) {
            TargetState::Ready
        } else {
            TargetState::NotReady
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn targets(slice: serde_json::Value) -> Vec<Target> {
        let slice: Slice = serde_json::from_value(slice).unwrap();
        slice.targets(50_051).collect()
    }

    #[test]
    fn a_pod_is_known_by_its_uid_and_the_labels_of_its_slice() {
        let found = targets(serde_json::json!({
            "metadata": {"name": "a", "labels": {"kvasir.dev/group": "chat-3", "kvasir.dev/revision": "r1", "x": "y"}},
            "addressType": "IPv4",
            "endpoints": [{
                "addresses": ["10.1.2.3"],
                "conditions": {"ready": true, "serving": true, "terminating": false},
                "targetRef": {"kind": "Pod", "name": "chat-3-0", "uid": "u-1", "namespace": "a"},
                "nodeName": "n",
            }],
            "ports": [{"port": 1}],
        }));
        let expected = Target {
            address: "10.1.2.3:50051".parse().unwrap(),
            pod_uid: Some("u-1".into()),
            pod_name: Some("chat-3-0".into()),
            group: Some("chat-3".into()),
            revision: Some(Revision("r1".into())),
            state: TargetState::Ready,
        };
        assert_eq!(found, [expected]);
    }

    #[test]
    fn conditions_decide_whether_an_engine_is_ready_or_drains() {
        for (conditions, state) in [
            (r"{}", TargetState::Ready),
            (r#"{"ready": true}"#, TargetState::Ready),
            (r#"{"ready": false}"#, TargetState::NotReady),
            (r#"{"ready": true, "serving": false}"#, TargetState::NotReady),
            (
                r#"{"ready": false, "serving": true, "terminating": true}"#,
                TargetState::Draining,
            ),
            (
                r#"{"ready": false, "serving": false, "terminating": true}"#,
                TargetState::Draining,
            ),
        ] {
            let parsed: Conditions = serde_json::from_str(conditions).unwrap();
            assert_eq!(parsed.state(), state, "{conditions}");
        }
    }

    #[test]
    fn what_is_missing_or_strange_does_no_harm() {
        assert_eq!(
            targets(serde_json::json!({"metadata": {"name": "a"}, "endpoints": null})),
            []
        );
        assert_eq!(
            targets(serde_json::json!({"endpoints": [{"addresses": ["example.com"]}]})),
            []
        );
        let found = targets(serde_json::json!({
            "endpoints": [{"addresses": ["fd00::1"], "targetRef": {"kind": "Node", "uid": "n"}}],
        }));
        assert_eq!(found, [Target::at("[fd00::1]:50051".parse().unwrap())]);
    }
}
