//! Transformer families, written once over [`Backend`](kvasir_backend::Backend) and run through
//! [`Executor`](kvasir_backend::Executor).
//!
//! [`ModelConfig::from_checkpoint`] makes a small description of a model out of `config.json` or GGUF metadata. Every key
//! is either understood or known to be harmless; any other one is an error, because a model that computes something
//! almost right is worse than one that doesn't start. [`load()`] compares the description with the shape of every tensor
//! before it allocates anything, and gives a [`Model`], which executes the scheduler's plans.
//!
//! Families: `LlamaForCausalLM` and `MistralForCausalLM` (also SmolLM2, and GGUF's `llama`, which stands for both).

mod check;
mod config;
mod error;
mod executor;
mod job;
mod load;
mod loader;
mod plan;
mod rope;
mod runner;
mod sequence;
mod transformer;

pub use config::{Architecture, Biases, Format, ModelConfig};
pub use error::ModelError;
pub use executor::Model;
pub use load::{KvOptions, LoadOptions, LoadProgress, MAX_STEP_TOKENS, kv_block_bytes, load};
pub use rope::{RopeConfig, RopeScaling};
pub use runner::LogitsObserver;
