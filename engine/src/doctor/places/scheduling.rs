//! Third: does the device wait for its host? A host without CPU time makes a fast device look slow.

use super::super::finding::{Finding, Measure, Place, Threshold, Unit, Verdict};
use super::super::snapshot::Window;

/// Share of the engine thread's time from which planning and delivering keep the device waiting.
const HOST_SHARE: f64 = 0.25;

/// Share of the time in which the process' threads were ready to run and had no CPU, from which others take too much of the machine.
const STARVED_SHARE: f64 = 0.3;

/// CPUs waited for on average below which a large share is a share of nothing.
const STARVED_CPUS: f64 = 0.1;

/// Looks at the time that the host takes for steps, and at the CPU time that it gets.
pub(crate) fn scheduling(window: &Window<'_>) -> Finding {
    let host = host_share(window);
    let starved = starved_share(window);
    let latency = mean_host_seconds(window);
    let cpu = window
        .rate(|look| look.cpu_seconds)
        .zip(window.after.cpus.filter(|cpus| *cpus > 0.0))
        .map(|(rate, cpus)| rate / cpus);
    let (verdict, explanation, advice) = if starved.is_some_and(|share| share >= STARVED_SHARE) {
        let share = 100.0 * starved.unwrap_or(0.0);
        (
            Verdict::Holds,
            format!(
                "The server's threads wait for a CPU in {share:.0} % of the time in which they could run: others use the machine, or a quota throttles them."
            ),
            "Give the server cores of its own (a higher CPU limit, fewer neighbours), or let --threads be what it really gets.",
        )
    } else if host.is_some_and(|share| share >= HOST_SHARE) {
        let share = 100.0 * host.unwrap_or(0.0);
        (
            Verdict::Holds,
            format!(
                "Planning steps and delivering their outputs takes {share:.0} % of the engine's time, while nothing is computed."
            ),
            "Let more requests share a step (--max-num-seqs), give the host faster cores, or use a larger model's step: the host's part is the same.",
        )
    } else if host.is_none() && starved.is_none() {
        (
            Verdict::Unknown,
            "The server doesn't tell how long its host takes for a step.".to_owned(),
            "",
        )
    } else {
        (
            Verdict::Fine,
            "Planning and delivering cost little, and the threads get the CPUs that they ask for.".to_owned(),
            "",
        )
    };
    Finding {
        place: Place::Scheduling,
        verdict,
        measured: vec![
            Measure::new("host per step", latency, Unit::Seconds),
            Measure::new("host's share", host, Unit::Share).with(Threshold::AtLeast(HOST_SHARE)),
            Measure::new("CPU in use", cpu, Unit::Share),
            Measure::new("waiting for a CPU", starved, Unit::Share).with(Threshold::AtLeast(STARVED_SHARE)),
        ],
        explanation,
        advice: advice.to_owned(),
    }
}

/// Seconds of the steps between the looks in which the engine's thread did something else than wait for the device.
fn host_seconds(window: &Window<'_>) -> Option<f64> {
    let parts = [
        window.spent(|look| &look.schedule),
        window.spent(|look| &look.launch),
        window.spent(|look| &look.complete),
        window.spent(|look| &look.deliver),
    ];
    parts.into_iter().sum()
}

fn mean_host_seconds(window: &Window<'_>) -> Option<f64> {
    let steps = window.added(|look| &look.schedule)?.count;
    (steps > 0.0).then_some(host_seconds(window)? / steps)
}

fn host_share(window: &Window<'_>) -> Option<f64> {
    let host = host_seconds(window)?;
    let all = host + window.spent(|look| &look.wait)?;
    (all > 0.0).then(|| host / all)
}

fn starved_share(window: &Window<'_>) -> Option<f64> {
    let used = window.growth(|look| look.cpu_seconds)?;
    let waited = window.growth(|look| look.cpu_wait_seconds)?;
    let is_much = waited / window.seconds >= STARVED_CPUS;
    // A process that has nothing to do may wait long for the little that it does.
    let matters = is_much && !window.is_idle();
    Some(if matters { waited / (used + waited) } else { 0.0 })
}
