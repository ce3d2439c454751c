//! The two shapes of log probabilities, and those of the prompt.

use std::collections::BTreeMap;

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

/// What impossible and undefined log probabilities are shown as: JSON has neither infinity nor NaN (vLLM's floor).
const FLOOR: f32 = -9999.0;

/// A log probability that JSON can hold.
pub fn clamp_logprob(logprob: f32) -> f32 {
    if logprob.is_nan() {
        FLOOR
    } else {
        logprob.clamp(FLOOR, 0.0)
    }
}

/// A log probability; serializes as a finite number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Logprob(pub f32);

impl Serialize for Logprob {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f32(clamp_logprob(self.0))
    }
}

/// Log probabilities of a chat choice.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ChatLogprobs {
    /// One per token.
    pub content: Vec<ChatLogprob>,
}

/// One sampled token of a chat choice.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ChatLogprob {
    /// Its text; incomplete characters are shown as U+FFFD.
    pub token: String,
    /// Its log probability.
    pub logprob: Logprob,
    /// Its exact bytes.
    pub bytes: Vec<u8>,
    /// The most likely tokens, best first.
    pub top_logprobs: Vec<TopChatLogprob>,
}

/// An alternative to a sampled token.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TopChatLogprob {
    /// Its text.
    pub token: String,
    /// Its log probability.
    pub logprob: Logprob,
    /// Its exact bytes.
    pub bytes: Vec<u8>,
}

/// Log probabilities of a completion choice; the four lists have one entry per token.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct CompletionLogprobs {
    /// Where the token starts in the choice's text, in characters.
    pub text_offset: Vec<u64>,
    /// None for the first prompt token.
    pub token_logprobs: Vec<Option<Logprob>>,
    /// The tokens' texts.
    pub tokens: Vec<String>,
    /// The most likely tokens and the one at hand; none for the first prompt token.
    pub top_logprobs: Vec<Option<TopLogprobs>>,
}

/// Alternatives by text, best first; of equal texts the more likely token is shown.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TopLogprobs(Vec<(String, Logprob)>);

impl FromIterator<(String, Logprob)> for TopLogprobs {
    fn from_iter<I: IntoIterator<Item = (String, Logprob)>>(entries: I) -> Self {
        let mut unique: Vec<(String, Logprob)> = Vec::new();
        for (token, logprob) in entries {
            if !unique.iter().any(|(seen, _)| *seen == token) {
                unique.push((token, logprob));
            }
        }
        Self(unique)
    }
}

impl Serialize for TopLogprobs {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (token, logprob) in &self.0 {
            map.serialize_entry(token, logprob)?;
        }
        map.end()
    }
}

/// Per prompt token its candidates by id; none for the first token.
pub type PromptLogprobs = Vec<Option<BTreeMap<u32, PromptLogprob>>>;

/// A candidate for a prompt position.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PromptLogprob {
    /// Its log probability.
    pub logprob: Logprob,
    /// 1 is the most likely.
    pub rank: u32,
    /// Its text.
    pub decoded_token: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_log_probabilities_are_valid_json() {
        let values: Vec<Logprob> = [f32::NAN, f32::NEG_INFINITY, f32::INFINITY, -1e30, -0.5]
            .into_iter()
            .map(Logprob)
            .collect();
        let json = serde_json::to_string(&values).unwrap();
        assert_eq!(json, "[-9999.0,-9999.0,0.0,-9999.0,-0.5]");
    }

    #[test]
    fn equal_texts_keep_the_more_likely_token() {
        let tops: TopLogprobs = [
            ("a".to_owned(), Logprob(-0.1)),
            ("b".to_owned(), Logprob(-0.2)),
            ("a".to_owned(), Logprob(-0.3)),
        ]
        .into_iter()
        .collect();
        assert_eq!(serde_json::to_string(&tops).unwrap(), "{\"a\":-0.1,\"b\":-0.2}");
    }
}
