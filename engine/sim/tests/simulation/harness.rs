//! A server like the default one, and short ways to play a workload on it.

use kvasir_sim::{Arrivals, Engines, Objectives, Pause, Report, Span, Synthetic, Workload, simulate};

pub(crate) fn engines() -> Engines {
    Engines::default()
}

pub(crate) fn synthetic(synthetic: Synthetic) -> Workload {
    Workload::Synthetic(synthetic)
}

pub(crate) fn clients(count: u32, prompts: &str, outputs: &str) -> Workload {
    synthetic(Synthetic {
        arrivals: Arrivals::Clients {
            count,
            pause: Pause::Fixed(0.0),
            ramp_seconds: 0.0,
        },
        prompts: prompts.parse().unwrap(),
        outputs: outputs.parse().unwrap(),
        ..Synthetic::default()
    })
}

pub(crate) fn rate(per_second: f64, prompts: &str, outputs: &str) -> Workload {
    synthetic(Synthetic {
        arrivals: Arrivals::Rate {
            per_second,
            burstiness: 1.0,
        },
        prompts: prompts.parse().unwrap(),
        outputs: outputs.parse().unwrap(),
        ..Synthetic::default()
    })
}

/// Plays so many requests to their end, without objectives.
pub(crate) fn play(engines: &Engines, workload: &Workload, num_requests: u64) -> Report {
    let span = Span {
        num_requests: Some(num_requests),
        ..Span::default()
    };
    simulate(engines, workload, &span, &Objectives::default()).unwrap()
}
