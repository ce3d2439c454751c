//! How long a step takes.
//!
//! Five numbers that a person can read. The time of a step grows with the weights that are read once for all rows (`step`), with the rows that
//! prompts and decodes bring, and with the KV positions that attention reads. Steps that overlap on a device are no part of it: steps run one
//! after the other, and with two in flight only the host's time is hidden behind the device's.

use std::fmt;
use std::str::FromStr;

use kvasir_engine_core::StepPlan;
use serde::{Deserialize, Serialize};

use crate::workload::Shown;

/// What the time of a step depends on.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct StepShape {
    /// Input tokens of prompts, and of outputs that are computed again after a preemption.
    pub prefill_tokens: u64,
    /// Sequences that compute the token they sampled last.
    pub decode_seqs: u64,
    /// KV positions that attention reads: a token at position `p` reads `p + 1`.
    pub context_tokens: u64,
}

impl StepShape {
    /// Of a plan.
    pub fn of(plan: &StepPlan) -> Self {
        let mut shape = Self::default();
        for part in &plan.seqs {
            let (first, len) = (u64::from(part.first_position), part.tokens.len() as u64);
            if len == 1 && part.samples && part.output_index > 0 {
                shape.decode_seqs += 1;
            } else {
                shape.prefill_tokens += len;
            }
            shape.context_tokens += first * len + len * (len + 1) / 2;
        }
        shape
    }
}

/// Seconds for each part of a step. Every value is finite and at least 0, and some step takes time.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct CostModel {
    /// Each step, whatever is in it: weights are read, threads are woken.
    pub step: f64,
    /// Each prompt token.
    pub prefill_token: f64,
    /// Each decoding sequence.
    pub decode_seq: f64,
    /// Each KV position that attention reads.
    pub context_token: f64,
    /// The host's work between two steps (planning, delivery), which two steps in flight hide.
    #[serde(default)]
    pub host: f64,
}

/// No step is taken to be shorter: virtual time has to pass.
pub const MIN_STEP_SECONDS: f64 = 1e-6;

/// A part of a step that takes longer than an hour is a slip of the pen.
const MAX_PART_SECONDS: f64 = 3600.0;

/// Coefficients that can't be used.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum CostError {
    /// One of them is no time.
    #[error("{name} is {} s; it must be a number from 0 to {MAX_PART_SECONDS} s", Shown(*value))]
    OutOfRange {
        /// The coefficient.
        name: &'static str,
        /// What was given.
        value: f64,
    },
    /// Nothing takes any time.
    #[error(
        "every coefficient of the cost model is 0; give at least one of step, prefill_token, decode_seq and context_token a time"
    )]
    Free,
    /// A text that names no coefficient.
    #[error(
        "{text:?} is no part of a cost model; write step=SECONDS,prefill_token=SECONDS,decode_seq=SECONDS,context_token=SECONDS,host=SECONDS"
    )]
    Syntax {
        /// What was given.
        text: String,
    },
}

impl CostModel {
    /// SmolLM2-135M-Instruct (Q4_1) on 2 cores of an Intel Xeon; `e2e/bench/README.md` says how it was measured.
    pub const DEFAULT: Self = Self {
        step: 0.005_0,
        prefill_token: 0.001_08,
        decode_seq: 0.001_85,
        context_token: 0.000_001_04,
        host: 0.0,
    };

    /// Seconds from the start of a step to its end, without the host's part.
    pub fn step_seconds(&self, shape: StepShape) -> f64 {
        self.step
            + self.prefill_token * shape.prefill_tokens as f64
            + self.decode_seq * shape.decode_seqs as f64
            + self.context_token * shape.context_tokens as f64
    }

    /// Checks the values.
    ///
    /// # Errors
    /// The first one that is no time, or if nothing takes time.
    pub fn validate(&self) -> Result<(), CostError> {
        for (name, value) in self.parts() {
            if !(0.0..=MAX_PART_SECONDS).contains(&value) {
                return Err(CostError::OutOfRange { name, value });
            }
        }
        if self.parts()[..4].iter().all(|(_, value)| *value == 0.0) {
            return Err(CostError::Free);
        }
        Ok(())
    }

    fn parts(&self) -> [(&'static str, f64); 5] {
        let Self {
            step,
            prefill_token,
            decode_seq,
            context_token,
            host,
        } = *self;
        [
            ("step", step),
            ("prefill_token", prefill_token),
            ("decode_seq", decode_seq),
            ("context_token", context_token),
            ("host", host),
        ]
    }
}

/// What [`FromStr`] reads.
impl fmt::Display for CostModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (name, value)) in self.parts().into_iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            write!(f, "{comma}{name}={value:e}")?;
        }
        Ok(())
    }
}

/// `step=7e-3,prefill_token=1.7e-3`, in any order; what isn't named is 0.
impl FromStr for CostModel {
    type Err = CostError;

