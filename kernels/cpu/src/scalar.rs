//! The reference: the same operations, one lane after the other.

use std::array;

use half::{bf16, f16};

use crate::simd::{LANES, Simd, Task};

/// Needs nothing of the CPU.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scalar;

type F = [f32; LANES];
type I = [i32; LANES];

#[inline(always)]
fn zip(a: F, b: F, f: impl Fn(f32, f32) -> f32) -> F {
    array::from_fn(|i| f(a[i], b[i]))
}

#[inline(always)]
fn zip_i(a: I, b: I, f: impl Fn(i32, i32) -> i32) -> I {
    array::from_fn(|i| f(a[i], b[i]))
}

impl Simd for Scalar {
    type F = F;
    type I = I;

    const TILE_PANELS: usize = 1;
    const DIRECT_ROWS: usize = 1;

    #[inline(always)]
    fn vectorize<T: Task>(self, task: T) -> T::Output {
        task.run(self)
    }

    #[inline(always)]
    fn splat(self, x: f32) -> F {
        [x; LANES]
    }

    #[inline(always)]
    fn load(self, x: &[f32; LANES]) -> F {
        *x
    }

    #[inline(always)]
    fn store(self, x: F, out: &mut [f32; LANES]) {
        *out = x;
    }

    #[inline(always)]
    fn add(self, a: F, b: F) -> F {
        zip(a, b, |a, b| a + b)
    }

    #[inline(always)]
    fn sub(self, a: F, b: F) -> F {
        zip(a, b, |a, b| a - b)
    }

    #[inline(always)]
    fn mul(self, a: F, b: F) -> F {
        zip(a, b, |a, b| a * b)
    }

    #[inline(always)]
    fn div(self, a: F, b: F) -> F {
        zip(a, b, |a, b| a / b)
    }

    #[inline(always)]
    fn fma(self, a: F, b: F, c: F) -> F {
        array::from_fn(|i| a[i].mul_add(b[i], c[i]))
    }

    #[inline(always)]
    fn max(self, a: F, b: F) -> F {
        zip(a, b, |a, b| if a > b { a } else { b })
    }

    #[inline(always)]
    fn min(self, a: F, b: F) -> F {
        zip(a, b, |a, b| if a < b { a } else { b })
    }

    #[inline(always)]
    fn bits(self, x: F) -> I {
        x.map(|x| x.to_bits() as i32)
    }

    #[inline(always)]
    fn with_bits(self, x: I) -> F {
        x.map(|x| f32::from_bits(x as u32))
    }

    #[inline(always)]
    fn splat_i(self, x: i32) -> I {
        [x; LANES]
    }

    #[inline(always)]
    fn add_i(self, a: I, b: I) -> I {
        zip_i(a, b, i32::wrapping_add)
    }

    #[inline(always)]
    fn sub_i(self, a: I, b: I) -> I {
        zip_i(a, b, i32::wrapping_sub)
    }

    #[inline(always)]
    fn shl_i<const N: u32>(self, x: I) -> I {
        x.map(|x| x << N)
    }

    #[inline(always)]
    fn sar_i<const N: u32>(self, x: I) -> I {
        x.map(|x| x >> N)
    }

    #[inline(always)]
    fn load_i(self, bytes: &[u8; 64]) -> I {
        let words = bytes.as_chunks::<4>().0;
        array::from_fn(|i| i32::from_le_bytes(words[i]))
    }

    #[inline(always)]
    fn nibble<const ZERO: i32>(self, x: I, index: u32) -> F {
        x.map(|x| (((x >> (4 * index)) & 15) - ZERO) as f32)
    }

    #[inline(always)]
    fn crumb(self, x: I, index: u32) -> F {
        x.map(|x| ((x >> (2 * index)) & 3) as f32)
    }

    #[inline(always)]
    fn load_i8(self, bytes: &[u8; 16]) -> F {
        bytes.map(|byte| f32::from(byte.cast_signed()))
    }

    #[inline(always)]
    fn load_f16(self, bytes: &[u8; 32]) -> F {
        let values = bytes.as_chunks::<2>().0;
        array::from_fn(|i| f16::from_le_bytes(values[i]).to_f32())
    }

    #[inline(always)]
    fn load_bf16(self, bytes: &[u8; 32]) -> F {
        let values = bytes.as_chunks::<2>().0;
        array::from_fn(|i| f32::from_bits(u32::from(u16::from_le_bytes(values[i])) << 16))
    }

    #[inline(always)]
    fn load_f32(self, bytes: &[u8; 64]) -> F {
        let values = bytes.as_chunks::<4>().0;
        array::from_fn(|i| f32::from_le_bytes(values[i]))
    }

    #[inline(always)]
    fn to_f16(self, x: &[f32; LANES]) -> [u16; LANES] {
        x.map(|x| f16::from_f32(x).to_bits())
    }
}

/// Bfloat16 bits, rounded to nearest even; a NaN stays one. All instruction sets share it: it is integer arithmetic.
#[inline(always)]
pub(crate) fn to_bf16(x: f32) -> u16 {
    bf16::from_f32(x).to_bits()
}
