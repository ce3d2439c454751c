//! The text crate through its public interface: against transformers, against llama.cpp's vectors, and against people who
//! mean no good.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking, its helpers too"
)]

mod chat;
mod common;
mod detokenizer;
mod hostile;
mod protection;
mod smollm2;
mod template_goldens;
mod vectors;
