//! What is remembered of one sequence until it ends.

use std::sync::Arc;
use std::time::Instant;

use kvasir_client::types::{Error, Finish, FinishReason, SequenceOutput, TokenLogprobs, TopLogprob};
use kvasir_engine_core::{self as core, SeqId, SeqPlan, StepId, TokenId};
use kvasir_sampling as sampling;

use super::timeline::Clock;
use crate::dump::LiveSequence;
use crate::journal::StepPart;
use crate::names::RequestKey;

/// One sequence.
#[derive(Debug)]
pub(super) struct SeqRecord {
    pub(super) key: RequestKey,
    request_id: Arc<str>,
    pub(super) index: u32,
    prompt_len: u32,
    /// Prompt positions that are computed or came from the cache.
    prompt_done: u32,
    cached_tokens: u32,
    output_tokens: u32,
    clock: Clock,
    /// One entry per prompt token, if they were asked for and haven't been sent.
    prompt_logprobs: Option<Vec<TokenLogprobs>>,
    /// Of the token that the step sampled.
    sampled_logprobs: Option<TokenLogprobs>,
    /// Why it is about to end, if that is an error.
    fault: Option<Error>,
    /// What isn't sent yet.
    pending: Option<SequenceOutput>,
    started: bool,
}

impl SeqRecord {
    pub(super) fn new(
        key: RequestKey,
        request_id: Arc<str>,
        index: u32,
        clock: Clock,
        prompt: &[TokenId],
        wants_prompt_logprobs: bool,
    ) -> Self {
        let blank = || {
            prompt
                .iter()
                .map(|&token_id| TokenLogprobs {
                    token_id,
                    ..TokenLogprobs::default()
                })
                .collect()
        };
        Self {
            key,
            request_id,
            index,
            prompt_len: prompt.len() as u32,
            prompt_done: 0,
            cached_tokens: 0,
            output_tokens: 0,
            clock,
            prompt_logprobs: wants_prompt_logprobs.then(blank),
            sampled_logprobs: None,
            fault: None,
            pending: None,
            started: false,
        }
    }

    pub(super) fn describe(&self, seq: SeqId, now: Instant) -> LiveSequence {
        LiveSequence {
            request_id: self.request_id.to_string(),
            index: self.index,
            seq: seq.0,
            prompt_tokens: self.prompt_len,
            prompt_tokens_done: self.prompt_done,
            output_tokens: self.output_tokens,
            num_preemptions: self.clock.num_preemptions(),
            age_us: self.clock.micros(now),
        }
    }

    pub(super) fn describe_part(&self, plan: &SeqPlan) -> StepPart {
        let num_tokens = plan.tokens.len() as u32;
        StepPart {
            request_id: Arc::clone(&self.request_id),
            index: self.index,
            seq: plan.seq.0,
            first_position: plan.first_position,
            num_tokens,
            num_prompt_tokens: self
                .prompt_len
                .saturating_sub(plan.first_position)
                .min(num_tokens),
            samples: plan.samples,
        }
    }

    /// A step computed a part of it. Says whether that was a chunk: a piece of the prompt, or of what a preemption lost.
    pub(super) fn note_step(&mut self, step: StepId, plan: &SeqPlan, now: Instant) -> bool {
        let is_chunk = plan.first_position < self.prompt_len || plan.tokens.len() > 1;
        if is_chunk {
            self.clock.chunk(now, plan.tokens.len() as u32, step.0);
        }
        let end = plan.first_position + plan.tokens.len() as u32;
        self.prompt_done = self.prompt_done.max(end.min(self.prompt_len));
        is_chunk
    }

    /// A piece that begins at position `p` gives the log probabilities of the tokens from `p + 1` on. By position, since a preempted
    /// sequence computes positions again.
    pub(super) fn note_prompt_logprobs(&mut self, plan: &SeqPlan, logprobs: Vec<sampling::TokenLogprobs>) {
        let Some(all) = &mut self.prompt_logprobs else {
            return;
        };
        let places = all.iter_mut().skip(plan.first_position as usize + 1);
        for (place, logprobs) in places.zip(logprobs) {
            *place = wire_logprobs(logprobs);
        }
    }

