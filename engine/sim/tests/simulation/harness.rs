//! A server like the default one, and short ways to play a workload on it.

use kvasir_engine_core::{Policies, SchedulerConfig};
use kvasir_sim::{
    Arrivals, CostModel, Engines, Objectives, Pause, Report, Span, Synthetic, Workload, simulate,
};

pub(crate) fn engines() -> Engines {
    Engines {
        limits: SchedulerConfig {
            max_num_batched_tokens: 2048,
            max_num_seqs: 128,
            max_num_active_seqs: 128,
            max_model_len: 8192,
            block_size: 16,
            num_blocks: 10_000,
            enable_prefix_caching: true,
            long_prefill_token_threshold: 0,
            max_num_queued_reqs: 1024,
            max_num_queued_tokens: 16 << 20,
            ..SchedulerConfig::default()
        },
        policies: Policies::serve(),
        cost: CostModel::DEFAULT,
        count: 1,
    }
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
