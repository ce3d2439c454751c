//! The events of a streamed chat answer.

use std::sync::Arc;

use kvasir_api::{ChatChunk, ChatChunkChoice, ChatDelta, Common, StreamOptions, Usage, sse};

use super::chat::usage;
use super::events::EventWriter;
use super::{Head, logprobs};
use crate::pipeline::{Pipeline, TextDelta, TextStream};
use crate::state::State;

/// Writes chat chunks: role, text, finish; usage at the end. The fingerprint is on the last chunk only.
pub(super) struct ChatWriter {
    state: Arc<State>,
    pipeline: Pipeline,
    head: Head,
    common: Common,
    options: StreamOptions,
    echo: Option<String>,
    prompt_token_ids: Vec<u32>,
    prompt_text: Option<String>,
    started: bool,
    unfinished: usize,
    cached_tokens: u64,
    /// Output tokens per sequence.
    num_tokens: Vec<u64>,
}

impl ChatWriter {
    pub(super) fn new(
        (state, pipeline): (Arc<State>, Pipeline),
        head: Head,
        common: &Common,
        options: StreamOptions,
        echo: Option<String>,
        stream: &TextStream,
    ) -> Self {
        Self {
            state,
            pipeline,
            head,
            common: common.clone(),
            options,
            echo,
            prompt_token_ids: stream.prompt_token_ids().to_vec(),
            prompt_text: stream
                .prompt_text()
                .filter(|_| common.return_prompt_text)
                .map(str::to_owned),
            started: false,
            unfinished: stream.num_sequences(),
            cached_tokens: 0,
            num_tokens: vec![0; stream.num_sequences()],
        }
    }

    fn usage(&self, completion_tokens: u64) -> Usage {
        usage(
            &self.state,
            self.prompt_token_ids.len() as u64,
            completion_tokens,
            self.cached_tokens,
        )
    }

    fn chunk<'a>(&'a self, choice: ChatChunkChoice<'a>) -> ChatChunk<'a> {
        let tokens = self.num_tokens.get(choice.index as usize).copied().unwrap_or(0);
        ChatChunk {
            id: &self.head.id,
            object: "chat.completion.chunk",
            created: self.head.created,
            model: &self.head.model,
            choices: vec![choice],
            usage: self.options.continuous_usage_stats.then(|| self.usage(tokens)),
            system_fingerprint: None,
            prompt_token_ids: None,
            prompt_text: None,
        }
    }

    /// The first chunk of every choice; not sent before there is a token, or it would look like one to clients that
    /// measure the time to the first chunk.
    fn write_roles(&self, out: &mut String) {
        for index in 0..self.num_tokens.len() as u32 {
            let delta = ChatDelta {
                role: Some("assistant"),
                content: Some(""),
            };
            let mut chunk = self.chunk(empty_choice(index, delta));
            chunk.prompt_token_ids = self.common.return_token_ids.then_some(&self.prompt_token_ids[..]);
            chunk.prompt_text = self.prompt_text.as_deref();
            out.push_str(&sse::data(&chunk));
        }
        let Some(echo) = self.echo.as_deref().filter(|echo| !echo.is_empty()) else {
            return;
        };
        for index in 0..self.num_tokens.len() as u32 {
            let delta = ChatDelta {
                role: None,
                content: Some(echo),
            };
            out.push_str(&sse::data(&self.chunk(empty_choice(index, delta))));
        }
    }

    /// Whether a delta has to be sent although it has no text.
    fn has_more_than_text(&self, delta: &TextDelta) -> bool {
        let tokens_shown = self.common.return_token_ids || self.common.sampling.logprobs.is_some();
        delta.finish.is_some() || (tokens_shown && !delta.token_ids.is_empty())
    }
}

fn empty_choice(index: u32, delta: ChatDelta<'_>) -> ChatChunkChoice<'_> {
    ChatChunkChoice {
        index,
        delta,
        logprobs: None,
        finish_reason: None,
        stop_reason: None,
        token_ids: None,
        timeline: None,
    }
}

impl EventWriter for ChatWriter {
    fn delta(&mut self, _prompt: usize, delta: TextDelta, out: &mut String) {
        self.cached_tokens = self
            .cached_tokens
            .max(u64::from(delta.cached_tokens.unwrap_or(0)));
        if !self.started {
            self.started = true;
            self.write_roles(out);
        }
        if let Some(tokens) = self.num_tokens.get_mut(delta.index as usize) {
            *tokens += delta.token_ids.len() as u64;
        }
        if delta.text.is_empty() && !self.has_more_than_text(&delta) {
            return;
        }
        if delta.finish.is_some() {
            self.unfinished = self.unfinished.saturating_sub(1);
        }
        let show = logprobs::Shown::new(self.pipeline.text(), &self.common);
        let choice = ChatChunkChoice {
            index: delta.index,
            delta: ChatDelta {
                role: None,
                content: Some(&delta.text),
            },
            logprobs: self
                .common
                .sampling
                .logprobs
                .map(|top| logprobs::chat(&show, &delta.logprobs, top)),
            finish_reason: delta.finish.as_ref().map(|finish| finish.reason),
            stop_reason: delta.finish.as_ref().map(|finish| finish.stop_reason.clone()),
            token_ids: self.common.return_token_ids.then_some(&delta.token_ids[..]),
            timeline: delta.timeline,
        };
        let mut chunk = self.chunk(choice);
        if self.unfinished == 0 && !self.options.include_usage {
            chunk.system_fingerprint = Some(&self.head.system_fingerprint);
        }
        out.push_str(&sse::data(&chunk));
    }

    fn end(&mut self, out: &mut String) {
        if !self.options.include_usage {
            return;
        }
        let chunk = ChatChunk {
            choices: Vec::new(),
            usage: Some(self.usage(self.num_tokens.iter().sum())),
            system_fingerprint: Some(&self.head.system_fingerprint),
            ..self.chunk(empty_choice(0, ChatDelta::default()))
        };
        out.push_str(&sse::data(&chunk));
    }
}