    pub(super) fn note_logprobs(&mut self, logprobs: Option<sampling::TokenLogprobs>) {
        self.sampled_logprobs = logprobs.map(wire_logprobs);
    }

    /// The reason it will end with; the first one stays.
    pub(super) fn blame(&mut self, fault: &Error) {
        self.fault.get_or_insert_with(|| fault.clone());
    }

    pub(super) fn note_scheduled(&mut self, cached_tokens: u32, resumed: bool, now: Instant) {
        self.clock.scheduled(now, cached_tokens, resumed);
        if !resumed {
            self.cached_tokens = cached_tokens;
            self.prompt_done = cached_tokens;
        }
    }

    pub(super) fn note_preempted(&mut self, now: Instant) {
        self.clock.preempted(now);
    }

    pub(super) fn note_token(&mut self, token: TokenId, now: Instant) {
        self.output_tokens += 1;
        self.clock.token(now);
        let logprobs = self.sampled_logprobs.take();
        let pending = self.pending(true);
        pending.token_ids.push(token);
        pending.logprobs.extend(logprobs);
    }

    pub(super) fn note_finished(&mut self, reason: core::FinishReason, now: Instant) {
        // Before the first token they are incomplete; after it they were sent.
        self.prompt_logprobs = self.prompt_logprobs.take().filter(|_| self.started);
        let computed_prompt_tokens = self.prompt_done - self.cached_tokens;
        let has_started = self.clock.has_started();
        let timeline = self.clock.finish(now, self.output_tokens, computed_prompt_tokens);
        let finish = match (self.fault.take(), reason) {
            (Some(error), _) => Finish {
                error: Some(error),
                ..ended(FinishReason::Error)
            },
            (None, core::FinishReason::Eos) => ended(FinishReason::Stop),
            (None, core::FinishReason::StopToken(token)) => Finish {
                stop_token_id: Some(token),
                ..ended(FinishReason::Stop)
            },
            (None, core::FinishReason::Length) => ended(FinishReason::Length),
            (None, core::FinishReason::Abort) => ended(FinishReason::Abort),
            (None, core::FinishReason::Deadline) => Finish {
                error: Some(kvasir_client::refusal(
                    kvasir_client::types::ErrorCode::Deadline,
                    "the request ran longer than this server allows",
                )),
                ..ended(FinishReason::Error)
            },
            (None, core::FinishReason::Error) => Finish {
                error: Some(kvasir_client::refusal(
                    kvasir_client::types::ErrorCode::Internal,
                    "the step that computed this sequence failed",
                )),
                ..ended(FinishReason::Error)
            },
        };
        self.pending(has_started).finish = Some(Finish {
            timeline: Some(timeline),
            ..finish
        });
    }

    /// What happened since the last call.
    pub(super) fn take_pending(&mut self) -> Option<SequenceOutput> {
        self.pending.take()
    }

    fn pending(&mut self, has_started: bool) -> &mut SequenceOutput {
        let (index, first) = (self.index, !self.started);
        self.started = true;
        let cached_tokens = (first && has_started).then_some(self.cached_tokens);
        let prompt_logprobs = self.prompt_logprobs.take();
        self.pending.get_or_insert_with(|| SequenceOutput {
            index,
            cached_tokens,
            prompt_logprobs: prompt_logprobs.unwrap_or_default(),
            ..SequenceOutput::default()
        })
    }
}

fn ended(reason: FinishReason) -> Finish {
    Finish {
        reason: reason.into(),
        ..Finish::default()
    }
}

fn wire_logprobs(logprobs: sampling::TokenLogprobs) -> TokenLogprobs {
    let sampling::TokenLogprobs {
        token,
        logprob,
        rank,
        top,
    } = logprobs;
    let top = top
        .into_iter()
        .map(|(token_id, logprob)| TopLogprob { token_id, logprob })
        .collect();
    TokenLogprobs {
        token_id: token,
        logprob,
        rank,
        top,
    }
}
