//! What a request is checked against: limits of the server and the model, and the model's sampling defaults.

use crate::error::ApiError;

/// Bytes that one log probability costs in an answer: token text, bytes, digits and punctuation.
const BYTES_PER_LOGPROB: u64 = 64;

/// Limits and defaults that requests are resolved against.
#[derive(Clone, Debug)]
pub struct Context {
    /// Limits of the server and the model.
    pub limits: Limits,
    /// What sampling fields are when a request leaves them out.
    pub defaults: SamplingDefaults,
}

/// Limits of the server and the model.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Prompt plus output, in tokens.
    pub max_model_len: u32,
    /// Token ids are below this.
    pub vocab_size: u32,
    /// Most alternatives per log probability.
    pub max_logprobs: u32,
    /// Most prompts of one completion request; vLLM's `VLLM_MAX_COMPLETION_PROMPTS`.
    pub max_prompts: usize,
    /// Most sequences of one request: prompts x n.
    pub max_sequences: usize,
    /// Most stop strings of one request; vLLM's `VLLM_MAX_STOP_STRINGS`.
    pub max_stop_strings: usize,
    /// Longest stop string, in bytes: each stream holds that much text back.
    pub max_stop_bytes: usize,
    /// Most bytes of log probabilities that one answer may need.
    pub max_logprob_bytes: u64,
    /// Whether `chat_template` in a request is honoured.
    pub trust_request_chat_template: bool,
}

impl Limits {
    /// The limits of a model, with the server's own at their defaults.
    pub fn new(max_model_len: u32, vocab_size: u32, max_logprobs: u32) -> Self {
        Self {
            max_model_len,
            vocab_size,
            max_logprobs,
            max_prompts: 1024,
            max_sequences: 1024,
            max_stop_strings: 4,
            max_stop_bytes: 1024,
            max_logprob_bytes: 256 << 20,
            trust_request_chat_template: false,
        }
    }

    /// Refuses an answer whose log probabilities would need more than `max_logprob_bytes`.
    ///
    /// # Errors
    /// If `positions` x (`alternatives` + 1) is too much.
    pub fn check_logprob_budget(
        &self,
        param: &str,
        positions: u64,
        alternatives: u32,
    ) -> Result<(), ApiError> {
        let bytes = positions
            .saturating_mul(u64::from(alternatives) + 1)
            .saturating_mul(BYTES_PER_LOGPROB);
        if bytes <= self.max_logprob_bytes {
            return Ok(());
        }
        let message = format!(
            "the log probabilities of {positions} tokens would need about {bytes} bytes, the limit is {}; \
             ask for fewer tokens, sequences or alternatives",
            self.max_logprob_bytes
        );
        Err(ApiError::value(param, alternatives, &message))
    }
}

/// What sampling fields are when a request leaves them out: the model's generation config, or OpenAI's defaults.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingDefaults {
    /// 0 is greedy.
    pub temperature: f32,
    /// (0, 1].
    pub top_p: f32,
    /// 0 is off.
    pub top_k: u32,
    /// [0, 1].
    pub min_p: f32,
    /// > 0.
    pub repetition_penalty: f32,
    /// Output tokens; none means what the route says.
    pub max_tokens: Option<u32>,
}

impl Default for SamplingDefaults {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            max_tokens: None,
        }
    }
}
