//! Backend over the CPU kernels: thread pool, KV storage and fused operations.
//!
//! [`CpuBackend`] checks every operand, cuts an operation into pieces whose outputs are disjoint, and lets the pool's
//! threads take pieces until none is left. A piece's result doesn't depend on who computes it or when, so neither the
//! number of threads nor the load of the machine changes a bit. Operations too small to be worth a hand-over run on the
//! calling thread.

mod attention;
mod backend;
mod buffer;
mod check;
mod kv;
mod matrix;
mod pieces;
mod pool;
mod region;
mod shared;

pub use backend::{CpuBackend, CpuBackendError, CpuOptions};
pub use buffer::{CpuBuffer, CpuVector};
pub use kv::CpuKv;
pub use kvasir_kernels_cpu::{Isa, UnknownIsa};
pub use matrix::CpuMatrix;

#[cfg(test)]
mod tests;
