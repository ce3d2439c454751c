//! `POST /v1/chat/completions`.

use std::sync::Arc;

use axum::response::Response;
use futures::StreamExt;
use kvasir_api::{
    ApiError, ChatChoice, ChatMessage, ChatRequest, ChatResponse, Common, ErrorKind, Parsed,
    PromptTokensDetails, Timeline, Usage,
};
use kvasir_client::types::TokenLogprobs;

use super::chat_stream::ChatWriter;
use super::{Head, agree, check_unknown, conversation, events, logprobs, stream_options, text_request};
use crate::gate::Call;
use crate::pipeline::{Finish, Pipeline, Prompt, TextDelta, TextStream};
use crate::reply::{json_response, warn_unknown};
use crate::state::State;

/// Answers a conversation, streamed or whole.
pub(crate) async fn chat_completions(state: &Arc<State>, call: Call<'_>) -> Result<Response, ApiError> {
    let parsed = ChatRequest::read(call.body.clone(), call.pipeline.context())?;
    check_unknown(state, &parsed)?;
    let Parsed { request, unknown } = parsed;
    let mut common = request.common.clone();
    agree(&call, &mut common)?;
    let head = Head::new("chatcmpl", &call, &common);
    let echo = echoed_text(&request);
    let prompt = Prompt::Chat(conversation::from_request(request));
    let stream = call
        .pipeline
        .generate(text_request(state, &call, &common, &head, prompt))
        .await?;
    let mut response = match common.stream {
        Some(options) => {
            let options = stream_options(state, options);
            let writer = ChatWriter::new(
                (Arc::clone(state), call.pipeline),
                head,
                &common,
                options,
                echo,
                &stream,
            );
            events::respond(vec![stream], writer, state.config.sse_keep_alive, call.token)
        }
        None => json_response(&whole_answer((state, &call.pipeline), head, &common, echo, stream).await?),
    };
    warn_unknown(&mut response, &unknown);
    Ok(response)
}

/// With `echo`, an assistant's last message is put in front of the answer that continues it.
fn echoed_text(request: &ChatRequest) -> Option<String> {
    let last = request
        .messages
        .last()
        .filter(|last| request.echo && last.role == "assistant")?;
    last.content.as_ref().map(kvasir_api::Content::to_text)
}

/// A sequence, collected.
#[derive(Clone, Default)]
pub(super) struct Collected {
    pub(super) text: String,
    pub(super) token_ids: Vec<u32>,
    pub(super) logprobs: Vec<TokenLogprobs>,
    pub(super) finish: Option<Finish>,
    pub(super) timeline: Option<Timeline>,
}

impl Collected {
    pub(super) fn add(&mut self, delta: TextDelta) {
        self.text.push_str(&delta.text);
        self.token_ids.extend(delta.token_ids);
        self.logprobs.extend(delta.logprobs);
        self.finish = delta.finish;
        self.timeline = delta.timeline;
    }

    /// Why it ended; a stream that gave no error has sent this for every sequence.
    pub(super) fn take_finish(&mut self) -> Result<Finish, ApiError> {
        let missing = || ApiError::new(ErrorKind::Internal, "a sequence ended without a reason");
        self.finish.take().ok_or_else(missing)
    }
}

/// Usage, with the cached tokens if the server shows them.
pub(super) fn usage(state: &State, prompt_tokens: u64, completion_tokens: u64, cached_tokens: u64) -> Usage {
    let mut usage = Usage::new(prompt_tokens, completion_tokens);
    if state.config.enable_prompt_tokens_details {
        usage.prompt_tokens_details = Some(PromptTokensDetails { cached_tokens });
    }
    usage
}

async fn whole_answer(
    (state, pipeline): (&State, &Pipeline),
    head: Head,
    common: &Common,
    echo: Option<String>,
    mut stream: TextStream,
) -> Result<ChatResponse, ApiError> {
    let text = pipeline.text();
    let mut sequences = vec![Collected::default(); stream.num_sequences()];
    let mut prompt_logprobs = Vec::new();
    let mut cached_tokens = 0;
    while let Some(delta) = stream.next().await {
        let mut delta = delta?;
        cached_tokens = cached_tokens.max(u64::from(delta.cached_tokens.unwrap_or(0)));
        prompt_logprobs.append(&mut delta.prompt_logprobs);
        if let Some(sequence) = sequences.get_mut(delta.index as usize) {
            sequence.add(delta);
        }
    }
    let completion_tokens = sequences
        .iter()
        .map(|sequence| sequence.token_ids.len() as u64)
        .sum();
    let prompt = stream.prompt_token_ids();
    let show = logprobs::Shown::new(text, common);
    let prompt_logprobs = common
        .sampling
        .prompt_logprobs
        .map(|_| logprobs::prompt(&show, &prompt_logprobs));
    let choices = sequences.into_iter().zip(0..).map(|(mut sequence, index)| {
        let Finish { reason, stop_reason } = sequence.take_finish()?;
        let logprobs = common
            .sampling
            .logprobs
            .map(|top| logprobs::chat(&show, &sequence.logprobs, top));
        let content = format!("{}{}", echo.as_deref().unwrap_or_default(), sequence.text);
        Ok(ChatChoice {
            index,
            message: ChatMessage {
                role: "assistant",
                content,
            },
            logprobs,
            finish_reason: reason,
            stop_reason,
            token_ids: common.return_token_ids.then_some(sequence.token_ids),
            timeline: sequence.timeline,
        })
    });
    Ok(ChatResponse {
        choices: choices.collect::<Result<_, ApiError>>()?,
        id: head.id,
        object: "chat.completion",
        created: head.created,
        model: head.model,
        usage: usage(state, prompt.len() as u64, completion_tokens, cached_tokens),
        system_fingerprint: head.system_fingerprint,
        prompt_logprobs,
        prompt_token_ids: common.return_token_ids.then(|| prompt.to_vec()),
        prompt_text: stream
            .prompt_text()
            .filter(|_| common.return_prompt_text)
            .map(str::to_owned),
    })
}
