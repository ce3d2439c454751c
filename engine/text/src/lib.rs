//! Text as one library of incremental automata: tokenizer, chat template, detokenizer, stop strings.
//!
//! One implementation for every process shape: `kvasir serve` and a gateway use the same [`Text`], loaded from the same
//! [`TextAssets`], so the same chat always gives the same tokens (C42). No I/O, no clock: the caller brings files and
//! the time.
//!
//! Two promises, each held by tests that generate inputs:
//! - The concatenated stream equals the non-streamed text, for every way of cutting ([`Detokenizer`], [`StopMatcher`]).
//! - User text never becomes a control token ([`Text::encode_chat`]).

mod assets;
mod chat;
mod config;
mod decoder;
mod detokenizer;
mod encoder;
mod error;
mod gguf;
mod model_template;
mod protect;
mod stop;
mod table;
mod template;
mod text;

pub use assets::{
    ASSET_NAMES, CHAT_TEMPLATE_JINJA, GENERATION_CONFIG_JSON, TOKENIZER_CONFIG_JSON, TOKENIZER_JSON,
    TextAssets,
};
pub use chat::{ChatRequest, Rendered};
pub use config::GenerationDefaults;
pub use detokenizer::{Detokenizer, DetokenizerOptions};
pub use error::TextError;
pub use gguf::GgufVocab;
pub use stop::{StopMatcher, StopStep};
pub use text::Text;
