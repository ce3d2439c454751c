//! The parsers against files of the tests' own making: whole, odd, broken and hostile ones.

#![expect(
    clippy::unwrap_used,
    reason = "clippy doesn't know the helpers of an integration test as tests"
)]

mod checkpoint;
mod gguf;
mod gguf_hostile;
mod properties;
mod safetensors;
mod writer;
