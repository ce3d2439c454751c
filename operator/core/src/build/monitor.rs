//! What Prometheus scrapes, where its operator is installed.

use kvasir_operator_api::labels;
use serde_json::json;

use super::meta;
use crate::child::{Child, Kind};
use crate::settings::Settings;
use crate::validate::Validated;

/// The PodMonitor of engines and gateway, where one is wanted and the cluster knows the kind. All of their pods name the port
/// `metrics`, so one monitor finds them.
pub fn pods(service: &Validated, settings: &Settings) -> Option<Child> {
    let spec = &service.spec.observability;
    if !spec.pod_monitor || !settings.known_kinds.contains(&Kind::PodMonitor) {
        return None;
    }
    let name = service.names.service();
    let mut metadata = meta::of_service(service, name);
    let own = metadata.labels.take().unwrap_or_default();
    // Ours win: they are how the operator finds its children again.
    metadata.labels = Some(spec.labels.clone().into_iter().chain(own).collect());
    let object = json!({
        "apiVersion": Kind::PodMonitor.api_version(),
        "kind": Kind::PodMonitor.to_string(),
        "metadata": metadata,
        "spec": {
            "selector": { "matchLabels": { labels::SERVICE: name } },
            "podTargetLabels": [labels::GROUP],
            "podMetricsEndpoints": [{ "port": "metrics" }],
        },
    });
    Some(Child::from_value(Kind::PodMonitor, name, object, None))
}
