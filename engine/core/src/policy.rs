//! Which rules the scheduler follows, beside its limits. Each rule's law is stated in the module that follows it.

use crate::block::BlockEventDetail;
use crate::config::{ConfigError, SchedulerConfig};
use crate::ids::Micros;

/// Switches, all of them plain data. [`Policies::vllm`] has every one off, [`Policies::serve`] is for a server.
#[derive(Clone, Debug, Eq, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of its own")]
pub struct Policies {
    /// Steps that may be planned and not completed, 1 or more. From 2 on, plans hold [`PENDING_TOKEN`](crate::PENDING_TOKEN) where an
    /// input token is still being sampled.
    pub max_in_flight: u32,
    /// The order of the waiting queue, and with it who gives way when blocks run out.
    pub order: Order,
    /// Who gives way among sequences of the lowest class.
    pub victim: Victim,
    /// For how long others may pass a sequence that doesn't fit; `None`: not at all (S10).
    pub ageing_bound: Option<Micros>,
    /// Free blocks per running sequence and KV group that an admission must leave while a preempted sequence waits; 0 is off.
    pub readmission_reserve: u32,
    /// Free blocks that any admission beside running sequences must leave (S13).
    pub watermark: u32,
    /// Whether a waiting sequence of a higher class takes the place of a running one of a lower class.
    pub seat_preemption: bool,
    /// Whether tenants are admitted by least service, weighted, instead of by arrival.
    pub fair_share: bool,
    /// Raises the threshold for long prefills to an equal share of the budget (S4).
    pub adaptive_prefill_threshold: bool,
    /// Token budget without drafts (S3); `None`: as large as the input budget, `max_num_batched_tokens`.
    pub max_num_scheduled_tokens: Option<u32>,
    /// Draft positions that each sequence may add to the input of a step (S3, S5).
    pub draft_slots: u32,
    /// Adapters in the running set at one time (S9); `None`: any number.
    pub max_active_adapters: Option<u32>,
    /// Whether the sequences of a group share their prompt's blocks even without a prefix cache, with a copy of the last, partial one. Plans
    /// then hold [`copies`](crate::StepPlan::copies), which the executor must make before anything else.
    pub share_group_prompts: bool,
    /// What [`Scheduler::take_block_events`](crate::Scheduler::take_block_events) has to give, from the beginning on.
    pub block_events: BlockEventDetail,
}

/// The order of the waiting queue (S15).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Order {
    /// First come, first served; the preempted go first.
    Arrival,
    /// By priority (lower first), then arrival.
    Priority,
}

/// Who gives way when a running sequence needs a block.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Victim {
    /// The last one in the order: the one that started last, or the one of lowest priority that came last (S6).
    Last,
    /// The one with the fewest computed positions.
    CheapestToRestore,
}

impl Policies {
    /// vLLM's rules and nothing else.
    pub fn vllm() -> Self {
        Self {
            max_in_flight: 1,
            order: Order::Arrival,
            victim: Victim::Last,
            ageing_bound: None,
            readmission_reserve: 0,
            watermark: 0,
            seat_preemption: false,
            fair_share: false,
            adaptive_prefill_threshold: false,
            max_num_scheduled_tokens: None,
            draft_slots: 0,
            max_active_adapters: None,
            share_group_prompts: false,
            block_events: BlockEventDetail::Off,
        }
    }

    /// What a server runs with: small requests pass a large one for at most five seconds, and a preempted sequence resumes only beside one
    /// free block of each KV group for each running one.
    pub fn serve() -> Self {
        Self {
            ageing_bound: Some(Micros(5_000_000)),
            readmission_reserve: 1,
            ..Self::vllm()
        }
    }

    /// Checks the policies by themselves and against the limits.
    ///
    /// # Errors
    /// The first one that can't work.
    pub fn validate(&self, config: &SchedulerConfig) -> Result<(), ConfigError> {
        let scheduled = self.max_num_scheduled_tokens.unwrap_or(u32::MAX);
        let input = u64::from(config.max_num_batched_tokens);
        let at_least = [
            ("max_in_flight", u64::from(self.max_in_flight), 1),
            (
                "max_active_adapters",
                u64::from(self.max_active_adapters.unwrap_or(u32::MAX)),
                1,
            ),
            // Every running sequence can decode in every step.
            (
                "max_num_scheduled_tokens",
                u64::from(scheduled),
                u64::from(config.max_num_seqs),
            ),
            (
                "max_num_batched_tokens",
                input,
                u64::from(config.max_num_seqs) * (1 + u64::from(self.draft_slots)),
            ),
        ];
        for (name, value, min) in at_least {
            if value < min {
                return Err(ConfigError::TooSmall { name, value, min });
            }
        }
        if self.seat_preemption && self.order != Order::Priority {
            return Err(ConfigError::NeedsPriorityOrder {
                name: "seat_preemption",
            });
        }
        Ok(())
    }
}

impl Default for Policies {
    fn default() -> Self {
        Self::vllm()
    }
}
