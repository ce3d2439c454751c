//! AVX2 with FMA and F16C: a vector is two registers.
#![expect(unsafe_code, reason = "intrinsics; the token proves that the CPU has them")]

#[allow(
    clippy::wildcard_imports,
    reason = "the file is about intrinsics; clippy is silent about it in test builds"
)]
use std::arch::x86_64::*;

use super::op;
use crate::simd::{LANES, Simd, Task};

/// Proof that the CPU has AVX2, FMA and F16C.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Avx2(());

/// Lanes 0 to 7 and 8 to 15.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pair<T>(T, T);

type F = Pair<__m256>;
type I = Pair<__m256i>;

impl Avx2 {
    /// The token, if the CPU (and the operating system) can do it.
    pub(crate) fn new() -> Option<Self> {
        let available = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c");
        available.then_some(Self(()))
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
fn run<T: Task>(simd: Avx2, task: T) -> T::Output {
    task.run(simd)
}

/// Calls an intrinsic on both halves.
macro_rules! both {
    ($intrinsic:ident $(::<$($generic:tt),+>)? ($($argument:expr),*)) => {
        Pair(
            op!($intrinsic $(::<$($generic),+>)? ($($argument.0),*)),
            op!($intrinsic $(::<$($generic),+>)? ($($argument.1),*)),
        )
    };
}

impl Simd for Avx2 {
    type F = F;
    type I = I;

    // 12 accumulators, 2 weights and a broadcast of 16 registers.
    const TILE_PANELS: usize = 1;
    const DIRECT_ROWS: usize = 2;

    #[inline]
    fn vectorize<T: Task>(self, task: T) -> T::Output {
        // SAFETY: `self` exists only if the CPU has all features of `run`.
        unsafe { run(self, task) }
    }

    #[inline(always)]
    fn splat(self, x: f32) -> F {
        let x = op!(_mm256_set1_ps(x));
        Pair(x, x)
    }

    #[inline(always)]
    fn load(self, x: &[f32; LANES]) -> F {
        let halves = x.as_chunks::<8>().0;
        Pair(load_8(&halves[0]), load_8(&halves[1]))
    }

    #[inline(always)]
    fn store(self, x: F, out: &mut [f32; LANES]) {
        let halves = out.as_chunks_mut::<8>().0;
        store_8(x.0, &mut halves[0]);
        store_8(x.1, &mut halves[1]);
    }

    #[inline(always)]
    fn add(self, a: F, b: F) -> F {
        both!(_mm256_add_ps(a, b))
    }

    #[inline(always)]
    fn sub(self, a: F, b: F) -> F {
        both!(_mm256_sub_ps(a, b))
    }

    #[inline(always)]
    fn mul(self, a: F, b: F) -> F {
        both!(_mm256_mul_ps(a, b))
    }

    #[inline(always)]
    fn div(self, a: F, b: F) -> F {
        both!(_mm256_div_ps(a, b))
    }

    #[inline(always)]
    fn fma(self, a: F, b: F, c: F) -> F {
        both!(_mm256_fmadd_ps(a, b, c))
    }

    #[inline(always)]
    fn max(self, a: F, b: F) -> F {
        both!(_mm256_max_ps(a, b))
    }

    #[inline(always)]
    fn min(self, a: F, b: F) -> F {
        both!(_mm256_min_ps(a, b))
    }

    #[inline(always)]
    fn bits(self, x: F) -> I {
        both!(_mm256_castps_si256(x))
    }

    #[inline(always)]
    fn with_bits(self, x: I) -> F {
        both!(_mm256_castsi256_ps(x))
    }

    #[inline(always)]
    fn splat_i(self, x: i32) -> I {
        let x = op!(_mm256_set1_epi32(x));
        Pair(x, x)
    }

    #[inline(always)]
    fn add_i(self, a: I, b: I) -> I {
        both!(_mm256_add_epi32(a, b))
    }

    #[inline(always)]
    fn sub_i(self, a: I, b: I) -> I {
        both!(_mm256_sub_epi32(a, b))
    }

    #[inline(always)]
    fn shl_i<const N: u32>(self, x: I) -> I {
        let count = self.splat_i(N as i32);
        both!(_mm256_sllv_epi32(x, count))
    }

    #[inline(always)]
    fn sar_i<const N: u32>(self, x: I) -> I {
        let count = self.splat_i(N as i32);
        both!(_mm256_srav_epi32(x, count))
    }

    #[inline(always)]
    fn load_i(self, bytes: &[u8; 64]) -> I {
        let halves = bytes.as_chunks::<32>().0;
        Pair(load_256(&halves[0]), load_256(&halves[1]))
    }

    #[inline(always)]
    fn nibble<const ZERO: i32>(self, x: I, index: u32) -> F {
        let masked = field(self, x, 4 * index, 15);
        let centred = if ZERO == 0 {
            masked
        } else {
            self.sub_i(masked, self.splat_i(ZERO))
        };
        both!(_mm256_cvtepi32_ps(centred))
    }

    #[inline(always)]
    fn crumb(self, x: I, index: u32) -> F {
        let masked = field(self, x, 2 * index, 3);
        both!(_mm256_cvtepi32_ps(masked))
    }

    #[inline(always)]
    fn load_i8(self, bytes: &[u8; 16]) -> F {
        let halves = bytes.as_chunks::<8>().0;
        // SAFETY: The array has the 8 bytes that are read; no alignment is needed. The token stands for the instruction.
        let low = unsafe { _mm_loadl_epi64(halves[0].as_ptr().cast()) };
        // SAFETY: As above.
        let high = unsafe { _mm_loadl_epi64(halves[1].as_ptr().cast()) };
        let bytes = Pair(low, high);
        let words = both!(_mm256_cvtepi8_epi32(bytes));
        both!(_mm256_cvtepi32_ps(words))
    }

    #[inline(always)]
    fn load_f16(self, bytes: &[u8; 32]) -> F {
        let halves = load_2x128(bytes);
        both!(_mm256_cvtph_ps(halves))
    }

    #[inline(always)]
    fn load_bf16(self, bytes: &[u8; 32]) -> F {
        let halves = load_2x128(bytes);
        let words = both!(_mm256_cvtepu16_epi32(halves));
        self.with_bits(self.shl_i::<16>(words))
    }

    #[inline(always)]
    fn load_f32(self, bytes: &[u8; 64]) -> F {
        self.with_bits(self.load_i(bytes))
    }

    #[inline(always)]
    fn to_f16(self, x: &[f32; LANES]) -> [u16; LANES] {
        let x = self.load(x);
        let halves = both!(_mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(x));
        let mut out = [0; LANES];
        let parts = out.as_chunks_mut::<8>().0;
        // SAFETY: The array has the 16 bytes that are written; no alignment is needed. The token stands for the instruction.
        unsafe { _mm_storeu_si128(parts[0].as_mut_ptr().cast(), halves.0) };
        // SAFETY: As above.
        unsafe { _mm_storeu_si128(parts[1].as_mut_ptr().cast(), halves.1) };
        out
    }
}

/// `(x >> shift) & mask`; the shift is a constant after unrolling, so it becomes an immediate.
#[inline(always)]
fn field(s: Avx2, x: I, shift: u32, mask: i32) -> I {
    let shift = s.splat_i(shift as i32);
    let mask = s.splat_i(mask);
    let shifted: I = both!(_mm256_srlv_epi32(x, shift));
    both!(_mm256_and_si256(shifted, mask))
}

#[inline(always)]
fn load_8(x: &[f32; 8]) -> __m256 {
    // SAFETY: The array has the 32 bytes that are read; no alignment is needed. Callers hold the token.
    unsafe { _mm256_loadu_ps(x.as_ptr()) }
}

#[inline(always)]
fn store_8(x: __m256, out: &mut [f32; 8]) {
    // SAFETY: The array has the 32 bytes that are written; no alignment is needed. Callers hold the token.
    unsafe { _mm256_storeu_ps(out.as_mut_ptr(), x) }
}

#[inline(always)]
fn load_256(bytes: &[u8; 32]) -> __m256i {
    // SAFETY: The array has the 32 bytes that are read; no alignment is needed. Callers hold the token.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

#[inline(always)]
fn load_2x128(bytes: &[u8; 32]) -> Pair<__m128i> {
    let halves = bytes.as_chunks::<16>().0;
    // SAFETY: The array has the 16 bytes that are read; no alignment is needed. Callers hold the token.
    let low = unsafe { _mm_loadu_si128(halves[0].as_ptr().cast()) };
    // SAFETY: As above.
    let high = unsafe { _mm_loadu_si128(halves[1].as_ptr().cast()) };
    Pair(low, high)
}
