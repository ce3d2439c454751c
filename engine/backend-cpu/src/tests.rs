//! Conformance, equal bits, and what the backend refuses.

mod conformance;
mod determinism;
