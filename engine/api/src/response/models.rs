//! Answers of the model list and the tokenizer routes.

use serde::Serialize;

/// `GET /v1/models`.
#[derive(Clone, Debug, Serialize)]
pub struct ModelList {
    /// `list`.
    pub object: &'static str,
    /// One per served name.
    pub data: Vec<ModelCard>,
}

/// One served name.
#[derive(Clone, Debug, Serialize)]
pub struct ModelCard {
    /// What requests put into `model`.
    pub id: String,
    /// `model`.
    pub object: &'static str,
    /// Seconds since 1970: when the server started.
    pub created: u64,
    /// `kvasir`.
    pub owned_by: &'static str,
    /// The name the model was loaded under.
    pub root: String,
    /// None: this is no adapter.
    pub parent: Option<String>,
    /// Prompt plus output, in tokens.
    pub max_model_len: u32,
}

/// `POST /tokenize`.
#[derive(Clone, Debug, Serialize)]
pub struct TokenizeResponse {
    /// Number of tokens.
    pub count: usize,
    /// Prompt plus output, in tokens.
    pub max_model_len: u32,
    /// Token ids.
    pub tokens: Vec<u32>,
    /// The tokens as the vocabulary spells them, if asked for.
    pub token_strs: Option<Vec<String>>,
}

/// `POST /detokenize`.
#[derive(Clone, Debug, Serialize)]
pub struct DetokenizeResponse {
    /// The text.
    pub prompt: String,
}
