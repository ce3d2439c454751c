//! Fields that are known and can't be honoured yet, and fields that are known and change nothing.
//!
//! Silently ignoring a field gives a wrong answer with status 200 (vLLM does so with `guided_json`, row C51 of our
//! research), so each of these is refused by name unless its value asks for nothing.

use crate::body::Body;
use crate::error::ApiError;

/// A field and the JSON texts of it that ask for nothing. `null` always asks for nothing.
struct Unsupported(&'static str, &'static [&'static str]);

const SHARED: &[Unsupported] = &[
    Unsupported("use_beam_search", &["false"]),
    Unsupported("length_penalty", &["1", "1.0"]),
    Unsupported("structured_outputs", &[]),
    Unsupported("guided_json", &[]),
    Unsupported("guided_regex", &[]),
    Unsupported("guided_choice", &[]),
    Unsupported("guided_grammar", &[]),
    Unsupported("guided_decoding_backend", &[]),
    Unsupported("guided_whitespace_pattern", &[]),
    Unsupported("logprob_token_ids", &["[]"]),
    Unsupported("kv_transfer_params", &["{}"]),
    Unsupported("ec_transfer_params", &["{}"]),
    Unsupported("vllm_xargs", &["{}"]),
    Unsupported("repetition_detection", &[]),
    Unsupported("stream_interval", &["1"]),
    Unsupported("watermarking", &["false"]),
    Unsupported("return_token_offsets", &["false"]),
    Unsupported("routed_experts_prompt_start", &["0"]),
    Unsupported("mm_payload", &["\"none\""]),
    Unsupported("thinking_token_budget", &["-1"]),
    Unsupported("store", &["false"]),
];

const CHAT: &[Unsupported] = &[
    Unsupported("tools", &[]),
    Unsupported("functions", &[]),
    Unsupported("function_call", &["\"none\""]),
    Unsupported("tool_choice", &["\"none\""]),
    Unsupported("audio", &[]),
    Unsupported("modalities", &["[\"text\"]", "[ \"text\" ]"]),
    Unsupported("prediction", &[]),
    Unsupported("web_search_options", &[]),
    Unsupported("include_reasoning", &["true"]),
    Unsupported("media_io_kwargs", &["{}"]),
    Unsupported("mm_processor_kwargs", &["{}"]),
    Unsupported("verbosity", &["\"medium\""]),
];

const COMPLETION: &[Unsupported] = &[
    Unsupported("prompt_embeds", &[]),
    Unsupported("suffix", &["\"\""]),
];

/// Known fields that change nothing here: bookkeeping of the client, or hints.
const HARMLESS: &[&str] = &[
    "user",
    "metadata",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "parallel_tool_calls",
    "session_id",
];

/// Refuses what chat requests can't have yet.
pub(super) fn refuse_chat(body: &mut Body<'_>) -> Result<(), ApiError> {
    refuse(body, CHAT)?;
    refuse(body, SHARED)
}

/// Refuses what completion requests can't have yet.
pub(super) fn refuse_completion(body: &mut Body<'_>) -> Result<(), ApiError> {
    refuse(body, COMPLETION)?;
    refuse(body, SHARED)
}

fn refuse(body: &mut Body<'_>, table: &[Unsupported]) -> Result<(), ApiError> {
    for Unsupported(name, harmless) in table {
        if let Some(raw) = body.take_raw(name)
            && !harmless.contains(&raw.get())
        {
            return Err(ApiError::unsupported(name));
        }
    }
    for name in HARMLESS {
        body.take_raw(name);
    }
    refuse_response_format(body)
}

fn refuse_response_format(body: &mut Body<'_>) -> Result<(), ApiError> {
    let Some(raw) = body.take_raw("response_format") else {
        return Ok(());
    };
    let mut format = Body::nested(raw, "response_format")?;
    match format.require::<String>("type")?.as_str() {
        "text" => Ok(()),
        "json_object" | "json_schema" | "structural_tag" => Err(ApiError::unsupported("response_format")),
        other => Err(ApiError::value(
            "response_format",
            other,
            "response_format.type must be text, json_object, json_schema or structural_tag",
        )),
    }
}
