//! `POST /v1/completions`.

use std::sync::Arc;

use axum::response::Response;
use futures::StreamExt;
use kvasir_api::{
    ApiError, Common, CompletionChoice, CompletionLogprobs, CompletionRequest, CompletionResponse,
    FinishReason, Parsed, StopReason,
};
use kvasir_client::types::TokenLogprobs;

use super::chat::{Collected, usage};
use super::completion_stream::CompletionWriter;
use super::{Head, agree, check_unknown, events, logprobs, stream_options, text_request};
use crate::gate::Call;
use crate::pipeline::{Finish, Pipeline, Prompt, TextDelta, TextStream};
use crate::reply::{json_response, warn_unknown};
use crate::state::State;

/// Continues prompts, streamed or whole.
pub(crate) async fn completions(state: &Arc<State>, call: Call<'_>) -> Result<Response, ApiError> {
    let parsed = CompletionRequest::read(call.body.clone(), call.pipeline.context())?;
    check_unknown(state, &parsed)?;
    let Parsed { request, unknown } = parsed;
    let mut common = request.common;
    agree(&call, &mut common)?;
    let head = Head::new("cmpl", &call, &common);
    let mut requests = Vec::with_capacity(request.prompts.len());
    for prompt in request.prompts {
        let prompt = match prompt {
            kvasir_api::Prompt::Tokens(ids) => Prompt::Tokens(ids),
            kvasir_api::Prompt::Text(text) => Prompt::Text {
                text,
                add_special_tokens: request.add_special_tokens,
            },
        };
        requests.push(text_request(state, &call, &common, &head, prompt));
    }
    // All prompts are checked before the first one reaches the engine.
    let mut prepared = Vec::with_capacity(requests.len());
    for text_request in requests {
        prepared.push(call.pipeline.prepare(text_request).await?);
    }
    let streams = call.pipeline.start_all(prepared).await?;
    let prompts = streams
        .iter()
        .map(|stream| PromptEcho::new(&call.pipeline, stream, &common, request.echo));
    let prompts: Vec<PromptEcho> = prompts.collect();
    let mut response = match common.stream {
        Some(options) => {
            let options = stream_options(state, options);
            let writer =
                CompletionWriter::new((Arc::clone(state), call.pipeline), head, common, options, prompts);
            events::respond(streams, writer, state.config.sse_keep_alive, call.token)
        }
        None => whole_answer((state, &call.pipeline), &head, &common, prompts, streams).await?,
    };
    warn_unknown(&mut response, &unknown);
    Ok(response)
}

/// A prompt as its choices show it.
pub(super) struct PromptEcho {
    pub(super) token_ids: Vec<u32>,
    /// The prompt's text if it was sent as text.
    pub(super) text: Option<String>,
    /// What stands in front of the answer; none without `echo`.
    pub(super) echo: Option<String>,
    /// With `max_tokens: 0` only the prompt is shown; the token that the engine had to make is dropped.
    pub(super) only: bool,
}

impl PromptEcho {
    fn new(pipeline: &Pipeline, stream: &TextStream, common: &Common, echo: bool) -> Self {
        let token_ids = stream.prompt_token_ids().to_vec();
        let text = stream.prompt_text().map(str::to_owned);
        let echo = echo.then(|| text.clone().unwrap_or_else(|| pipeline.detokenize(&token_ids)));
        let only = echo.is_some() && common.sampling.max_tokens == Some(0);
        Self {
            token_ids,
            text,
            echo,
            only,
        }
    }

    /// Applies `only` to a delta.
    pub(super) fn limit(&self, delta: &mut TextDelta) {
        if self.only {
            delta.text.clear();
            delta.token_ids.clear();
            delta.logprobs.clear();
            if let Some(finish) = &mut delta.finish {
                *finish = Finish {
                    reason: FinishReason::Length,
                    stop_reason: None,
                };
            }
        }
    }
}

