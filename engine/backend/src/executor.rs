//! One model on one device (or group of devices), driven by plans.

use std::sync::Arc;

use kvasir_engine_core::{SeqId, StepId, StepPlan, TokenId};
use kvasir_sampling::{SamplingParams, TokenLogprobs};

/// Runs plans. All calls come from the scheduler's thread.
///
/// Sampling sits behind it so that logits never leave the device.
pub trait Executor: Send {
    /// Makes a sequence known before the first plan that names it.
    fn admit(&mut self, sequence: NewSequence);

    /// Forgets a sequence. No later plan names it. Unknown ids are ignored.
    fn release(&mut self, seq: SeqId);

    /// Starts the forward pass of a plan.
    ///
    /// # Errors
    /// If the plan breaks the contract or the device fails. The step's sequences are lost then, the executor is not.
    fn submit(&mut self, plan: &StepPlan) -> Result<Ticket, ExecError>;

    /// Waits for the step and samples: one result for each sequence of the plan that samples, in its order.
    ///
    /// # Errors
    /// As for `submit`.
    fn sample(&mut self, ticket: Ticket) -> Result<StepResult, ExecError>;

    /// Touches everything that the first step would otherwise have to set up, for steps of up to `max_num_tokens` tokens.
    ///
    /// # Errors
    /// If the device fails.
    fn warmup(&mut self, max_num_tokens: usize) -> Result<(), ExecError>;
}

/// A sequence as the executor needs it.
#[derive(Clone, Debug)]
pub struct NewSequence {
    /// Which sequence.
    pub seq: SeqId,
    /// Its prompt: penalties and log probabilities look at it.
    pub prompt: Arc<[TokenId]>,
    /// How tokens are chosen.
    pub sampling: Arc<SamplingParams>,
    /// Log probabilities of the prompt's tokens, with this many alternatives.
    pub prompt_logprobs: Option<u32>,
}

/// A step in flight.
#[derive(Debug, Eq, PartialEq)]
pub struct Ticket(pub StepId);

/// What a step gave.
#[derive(Clone, Debug, Default)]
pub struct StepResult {
    /// The sampled tokens, in the plan's order.
    pub sampled: Vec<Sampled>,
    /// For sequences that asked for them and whose prompt passed through this step: log probabilities of the
    /// next prompt tokens, in order of position (position 0 has none, so a prompt of p tokens gives p - 1 over all steps).
    pub prompt_logprobs: Vec<(SeqId, Vec<TokenLogprobs>)>,
}

/// One sampled token.
#[derive(Clone, Debug)]
pub struct Sampled {
    /// Which sequence.
    pub seq: SeqId,
    /// The token.
    pub token: TokenId,
    /// If the sequence asked for them.
    pub logprobs: Option<TokenLogprobs>,
}

/// Why a step failed.
#[derive(Debug, thiserror::Error)]
pub enum ExecError {
    /// The plan names a sequence that was not admitted.
    #[error("the plan names sequence {0:?}, which was never admitted or was released")]
    UnknownSequence(SeqId),
    /// The plan breaks the contract.
    #[error("the plan of step {step:?} is invalid: {reason}")]
    InvalidPlan {
        /// Which step.
        step: StepId,
        /// What is wrong.
        reason: String,
    },
    /// The device failed.
    #[error("the device failed: {0}")]
    Device(String),
}
