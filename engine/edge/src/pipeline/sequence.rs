//! One sequence of a request: an automaton from the engine's outputs to text deltas.
//!
//! It has no clock and no I/O. Rules, as in vLLM 0.32: a stop string counts only behind the first `min_tokens` tokens;
//! the token that completes it is the last one that counts; the text of a stop token is left out unless
//! `include_stop_str_in_output`, the token itself is counted.

use kvasir_api::{FinishReason, StopReason};
use kvasir_client::types::{self, SequenceOutput, StopConditions, Timeline};
use kvasir_text::{Detokenizer, DetokenizerOptions, StopMatcher, Text};

use super::prepare::Prepared;
use super::{Finish, TextDelta, wire};

/// The last prompt tokens that the detokenizer sees: enough to complete a character of four bytes.
const PROMPT_TAIL: usize = 8;

/// One sequence of a request.
pub(super) struct Sequence {
    detokenizer: Detokenizer,
    matcher: StopMatcher,
    stop: Vec<String>,
    conditions: StopConditions,
    include_stop: bool,
    num_tokens: u64,
    done: bool,
}

/// What an output led to.
pub(super) struct Step {
    pub(super) delta: TextDelta,
    /// The engine doesn't know that the sequence ended here.
    pub(super) abort: bool,
    /// The engine's time stamps, if it ended the sequence.
    pub(super) timeline: Option<Timeline>,
    /// Set if the engine failed.
    pub(super) error: Option<types::Error>,
}

impl Sequence {
    pub(super) fn new(text: &Text, prepared: &Prepared) -> Self {
        let prompt = prepared.prompt_token_ids();
        let tail = &prompt[prompt.len().saturating_sub(PROMPT_TAIL)..];
        let options = DetokenizerOptions {
            skip_special_tokens: prepared.skip_special_tokens,
        };
        Self {
            detokenizer: text.detokenizer(options, tail),
            matcher: StopMatcher::new(&prepared.stop, prepared.include_stop_str_in_output),
            stop: prepared.stop.clone(),
            conditions: prepared.request.stop.clone().unwrap_or_default(),
            include_stop: prepared.include_stop_str_in_output,
            num_tokens: 0,
            done: false,
        }
    }

    /// Whether its last delta is out.
    pub(super) fn is_done(&self) -> bool {
        self.done
    }

    /// Output tokens so far.
    pub(super) fn num_tokens(&self) -> u64 {
        self.num_tokens
    }

    /// Takes an output; none comes of it if the sequence ended before.
    pub(super) fn feed(&mut self, output: SequenceOutput) -> Option<Step> {
        if self.done {
            return None;
        }
        let mut delta = TextDelta {
            index: output.index,
            prompt_logprobs: output.prompt_logprobs,
            cached_tokens: output.cached_tokens,
            ..TextDelta::default()
        };
        let ended_by_token = output
            .finish
            .as_ref()
            .is_some_and(|finish| finish.reason() == types::FinishReason::Stop);
        let mut matched = None;
        for (i, &token) in output.token_ids.iter().enumerate() {
            self.num_tokens += 1;
            delta.token_ids.push(token);
            let is_stop = ended_by_token && i + 1 == output.token_ids.len() && self.is_stop_token(token);
            if !is_stop || self.include_stop {
                matched = self.push(token, &mut delta.text);
            }
            if matched.is_some() {
                break;
            }
        }
        delta.logprobs = output.logprobs;
        delta.logprobs.truncate(delta.token_ids.len());
        let finish = output.finish;
        if matched.is_none() && finish.is_some() {
            matched = self.flush(&mut delta.text);
        }
        Some(self.conclude(delta, finish, matched))
    }

    fn conclude(
        &mut self,
        mut delta: TextDelta,
        finish: Option<types::Finish>,
        matched: Option<usize>,
    ) -> Step {
        let abort = matched.is_some() && finish.is_none();
        let error = finish
            .as_ref()
            .and_then(|finish| finish.error.clone())
            .filter(|_| matched.is_none());
        delta.finish = match (matched, &finish) {
            (Some(index), _) => Some(Finish {
                reason: FinishReason::Stop,
                stop_reason: self.stop.get(index).cloned().map(StopReason::Text),
            }),
            (None, Some(finish)) => Some(Finish {
                reason: wire::finish_reason(finish.reason()),
                stop_reason: finish.stop_token_id.map(StopReason::Token),
            }),
            (None, None) => None,
        };
        self.done = delta.finish.is_some();
        Step {
            delta,
            abort,
            timeline: finish.and_then(|finish| finish.timeline),
            error,
        }
    }

    fn is_stop_token(&self, token: u32) -> bool {
        self.conditions.eos_token_ids.contains(&token) || self.conditions.stop_token_ids.contains(&token)
    }

    /// Adds a token's text to `out`; returns the stop string that it completes.
    fn push(&mut self, token: u32, out: &mut String) -> Option<usize> {
        let text = self.detokenizer.push(token);
        if self.num_tokens <= u64::from(self.conditions.min_tokens) {
            out.push_str(text);
            return None;
        }
        let step = self.matcher.push(text);
        out.push_str(&step.emit);
        step.matched
    }

    /// Adds what is held back to `out`.
    fn flush(&mut self, out: &mut String) -> Option<usize> {
        let rest = self.detokenizer.finish();
        let step = self.matcher.push(&rest);
        out.push_str(&step.emit);
        if step.matched.is_none() {
            out.push_str(&self.matcher.finish());
        }
        step.matched
    }
}
