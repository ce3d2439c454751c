//! Fourth: do ranks wait for each other? A larger parallel size adds collectives, and stages of a pipeline wait for the one before.

use super::super::finding::{Finding, Measure, Place, Threshold, Unit, Verdict};
use super::super::snapshot::{Server, Window};

/// Share of a step's execution from which waiting for other ranks costs more than they bring.
const WAITING_SHARE: f64 = 0.25;

/// Looks at the sizes of the topology and at the time spent waiting for other ranks.
pub(crate) fn topology(window: &Window<'_>) -> Finding {
    let ranks = window.after.ranks;
    let execute = window
        .spent(|look| &look.execute)
        .filter(|seconds| *seconds > 0.0);
    let share = |waited: Option<f64>| Some(waited? / execute?);
    let collective = share(window.spent(|look| &look.collective));
    let pipeline = share(window.spent(|look| &look.pipeline_wait));
    let is_much = |share: Option<f64>| share.is_some_and(|share| share >= WAITING_SHARE);
    let (verdict, explanation, advice) = if is_much(collective) {
        (
            Verdict::Holds,
            "Tensor parallel ranks spend their steps waiting for each other's sums.",
            "Use a smaller tensor parallel size, put the ranks on one node or on a faster link, or use the ranks as replicas.",
        )
    } else if is_much(pipeline) {
        (
            Verdict::Holds,
            "Pipeline stages spend their steps waiting for the stage before.",
            "Let more steps be in flight, balance the layers of the stages, or use a smaller pipeline parallel size.",
        )
    } else if ranks.is_some_and(|ranks| ranks.tensor > 1.0 || ranks.pipeline > 1.0) {
        match (collective, pipeline) {
            (None, None) => (
                Verdict::Unknown,
                "There are several ranks, and the server doesn't tell how long they wait for each other.",
                "",
            ),
            _ => (Verdict::Fine, "Ranks wait little for each other.", ""),
        }
    } else if ranks.is_none() && window.after.server == Server::Vllm {
        (
            Verdict::Unknown,
            "The server doesn't tell its topology, nor how long ranks wait for each other.",
            "",
        )
    } else {
        (Verdict::Fine, "One rank waits for nobody.", "")
    };
    let size = |of: fn(super::super::snapshot::Ranks) -> f64| match window.after.server {
        Server::Kvasir => Some(ranks.map_or(1.0, of)),
        Server::Vllm => ranks.map(of),
    };
    let mut measured = vec![
        Measure::new("tensor parallel", size(|ranks| ranks.tensor), Unit::Count),
        Measure::new("pipeline parallel", size(|ranks| ranks.pipeline), Unit::Count),
    ];
    let waits = [("collective wait", collective), ("pipeline wait", pipeline)];
    for (name, share) in waits.into_iter().filter(|(_, share)| share.is_some()) {
        measured.push(Measure::new(name, share, Unit::Share).with(Threshold::AtLeast(WAITING_SHARE)));
    }
    Finding {
        place: Place::Topology,
        verdict,
        measured,
        explanation: explanation.to_owned(),
        advice: advice.to_owned(),
    }
}
