//! Log probabilities, as clients see them: of the raw model distribution, before penalties and filters.

/// The log probability of one token, its rank and the best alternatives.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprobs {
    /// The token.
    pub token: u32,
    /// Its log probability; never NaN, at least -9999.
    pub logprob: f32,
    /// 1 is the most likely token.
    pub rank: u32,
    /// The most likely tokens with their log probabilities, best first, ties by id.
    pub top: Vec<(u32, f32)>,
}
