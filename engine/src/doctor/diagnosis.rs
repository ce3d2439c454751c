//! From two looks to a diagnosis.

use super::finding::{Diagnosis, Finding, Measure, State, Unit, Verdict};
use super::places;
use super::snapshot::Window;

/// Without a step for this long although there is work, nothing else matters. The slowest steps of small machines take a few seconds.
const STALLED_SECONDS: f64 = 20.0;

/// Looks at all places, and names the first one that holds the server back. `unhealthy` is what its probes complain of.
pub(crate) fn diagnose(window: &Window<'_>, unhealthy: Option<String>) -> Diagnosis {
    let findings = vec![
        places::kv_cache(window),
        places::limits(window),
        places::scheduling(window),
        places::topology(window),
        places::prefix_cache(window),
    ];
    let state = state(window, &findings, unhealthy.or_else(|| stalled(window)));
    Diagnosis {
        summary: summary(window, &state, &findings),
        state,
        times: times(window),
        findings,
    }
}

fn stalled(window: &Window<'_>) -> Option<String> {
    let seconds = window
        .after
        .stalled_seconds
        .filter(|seconds| *seconds >= STALLED_SECONDS)?;
    Some(format!(
        "the engine has work and completed no step for {seconds:.0} s; its log says what it does"
    ))
}

fn state(window: &Window<'_>, findings: &[Finding], unhealthy: Option<String>) -> State {
    if let Some(what) = unhealthy {
        return State::Unhealthy(what);
    }
    let first = |verdict| findings.iter().find(|finding| finding.verdict == verdict);
    if let Some(finding) = first(Verdict::Holds) {
        return State::HeldBack(finding.place);
    }
    if window.is_idle() {
        return State::Idle;
    }
    if !window.is_queueing() {
        return State::Healthy;
    }
    first(Verdict::Suspected).map_or(State::Computing, |finding| State::HeldBack(finding.place))
}

fn summary(window: &Window<'_>, state: &State, findings: &[Finding]) -> String {
    match state {
        State::Unhealthy(what) => format!("The server isn't healthy: {what}."),
        State::Idle => {
            "The server is idle: nothing runs, nothing waits. Ask again while it is in use.".to_owned()
        }
        State::Healthy => "The server is healthy: nobody waits for it.".to_owned(),
        State::HeldBack(place) => {
            let found = findings.iter().find(|finding| finding.place == *place);
            found.map_or(String::new(), |found| {
                let likely = if found.verdict == Verdict::Suspected {
                    "Probably "
                } else {
                    ""
                };
                format!(
                    "{likely}{}: {} {}",
                    place.title(),
                    found.explanation,
                    found.advice
                )
            })
        }
        State::Computing => {
            let waiting = window.low(|look| look.waiting).unwrap_or(0.0);
            let hint = if window.steps().is_some_and(|steps| steps < 1.0) {
                " No step ended between the two looks: a longer --interval shows more."
            } else {
                ""
            };
            format!(
                "{waiting:.0} requests wait and no limit is to blame: the model's own computation takes the time. More or faster \
                 cores, a smaller or more quantized model, or more replicas help.{hint}"
            )
        }
    }
}

/// Where the time of requests and steps goes; what is unknown is left out.
fn times(window: &Window<'_>) -> Vec<Measure> {
    let seconds = |name, value| Measure::new(name, value, Unit::Seconds);
    let all = [
        seconds("queue", window.mean(|look| &look.queue_seconds)),
        seconds("prefill", window.mean(|look| &look.prefill_seconds)),
        seconds("first token", window.mean(|look| &look.first_token_seconds)),
        seconds("between tokens", window.mean(|look| &look.inter_token_seconds)),
        seconds("step", window.mean(|look| &look.execute)),
        Measure::new(
            "steps",
            window.steps().map(|steps| steps / window.seconds),
            Unit::PerSecond,
        ),
        Measure::new(
            "output tokens",
            window.rate(|look| look.generation_tokens),
            Unit::PerSecond,
        ),
        Measure::new("refused", window.rate(|look| look.rejections), Unit::PerSecond),
    ];
    let known = |measure: &Measure| measure.value.is_some();
    all.into_iter().filter(known).collect()
}
