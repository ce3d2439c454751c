//! AVX-512: a vector is one register.
#![expect(unsafe_code, reason = "intrinsics; the token proves that the CPU has them")]

#[allow(
    clippy::wildcard_imports,
    reason = "the file is about intrinsics; clippy is silent about it in test builds"
)]
use std::arch::x86_64::*;

use super::op;
use crate::simd::{LANES, Simd, Task};

/// Proof that the CPU has AVX-512 F, BW, DQ and VL, FMA and F16C.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Avx512(());

impl Avx512 {
    /// The token, if the CPU (and the operating system) can do it.
    pub(crate) fn new() -> Option<Self> {
        let available = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c");
        available.then_some(Self(()))
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,fma,f16c")]
fn run<T: Task>(simd: Avx512, task: T) -> T::Output {
    task.run(simd)
}

impl Simd for Avx512 {
    type F = __m512;
    type I = __m512i;

    // 24 accumulators, 4 weights and a broadcast of 32 registers.
    const TILE_PANELS: usize = 4;
    const DIRECT_ROWS: usize = 8;

    #[inline]
    fn vectorize<T: Task>(self, task: T) -> T::Output {
        // SAFETY: `self` exists only if the CPU has all features of `run`.
        unsafe { run(self, task) }
    }

    #[inline(always)]
    fn splat(self, x: f32) -> __m512 {
        op!(_mm512_set1_ps(x))
    }

    #[inline(always)]
    fn load(self, x: &[f32; LANES]) -> __m512 {
        // SAFETY: The array has the 64 bytes that are read; no alignment is needed. The token stands for the instruction.
        unsafe { _mm512_loadu_ps(x.as_ptr()) }
    }

    #[inline(always)]
    fn store(self, x: __m512, out: &mut [f32; LANES]) {
        // SAFETY: The array has the 64 bytes that are written; no alignment is needed. The token stands for the instruction.
        unsafe { _mm512_storeu_ps(out.as_mut_ptr(), x) }
    }

    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        op!(_mm512_add_ps(a, b))
    }

    #[inline(always)]
    fn sub(self, a: __m512, b: __m512) -> __m512 {
        op!(_mm512_sub_ps(a, b))
    }

    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        op!(_mm512_mul_ps(a, b))
    }

    #[inline(always)]
    fn div(self, a: __m512, b: __m512) -> __m512 {
        op!(_mm512_div_ps(a, b))
    }

    #[inline(always)]
    fn fma(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        op!(_mm512_fmadd_ps(a, b, c))
    }

    #[inline(always)]
    fn max(self, a: __m512, b: __m512) -> __m512 {
        op!(_mm512_max_ps(a, b))
    }

    #[inline(always)]
    fn min(self, a: __m512, b: __m512) -> __m512 {
        op!(_mm512_min_ps(a, b))
    }

    #[inline(always)]
    fn bits(self, x: __m512) -> __m512i {
        op!(_mm512_castps_si512(x))
    }

    #[inline(always)]
    fn with_bits(self, x: __m512i) -> __m512 {
        op!(_mm512_castsi512_ps(x))
    }

    #[inline(always)]
    fn splat_i(self, x: i32) -> __m512i {
        op!(_mm512_set1_epi32(x))
    }

    #[inline(always)]
    fn add_i(self, a: __m512i, b: __m512i) -> __m512i {
        op!(_mm512_add_epi32(a, b))
    }

    #[inline(always)]
    fn sub_i(self, a: __m512i, b: __m512i) -> __m512i {
        op!(_mm512_sub_epi32(a, b))
    }

    #[inline(always)]
    fn shl_i<const N: u32>(self, x: __m512i) -> __m512i {
        op!(_mm512_slli_epi32::<N>(x))
    }

    #[inline(always)]
    fn sar_i<const N: u32>(self, x: __m512i) -> __m512i {
        op!(_mm512_srai_epi32::<N>(x))
    }

    #[inline(always)]
    fn load_i(self, bytes: &[u8; 64]) -> __m512i {
        // SAFETY: The array has the 64 bytes that are read; no alignment is needed. The token stands for the instruction.
        unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
    }

    #[inline(always)]
    fn nibble<const ZERO: i32>(self, x: __m512i, index: u32) -> __m512 {
        // The permutation looks at the low 4 bits of its indices, so it is mask, subtraction and conversion in one.
        let table: [f32; LANES] = std::array::from_fn(|q| (q as i32 - ZERO) as f32);
        let table = self.load(&table);
        let shifted = shift_right(x, 4 * index);
        op!(_mm512_permutexvar_ps(shifted, table))
    }

    #[inline(always)]
    fn crumb(self, x: __m512i, index: u32) -> __m512 {
        let table: [f32; LANES] = std::array::from_fn(|q| (q % 4) as f32);
        let table = self.load(&table);
        let shifted = shift_right(x, 2 * index);
        op!(_mm512_permutexvar_ps(shifted, table))
    }

    #[inline(always)]
    fn load_i8(self, bytes: &[u8; 16]) -> __m512 {
        // SAFETY: The array has the 16 bytes that are read; no alignment is needed. The token stands for the instruction.
        let bytes = unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) };
        let words = op!(_mm512_cvtepi8_epi32(bytes));
        op!(_mm512_cvtepi32_ps(words))
    }

    #[inline(always)]
    fn load_f16(self, bytes: &[u8; 32]) -> __m512 {
        let halves = load_256(bytes);
        op!(_mm512_cvtph_ps(halves))
    }

    #[inline(always)]
    fn load_bf16(self, bytes: &[u8; 32]) -> __m512 {
        let halves = load_256(bytes);
        let words = op!(_mm512_cvtepu16_epi32(halves));
        self.with_bits(self.shl_i::<16>(words))
    }

    #[inline(always)]
    fn load_f32(self, bytes: &[u8; 64]) -> __m512 {
        // SAFETY: The array has the 64 bytes that are read; no alignment is needed. The token stands for the instruction.
        unsafe { _mm512_loadu_ps(bytes.as_ptr().cast()) }
    }

    #[inline(always)]
    fn to_f16(self, x: &[f32; LANES]) -> [u16; LANES] {
        let x = self.load(x);
        let halves = op!(_mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(x));
        let mut out = [0; LANES];
        // SAFETY: The array has the 32 bytes that are written; no alignment is needed. The token stands for the instruction.
        unsafe { _mm256_storeu_si256(out.as_mut_ptr().cast(), halves) };
        out
    }
}

/// Logical shift; `index` is a constant after unrolling, so it becomes an immediate.
#[inline(always)]
fn shift_right(x: __m512i, count: u32) -> __m512i {
    let count = op!(_mm512_set1_epi32(count as i32));
    op!(_mm512_srlv_epi32(x, count))
}

#[inline(always)]
fn load_256(bytes: &[u8; 32]) -> __m256i {
    // SAFETY: The array has the 32 bytes that are read; no alignment is needed. Callers hold the token.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}
