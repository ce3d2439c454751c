//! The events of a streamed completion.

use std::sync::Arc;

use kvasir_api::{
    Common, CompletionChoice, CompletionLogprobs, CompletionResponse, StreamOptions, Usage, sse,
};

use super::chat::usage;
use super::completion::{PromptEcho, prompt_entries};
use super::events::EventWriter;
use super::{Head, logprobs};
use crate::pipeline::{Pipeline, TextDelta};
use crate::state::State;

/// Writes completion chunks: text, finish; usage at the end. The fingerprint is on the last chunk only.
pub(super) struct CompletionWriter {
    state: Arc<State>,
    pipeline: Pipeline,
    head: Head,
    common: Common,
    options: StreamOptions,
    prompts: Vec<PromptEcho>,
    cached_tokens: Vec<u64>,
    /// Log probabilities of each prompt, which arrive once and are echoed by each of its sequences.
    prompt_logprobs: Vec<Vec<kvasir_client::types::TokenLogprobs>>,
    choices: Vec<ChoiceState>,
    unfinished: usize,
}

/// One sequence so far.
#[derive(Clone, Copy, Default)]
struct ChoiceState {
    started: bool,
    num_tokens: u64,
    /// Where the next token of the log probabilities starts, in characters.
    text_offset: u64,
}

impl CompletionWriter {
    pub(super) fn new(
        (state, pipeline): (Arc<State>, Pipeline),
        head: Head,
        common: Common,
        options: StreamOptions,
        prompts: Vec<PromptEcho>,
    ) -> Self {
        let choices = vec![ChoiceState::default(); prompts.len() * common.sampling.n as usize];
        Self {
            state,
            pipeline,
            head,
            common,
            options,
            cached_tokens: vec![0; prompts.len()],
            prompt_logprobs: vec![Vec::new(); prompts.len()],
            prompts,
            unfinished: choices.len(),
            choices,
        }
    }

    fn usage(&self, prompt_tokens: u64, completion_tokens: u64, cached_tokens: u64) -> Usage {
        usage(&self.state, prompt_tokens, completion_tokens, cached_tokens)
    }

    fn chunk(
        &self,
        choices: Vec<CompletionChoice>,
        usage: Option<Usage>,
        is_last: bool,
    ) -> CompletionResponse<'_> {
        CompletionResponse {
            id: &self.head.id,
            object: "text_completion",
            created: self.head.created,
            model: &self.head.model,
            choices,
            usage,
            system_fingerprint: is_last.then_some(&self.head.system_fingerprint),
        }
    }

    /// The new tokens' log probabilities, behind those of the prompt if it is echoed.
    fn logprobs(
        &self,
        prompt: usize,
        choice: &mut ChoiceState,
        delta: &mut TextDelta,
    ) -> Option<CompletionLogprobs> {
        let top = self.common.sampling.logprobs?;
        let shown = logprobs::Shown::new(self.pipeline.text(), &self.common);
        let mut out = CompletionLogprobs::default();
        let echo = &self.prompts[prompt];
        if !choice.started && echo.echo.is_some() {
            let entries = prompt_entries(&echo.token_ids, &self.prompt_logprobs[prompt]);
            logprobs::push_completion(&shown, &mut out, &mut choice.text_offset, entries, top);
        }
        let entries = delta
            .logprobs
            .drain(..)
            .map(|token| (token.token_id, Some(token)));
        logprobs::push_completion(&shown, &mut out, &mut choice.text_offset, entries, top);
        Some(out)
    }

    fn write(&mut self, prompt: usize, index: usize, mut delta: TextDelta, out: &mut String) {
        let mut choice = self.choices[index];
        choice.num_tokens += delta.token_ids.len() as u64;
        let logprobs = self.logprobs(prompt, &mut choice, &mut delta);
        let echo = &self.prompts[prompt];
        let first = !choice.started;
        choice.started = true;
        self.choices[index] = choice;
        let text = match &echo.echo {
            Some(echo) if first => format!("{echo}{}", delta.text),
            _ => delta.text,
        };
        let (finish_reason, stop_reason) = delta
            .finish
            .map_or((None, None), |finish| (Some(finish.reason), finish.stop_reason));
        let wire = CompletionChoice {
            index: index as u32,
            text,
            logprobs,
            finish_reason,
            stop_reason,
            prompt_logprobs: None,
            token_ids: self.common.return_token_ids.then_some(delta.token_ids),
            prompt_token_ids: (first && self.common.return_token_ids).then(|| echo.token_ids.clone()),
            prompt_text: echo
                .text
                .clone()
                .filter(|_| first && self.common.return_prompt_text),
            timeline: delta.timeline,
        };
        let usage = self.options.continuous_usage_stats.then(|| {
            self.usage(
                echo.token_ids.len() as u64,
                choice.num_tokens,
                self.cached_tokens[prompt],
            )
        });
        let is_last = self.unfinished == 0 && !self.options.include_usage;
        out.push_str(&sse::data(&self.chunk(vec![wire], usage, is_last)));
    }
}

impl EventWriter for CompletionWriter {
    fn delta(&mut self, prompt: usize, mut delta: TextDelta, out: &mut String) {
        let index = prompt * self.common.sampling.n as usize + delta.index as usize;
        let Some(choice) = self.choices.get(index) else {
            return;
        };
        self.cached_tokens[prompt] =
            self.cached_tokens[prompt].max(u64::from(delta.cached_tokens.unwrap_or(0)));
        self.prompt_logprobs[prompt].append(&mut delta.prompt_logprobs);
        let echo = &self.prompts[prompt];
        echo.limit(&mut delta);
        let is_echoed = !choice.started && echo.echo.is_some();
        let tokens_shown = self.common.return_token_ids || self.common.sampling.logprobs.is_some();
        let has_more = delta.finish.is_some() || is_echoed || (tokens_shown && !delta.token_ids.is_empty());
        if delta.text.is_empty() && !has_more {
            self.choices[index].num_tokens += delta.token_ids.len() as u64;
            return;
        }
        if delta.finish.is_some() {
            self.unfinished = self.unfinished.saturating_sub(1);
        }
        self.write(prompt, index, delta, out);
    }

    fn end(&mut self, out: &mut String) {
        if !self.options.include_usage {
            return;
        }
        let prompt_tokens = self
            .prompts
            .iter()
            .map(|prompt| prompt.token_ids.len() as u64)
            .sum();
        let completion_tokens = self.choices.iter().map(|choice| choice.num_tokens).sum();
        let usage = self.usage(prompt_tokens, completion_tokens, self.cached_tokens.iter().sum());
        out.push_str(&sse::data(&self.chunk(Vec::new(), Some(usage), true)));
    }
}