/// The prompt's tokens with their log probabilities; the first one has none.
pub(super) fn prompt_entries(
    token_ids: &[u32],
    logprobs: &[TokenLogprobs],
) -> Vec<(u32, Option<TokenLogprobs>)> {
    let entry = |(i, &id): (usize, &u32)| (id, logprobs.get(i).filter(|_| i > 0).cloned());
    token_ids.iter().enumerate().map(entry).collect()
}

async fn whole_answer(
    (state, pipeline): (&State, &Pipeline),
    head: &Head,
    common: &Common,
    prompts: Vec<PromptEcho>,
    streams: Vec<TextStream>,
) -> Result<Response, ApiError> {
    let n = common.sampling.n as usize;
    let mut sequences = vec![Collected::default(); prompts.len() * n];
    let mut prompt_logprobs = vec![Vec::new(); prompts.len()];
    let mut cached_tokens = vec![0u64; prompts.len()];
    let mut deltas = events::merge(streams);
    while let Some((prompt, delta)) = deltas.next().await {
        let mut delta = delta?;
        prompts[prompt].limit(&mut delta);
        cached_tokens[prompt] = cached_tokens[prompt].max(u64::from(delta.cached_tokens.unwrap_or(0)));
        prompt_logprobs[prompt].append(&mut delta.prompt_logprobs);
        if let Some(sequence) = sequences.get_mut(prompt * n + delta.index as usize) {
            sequence.add(delta);
        }
    }
    let completion_tokens = sequences
        .iter()
        .map(|sequence| sequence.token_ids.len() as u64)
        .sum();
    let prompt_tokens = prompts.iter().map(|prompt| prompt.token_ids.len() as u64).sum();
    let choices = sequences.into_iter().enumerate().map(|(index, sequence)| {
        let prompt = index / n.max(1);
        choice(
            pipeline,
            common,
            &prompts[prompt],
            &prompt_logprobs[prompt],
            (index as u32, sequence),
        )
    });
    let response = CompletionResponse {
        id: &head.id,
        object: "text_completion",
        created: head.created,
        model: &head.model,
        choices: choices.collect::<Result<_, ApiError>>()?,
        usage: Some(usage(
            state,
            prompt_tokens,
            completion_tokens,
            cached_tokens.iter().sum(),
        )),
        system_fingerprint: Some(&head.system_fingerprint),
    };
    Ok(json_response(&response))
}

fn choice(
    pipeline: &Pipeline,
    common: &Common,
    prompt: &PromptEcho,
    prompt_logprobs: &[TokenLogprobs],
    (index, mut sequence): (u32, Collected),
) -> Result<CompletionChoice, ApiError> {
    let Finish { reason, stop_reason }: Finish = sequence.take_finish()?;
    let stop_reason: Option<StopReason> = stop_reason;
    let shown = logprobs::Shown::new(pipeline.text(), common);
    let logprobs = common.sampling.logprobs.map(|top| {
        let mut out = CompletionLogprobs::default();
        let mut offset = 0;
        if prompt.echo.is_some() {
            let entries = prompt_entries(&prompt.token_ids, prompt_logprobs);
            logprobs::push_completion(&shown, &mut out, &mut offset, entries, top);
        }
        let entries = sequence
            .logprobs
            .drain(..)
            .map(|token| (token.token_id, Some(token)));
        logprobs::push_completion(&shown, &mut out, &mut offset, entries, top);
        out
    });
    // Echoed log probabilities are in `logprobs`; this key is for requests that name it.
    let wants_prompt_logprobs = common.wants_prompt_logprobs;
    Ok(CompletionChoice {
        index,
        text: format!("{}{}", prompt.echo.as_deref().unwrap_or_default(), sequence.text),
        logprobs,
        finish_reason: Some(reason),
        stop_reason,
        prompt_logprobs: wants_prompt_logprobs.then(|| logprobs::prompt(&shown, prompt_logprobs)),
        token_ids: common.return_token_ids.then_some(sequence.token_ids),
        prompt_token_ids: common.return_token_ids.then(|| prompt.token_ids.clone()),
        prompt_text: prompt.text.clone().filter(|_| common.return_prompt_text),
        timeline: sequence.timeline,
    })
}
