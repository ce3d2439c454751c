//! `POST /tokenize` and `POST /detokenize`.

use axum::response::Response;
use kvasir_api::{
    ApiError, DetokenizeRequest, DetokenizeResponse, Parsed, TokenizeInput, TokenizeRequest, TokenizeResponse,
};

use super::{check_unknown, conversation};
use crate::gate::Call;
use crate::pipeline::Prompt;
use crate::reply::{json_response, warn_unknown};
use crate::state::State;

/// Token ids of text or of a conversation.
pub(crate) async fn tokenize(state: &State, call: Call<'_>) -> Result<Response, ApiError> {
    let parsed = TokenizeRequest::read(call.body, call.pipeline.context())?;
    check_unknown(state, &parsed)?;
    let Parsed { request, unknown } = parsed;
    let _place = call.visit.work(&call.model.name).await?;
    let add_special_tokens = request.add_special_tokens;
    let prompt = match request.input {
        TokenizeInput::Text(text) => Prompt::Text {
            text,
            add_special_tokens,
        },
        TokenizeInput::Chat {
            messages,
            add_generation_prompt,
            continue_final_message,
            template_variables,
        } => Prompt::Chat(conversation::from_messages(
            messages,
            add_generation_prompt,
            continue_final_message,
            template_variables,
            add_special_tokens,
        )),
    };
    let tokens = call.pipeline.tokenize(prompt).await?;
    let text = call.pipeline.text();
    let token_strs = request.return_token_strs.then(|| {
        tokens
            .iter()
            .map(|&id| text.vocabulary_entry(id).unwrap_or_default())
            .collect()
    });
    let mut response = json_response(&TokenizeResponse {
        count: tokens.len(),
        max_model_len: call.pipeline.model_info().max_model_len,
        tokens,
        token_strs,
    });
    warn_unknown(&mut response, &unknown);
    Ok(response)
}

/// Text of token ids.
pub(crate) async fn detokenize(state: &State, call: Call<'_>) -> Result<Response, ApiError> {
    let parsed = DetokenizeRequest::read(call.body, call.pipeline.context())?;
    check_unknown(state, &parsed)?;
    let Parsed { request, unknown } = parsed;
    let _place = call.visit.work(&call.model.name).await?;
    let mut response = json_response(&DetokenizeResponse {
        prompt: call.pipeline.detokenize(&request.tokens),
    });
    warn_unknown(&mut response, &unknown);
    Ok(response)
}
