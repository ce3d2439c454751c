//! SIMD kernels for CPUs: scalar reference, AVX2 and AVX-512, chosen at run time.
//!
//! Every kernel is written once, generic over the `simd::Simd` trait (16 lanes of f32), and compiled once per
//! instruction set behind [`Kernels`]. Two rules make the results independent of everything but the operands:
//!
//! 1. Lanes are outputs, never parts of one sum. An output is one fixed chain of fused multiply-adds over its inputs,
//!    cut into chunks of [`K_CHUNK`] inputs whose sums are added in order. The number of rows, the tile, the thread
//!    and the instruction set only change which chains run side by side.
//! 2. Every operation is one that IEEE 754 defines exactly (add, multiply, fused multiply-add, divide, square root,
//!    conversions), so the scalar twin gives the same bits. `exp` is built from them (`math.rs`).
//!
//! `unsafe` lives in the instruction set modules only: a token such as `Avx512` can be made only where the CPU has the
//! instructions, so its methods are safe to call. The scheme follows memchr's `arch` modules.

#![expect(
    clippy::inline_always,
    reason = "a generic kernel must be inlined into its #[target_feature] entry, or its vectors travel through memory"
)]
#![expect(
    clippy::needless_range_loop,
    reason = "an index that runs over several arrays of registers reads better than nested zips, and unrolls"
)]

mod attention;
mod format;
mod isa;
mod kernels;
mod kv;
mod math;
mod matmul;
mod pack;
mod rowwise;
mod scalar;
mod simd;
mod weight_type;
#[cfg(target_arch = "x86_64")]
mod x86_64;

pub use attention::{AttentionScratch, AttentionTask};
pub use isa::{Isa, UnknownIsa};
pub use kernels::Kernels;
pub use kv::{KvLayout, KvType};
pub use matmul::{K_CHUNK, MatmulScratch, MatmulTask, Rows};
pub use pack::{Packed, PackedLayout};
pub use rowwise::{Gate, Rotation};
pub use simd::LANES;
pub use weight_type::WeightType;

#[cfg(test)]
mod tests;
