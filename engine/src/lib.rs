//! Kvasir serves large language models: engine, edge and command line.
pub mod fetch;
