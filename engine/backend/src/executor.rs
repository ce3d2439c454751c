//! One model on one device (or group of devices), driven by plans.

use std::sync::Arc;

use kvasir_engine_core::{SeqId, StepId, StepPlan, TokenId};
use kvasir_sampling::{SamplingParams, TokenLogprobs};

/// Runs plans. All calls come from the scheduler's thread.
///
/// Sampling sits behind it so that logits never leave the device.
///
/// Up to [`max_in_flight`](Executor::max_in_flight) plans may be submitted before the first of them is sampled. Steps run strictly in the order of
/// their submission, and are sampled in that order. An input token that is [`PENDING_TOKEN`](kvasir_engine_core::PENDING_TOKEN) is the one that an
/// earlier step in flight samples for that position of that sequence.
///
/// What fails and what goes on: a plan that breaks the contract is refused by `submit` and changes nothing. A device that fails loses the step, with all of its
/// sequences. A sequence can also fail alone ([`StepResult::failed`]). A lost sequence stays lost: later steps that are in flight already report it
/// as failed, compute their other sequences, and no later plan may name it.
pub trait Executor: Send {
    /// Steps that may be submitted and not yet sampled; at least 1.
    fn max_in_flight(&self) -> usize {
        1
    }

    /// Makes a sequence known before the first plan that names it.
    fn admit(&mut self, sequence: NewSequence);

    /// Forgets a sequence. No later plan names it. Unknown ids are ignored.
    fn release(&mut self, seq: SeqId);

    /// Starts the forward pass of a plan. With more than one step in flight it returns before the pass is over.
    ///
    /// # Errors
    /// If the plan breaks the contract, then nothing has changed; or if the device fails. The step's sequences are lost then, the executor is not.
    fn submit(&mut self, plan: &StepPlan) -> Result<Ticket, ExecError>;

    /// Waits for the oldest step in flight and gives what it sampled: one token for each sequence of the plan that samples and didn't fail, in
    /// its order.
    ///
    /// # Errors
    /// If the ticket isn't that of the oldest step in flight, then nothing has changed; or if the device fails, as for `submit`.
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
    /// Sequences of the plan that are lost, while the others go on, each with the reason: their logits were no numbers, or a step before this one lost
    /// them. They have no entry in `sampled`.
    pub failed: Vec<(SeqId, String)>,
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
    /// The plan names a sequence that the executor doesn't have.
    #[error("the plan names sequence {}, which was never admitted, was released or was lost by a step that failed", .0.0)]
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
