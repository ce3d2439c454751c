//! The scheduler's limits, for whoever compares the load with them.

use std::fmt;

use kvasir_client::types::ModelInfo;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;

/// Constants of the engine. One that the engine doesn't tell is absent.
#[derive(Debug)]
pub(super) struct Limits {
    gauges: Vec<(&'static str, &'static str, u32)>,
}

impl Limits {
    pub(super) fn new(info: &ModelInfo) -> Self {
        let detail = |name: &str| info.details.get(name).and_then(|value| value.parse().ok());
        let cap = detail("max_num_active_seqs").or((info.max_num_seqs > 0).then_some(info.max_num_seqs));
        let gauges = [
            ("kvasir_max_num_seqs", "Most sequences that run at one time", cap),
            (
                "kvasir_max_num_batched_tokens",
                "Token budget of a step",
                detail("max_num_batched_tokens"),
            ),
        ];
        let known = |(name, help, value): (_, _, Option<u32>)| Some((name, help, value?));
        Self {
            gauges: gauges.into_iter().filter_map(known).collect(),
        }
    }
}

impl Collector for Limits {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for (name, help, value) in &self.gauges {
            let metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            ConstGauge::new(*value).encode(metric)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gauges(max_num_seqs: u32, details: &[(&str, &str)]) -> Vec<(&'static str, u32)> {
        let details = details
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let limits = Limits::new(&ModelInfo {
            max_num_seqs,
            details: details.collect(),
            ..ModelInfo::default()
        });
        limits
            .gauges
            .iter()
            .map(|(name, _, value)| (*name, *value))
            .collect()
    }

    #[test]
    fn the_cap_is_that_of_the_running_set() {
        let details = [("max_num_active_seqs", "4"), ("max_num_batched_tokens", "512")];
        assert_eq!(
            gauges(8, &details),
            [("kvasir_max_num_seqs", 4), ("kvasir_max_num_batched_tokens", 512)]
        );
        assert_eq!(gauges(8, &[]), [("kvasir_max_num_seqs", 8)]);
    }

    #[test]
    fn limits_that_the_engine_doesnt_tell_are_absent() {
        assert_eq!(gauges(0, &[("max_num_batched_tokens", "many")]), []);
    }
}