    fn from_str(text: &str) -> Result<Self, CostError> {
        let mut cost = Self {
            step: 0.0,
            prefill_token: 0.0,
            decode_seq: 0.0,
            context_token: 0.0,
            host: 0.0,
        };
        for part in text.split(',') {
            let syntax = || CostError::Syntax {
                text: part.to_owned(),
            };
            let (name, value) = part.split_once('=').ok_or_else(syntax)?;
            let place = match name.trim() {
                "step" => &mut cost.step,
                "prefill_token" => &mut cost.prefill_token,
                "decode_seq" => &mut cost.decode_seq,
                "context_token" => &mut cost.context_token,
                "host" => &mut cost.host,
                _ => return Err(syntax()),
            };
            *place = value.trim().parse().map_err(|_| syntax())?;
        }
        cost.validate()?;
        Ok(cost)
    }
}

#[cfg(test)]
mod tests {
    use kvasir_cache_key::CacheIdentity;
    use kvasir_engine_core::{Micros, Request, Scheduler, SchedulerConfig, StepOutcome, StopConditions};

    use super::*;

    fn shapes_of(prompt_len: u32, budget: u32, max_tokens: u32) -> Vec<StepShape> {
        let mut scheduler = Scheduler::new(SchedulerConfig {
            max_num_batched_tokens: budget,
            max_num_seqs: 1,
            max_num_active_seqs: 1,
            max_model_len: 100,
            block_size: 4,
            num_blocks: 30,
            enable_prefix_caching: false,
            long_prefill_token_threshold: 0,
            max_num_queued_reqs: 1,
            max_num_queued_tokens: 100,
            ..SchedulerConfig::default()
        })
        .unwrap();
        let request = Request {
            prompt: (0..prompt_len).collect(),
            stop: StopConditions {
                max_tokens,
                ..StopConditions::default()
            },
            priority: 0,
            cache_root: CacheIdentity::default().root(),
            reads_prefix_cache: true,
        };
        scheduler.submit(Micros(0), request).unwrap();
        let (mut plan, mut events, mut shapes) = (StepPlan::new(), Vec::new(), Vec::new());
        while scheduler.schedule(Micros(0), &mut plan, &mut events) {
            shapes.push(StepShape::of(&plan));
            let sampled = plan.seqs.iter().filter(|part| part.samples);
            let sampled = sampled.map(|part| (part.seq, 1)).collect();
            scheduler
                .complete(plan.step, &StepOutcome { sampled }, &mut events)
                .unwrap();
        }
        shapes
    }

    #[test]
    fn chunks_of_a_prompt_are_prefill_and_later_tokens_are_decodes() {
        let shape = |prefill_tokens, decode_seqs, context_tokens| StepShape {
            prefill_tokens,
            decode_seqs,
            context_tokens,
        };
        // Positions 0..3 read 1 + 2 + 3, positions 3..5 read 4 + 5, and the decodes read 6 and 7.
        assert_eq!(
            shapes_of(5, 3, 3),
            [shape(3, 0, 6), shape(2, 0, 9), shape(0, 1, 6), shape(0, 1, 7)]
        );
    }

    #[test]
    fn a_last_chunk_of_one_token_is_prefill() {
        assert_eq!(
            shapes_of(4, 3, 1)[1],
            StepShape {
                prefill_tokens: 1,
                decode_seqs: 0,
                context_tokens: 4
            }
        );
    }

    #[test]
    fn a_step_costs_the_sum_of_its_parts() {
        let cost: CostModel = "step=1,prefill_token=0.1,decode_seq=0.01,context_token=0.001"
            .parse()
            .unwrap();
        let shape = StepShape {
            prefill_tokens: 2,
            decode_seqs: 3,
            context_tokens: 4,
        };
        assert!((cost.step_seconds(shape) - 1.234).abs() < 1e-12);
    }

    #[test]
    fn a_cost_model_reads_what_it_prints() {
        assert_eq!(CostModel::DEFAULT.to_string().parse(), Ok(CostModel::DEFAULT));
    }

    #[test]
    fn coefficients_that_are_no_times_are_refused_with_name_and_value() {
        for (text, name) in [
            ("step=-1", "step"),
            ("step=NaN", "step"),
            ("step=1,host=inf", "host"),
            ("decode_seq=1e9", "decode_seq"),
        ] {
            let error = text.parse::<CostModel>().unwrap_err();
            assert!(
                matches!(error, CostError::OutOfRange { name: found, .. } if found == name),
                "{error}"
            );
        }
        assert_eq!("step=0,host=1".parse::<CostModel>(), Err(CostError::Free));
        for text in ["", "step", "steps=1", "step=x", "step=1,"] {
            assert!(
                matches!(text.parse::<CostModel>(), Err(CostError::Syntax { .. })),
                "{text}"
            );
        }
    }
}
