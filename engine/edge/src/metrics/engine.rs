//! What an engine counts itself, for a process that has no edge.

use std::borrow::Cow;
use std::sync::{Arc, Mutex, PoisonError};

use kvasir_client::types::{LoadReport, ModelInfo};
use prometheus_client::encoding::prometheus_text;
use prometheus_client::registry::Registry;

use super::load::{self, LoadCollector};
use super::{cpu_wait, limits};

/// The figures of an engine: queues, KV usage, steps and process, with the names that they have at an edge. What clients experience is
/// counted where they connect.
#[derive(Debug)]
pub struct EngineMetrics {
    registry: Registry,
    load: Arc<Mutex<LoadReport>>,
}

impl EngineMetrics {
    /// The figures of an engine that serves a model under this name.
    pub fn new(model_name: &str, info: &ModelInfo) -> Self {
        let (mut registry, load) = (Registry::default(), Arc::default());
        register(&mut registry, &load, model_name, info);
        Self { registry, load }
    }

    /// All figures as text for Prometheus.
    pub fn render(&self, load: LoadReport) -> String {
        *self.load.lock().unwrap_or_else(PoisonError::into_inner) = load;
        let mut text = String::new();
        // Writing into a text doesn't fail; if a collector does, what came before it is still true.
        if let Err(error) = prometheus_text::encode(&mut text, &self.registry) {
            tracing::error!(%error, "figures can't be written");
        }
        text
    }
}

/// Registers them, and answers where figures with the labels of model and engine belong.
pub(super) fn register<'a>(
    root: &'a mut Registry,
    load: &Arc<Mutex<LoadReport>>,
    model_name: &str,
    info: &ModelInfo,
) -> &'a mut Registry {
    let model = (Cow::from("model_name"), Cow::from(model_name.to_owned()));
    root.sub_registry_with_labels([model.clone()].into_iter())
        .register_collector(Box::new(load::RejectionCollector(Arc::clone(load))));
    root.register_collector(Box::new(load::CacheConfig::new(info)));
    root.register_collector(Box::new(load::ProcessCollector));
    root.register_collector(Box::new(cpu_wait::CpuWait));
    let engine = (Cow::from("engine"), Cow::from("0"));
    let registry = root.sub_registry_with_labels([model, engine].into_iter());
    registry.register_collector(Box::new(LoadCollector(Arc::clone(load))));
    registry.register_collector(Box::new(limits::Limits::new(info)));
    registry
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_the_names_of_an_edge_and_follow_the_load() {
        let metrics = EngineMetrics::new("tiny", &ModelInfo::default());
        for num_running in [3, 5] {
            let text = metrics.render(LoadReport {
                num_running,
                ..LoadReport::default()
            });
            let line =
                format!("vllm:num_requests_running{{model_name=\"tiny\",engine=\"0\"}} {num_running}.0");
            assert!(text.lines().any(|other| other == line), "{line} not in\n{text}");
        }
    }
}
