//! Sampling parameters of one sequence, already validated by the edge or the service.

/// How the next token is chosen. Field ranges are those of vLLM's `SamplingParams`.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// `[0, 2]`; 0 is greedy and turns the filters off.
    pub temperature: f32,
    /// `(0, 1]`; 1 is off.
    pub top_p: f32,
    /// Keep the k most likely tokens; 0 is off.
    pub top_k: u32,
    /// `[0, 1]`: drop tokens less likely than this share of the most likely one; 0 is off.
    pub min_p: f32,
    /// `[-2, 2]`, subtracted once from each token that was generated.
    pub presence_penalty: f32,
    /// `[-2, 2]`, subtracted for each time a token was generated.
    pub frequency_penalty: f32,
    /// `> 0`; divides positive and multiplies negative logits of tokens in prompt or output; 1 is off.
    pub repetition_penalty: f32,
    /// Draw `i` of a sequence is a function of the seed and of the position `i`.
    pub seed: u64,
    /// Added to logits; values in `[-100, 100]`, one entry per token.
    pub logit_bias: Vec<(u32, f32)>,
    /// Only these tokens may be sampled; empty means all.
    pub allowed_token_ids: Vec<u32>,
    /// Token sequences that must not be completed.
    pub bad_words: Vec<Vec<u32>>,
    /// Log probabilities of the sampled token, with this many alternatives.
    pub logprobs: Option<u32>,
    /// Tokens that are masked while fewer than `min_tokens` tokens were generated.
    pub stop_token_ids: Vec<u32>,
    /// See `stop_token_ids`.
    pub min_tokens: u32,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            repetition_penalty: 1.0,
            seed: 0,
            logit_bias: Vec::new(),
            allowed_token_ids: Vec::new(),
            bad_words: Vec::new(),
            logprobs: None,
            stop_token_ids: Vec::new(),
            min_tokens: 0,
        }
    }
}
