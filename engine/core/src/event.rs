//! What the scheduler tells its caller.

use crate::ids::{SeqId, TokenId};

/// Why a sequence ended (rule S21).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum FinishReason {
    /// End of sequence.
    Eos,
    /// One of its stop tokens.
    StopToken(TokenId),
    /// `max_tokens`, or the model's length.
    Length,
    /// The caller aborted it.
    Abort,
    /// The step that computed it failed.
    Error,
    /// Its deadline passed.
    Deadline,
}

/// Something that happened to a sequence.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Event {
    /// First scheduled, or again after a preemption; `cached_tokens` came from the prefix cache.
    Scheduled {
        /// Which sequence.
        seq: SeqId,
        /// Tokens that need not be computed.
        cached_tokens: u32,
        /// Whether it had been preempted before.
        resumed: bool,
    },
    /// Lost its blocks; it will be computed again.
    Preempted {
        /// Which sequence.
        seq: SeqId,
    },
    /// A new output token.
    Token {
        /// Which sequence.
        seq: SeqId,
        /// The token.
        token: TokenId,
    },
    /// It ended; nothing follows.
    Finished {
        /// Which sequence.
        seq: SeqId,
        /// Why.
        reason: FinishReason,
    },
}
