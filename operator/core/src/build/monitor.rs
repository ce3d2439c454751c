//! What Prometheus scrapes and warns about, where its operator is installed.

use kvasir_operator_api::labels;
use kvasir_operator_api::names::Names;
use serde_json::json;

use super::{meta, services};
use crate::child::{Child, Kind};
use crate::settings::Settings;
use crate::sharing;
use crate::validate::Validated;

/// The monitor of engines and gateway, where one is wanted and the cluster knows the kind: a ServiceMonitor with the Service that it needs,
/// or a PodMonitor. Never both, because whoever adds up what Prometheus has would count everything twice. All pods name the port `metrics`,
/// so one monitor finds them.
pub fn scraped(service: &Validated, settings: &Settings) -> Vec<Child> {
    let spec = &service.spec.observability;
    let known = |kind: Kind| settings.known_kinds.contains(&kind);
    if spec.service_monitor && known(Kind::ServiceMonitor) {
        return vec![services::metrics(service), service_monitor(service)];
    }
    if spec.pod_monitor && known(Kind::PodMonitor) {
        return vec![pod_monitor(service)];
    }
    Vec::new()
}

fn pod_monitor(service: &Validated) -> Child {
    let spec = json!({
        "selector": { "matchLabels": { labels::SERVICE: service.names.service() } },
        "podTargetLabels": [labels::GROUP],
        "podMetricsEndpoints": [{ "port": services::METRICS }],
    });
    child(service, Kind::PodMonitor, &spec)
}

fn service_monitor(service: &Validated) -> Child {
    let spec = json!({
        "selector": { "matchLabels": labels::of_component(service.names.service(), services::METRICS) },
        "podTargetLabels": [labels::GROUP],
        "endpoints": [{ "port": services::METRICS }],
    });
    child(service, Kind::ServiceMonitor, &spec)
}

/// Warnings about this service's load, where they are wanted and the cluster knows the kind. What the operator knows of a service
/// (restarts, certificates, policies) is warned about by the rules of its chart.
pub fn rules(service: &Validated, settings: &Settings) -> Option<Child> {
    let wanted = service.spec.observability.rules && settings.known_kinds.contains(&Kind::PrometheusRule);
    let model = service.model_name();
    let of_service = format!(
        "namespace=\"{}\",model_name=\"{}\"",
        service.namespace,
        in_quotes(model)
    );
    let slow = |histogram: &str, seconds: f64| {
        format!(
            "histogram_quantile(0.95, sum by (le) (rate(vllm:{histogram}_bucket{{{of_service}}}[10m]))) > {seconds}"
        )
    };
    let rule = |name: &str, expr: String, summary: &str| {
        json!({
            "alert": name,
            "expr": expr,
            "for": "10m",
            "labels": { "severity": "warning", "namespace": service.namespace, "service": service.name },
            "annotations": { "summary": format!("{}: {summary}", in_template(model)) },
        })
    };
    // Engines hold few waiting requests; the others wait in the gateway.
    let of_gateway = of_gateway(service);
    let full = format!(
        "max(vllm:kv_cache_usage_perc{{{of_service}}}) > {KV_USAGE} and (sum(vllm:num_requests_waiting{{{of_service}}}) > 0 or \
         sum(kvasir_gateway_waiting_requests{{{of_gateway}}}) > 0)"
    );
    let spec = json!({ "groups": [{
        "name": format!("{}/{}", service.namespace, service.name),
        "rules": [
            rule("KvasirTimeToFirstTokenHigh", slow("time_to_first_token_seconds", TTFT_SECONDS), "first tokens are slow"),
            rule("KvasirInterTokenLatencyHigh", slow("inter_token_latency_seconds", ITL_SECONDS), "tokens are slow"),
            rule("KvasirKVCacheFull", full, "the KV cache is full and requests wait"),
        ],
    }] });
    wanted.then(|| child(service, Kind::PrometheusRule, &spec))
}

/// Where a gateway counts this service's requests. Those of its own model bear no name there, those of a guest's do.
fn of_gateway(service: &Validated) -> String {
    let (gateway, model) = match sharing::reference(&service.spec) {
        Some(host) => (Names::new(host).gateway(), in_quotes(service.model_name())),
        None => (service.names.gateway(), String::new()),
    };
    format!(
        "namespace=\"{}\",pod=~\"{gateway}-.*\",model_name=\"{model}\"",
        service.namespace
    )
}

/// A text as it stands between double quotes of an expression: a name that a user chose must not become a part of it.
fn in_quotes(text: &str) -> String {
    let escaped = text.replace('\\', "\\\\").replace('"', "\\\"");
    escaped.replace('\n', "\\n")
}

/// A text as it stands in an annotation, which is a template: one that a user wrote could read the figures of others.
fn in_template(text: &str) -> String {
    text.replace("{{", "{{ `{{` }}")
}

/// Objectives, as the chart's rules have them by default.
const TTFT_SECONDS: f64 = 5.0;
const ITL_SECONDS: f64 = 0.5;
const KV_USAGE: f64 = 0.9;

fn child(service: &Validated, kind: Kind, spec: &serde_json::Value) -> Child {
    let name = service.names.service();
    let mut metadata = meta::of_service(service, name);
    let own = metadata.labels.take().unwrap_or_default();
    let given = service.spec.observability.labels.clone();
    // Ours win: they are how the operator finds its children again.
    metadata.labels = Some(given.into_iter().chain(own).collect());
    Child::of_spec(kind, &metadata, spec)
}
