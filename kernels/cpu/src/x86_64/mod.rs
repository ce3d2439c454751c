//! The x86-64 instruction sets.

mod avx2;
mod avx512;

pub(crate) use avx2::Avx2;
pub(crate) use avx512::Avx512;

/// Calls an intrinsic whose only demand is the instruction set that the surrounding token stands for.
macro_rules! op {
    ($intrinsic:ident $(::<$($generic:tt),+>)? ($($argument:expr),* $(,)?)) => {{
        // SAFETY: The token's constructor checked that the CPU has this instruction; operands are registers.
        unsafe { $intrinsic $(::<$($generic),+>)? ($($argument),*) }
    }};
}
use op;
