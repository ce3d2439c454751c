//! `exp` and what is built on it, from exactly rounded operations only, so that every instruction set gives the same bits.
//!
//! ```text
//! n = round(x / ln 2)          by adding and subtracting 1.5 * 2^23, which rounds to nearest even
//! r = x - n ln 2               in two steps, the first of them exact; |r| <= ln 2 / 2 (and a bit)
//! e^x = 2^n * sum r^i / i!     i = 0..7: the rest is below r^8 / 8! = 5.2e-9, a tenth of a unit in the last place
//! ```
//!
//! 2^n is applied as two factors, so that results may be subnormal or overflow to infinity as they should. The tests hold
//! the relative error below 2^-22.5 for normal results.

use crate::simd::Simd;

/// Adding this rounds a small float to an integer, which then sits in the low bits.
const ROUND: f32 = 12_582_912.0; // 1.5 * 2^23

/// ln 2 with 9 significant bits (355 / 512), so that `n * LN2_HIGH` is exact for |n| < 2^15.
const LN2_HIGH: f32 = 355.0 / 512.0;

/// What is missing to ln 2.
const LN2_LOW: f32 = -2.121_944_4e-4;

/// Below, e^x rounds to 0: half of the smallest subnormal is 2^-150 = e^-103.97.
const LOWEST: f32 = -104.0;

/// Above 88.73, e^x is infinite.
const HIGHEST: f32 = 89.0;

/// 1/7! .. 1/0!, highest power first.
const COEFFICIENTS: [f32; 8] = [
    1.0 / 5040.0,
    1.0 / 720.0,
    1.0 / 120.0,
    1.0 / 24.0,
    1.0 / 6.0,
    0.5,
    1.0,
    1.0,
];

/// `e^x`; NaN stays NaN.
#[inline(always)]
pub(crate) fn exp<S: Simd>(s: S, x: S::F) -> S::F {
    // `x` is the second operand, which wins when it is NaN.
    let x = s.min(s.splat(HIGHEST), s.max(s.splat(LOWEST), x));
    let shifted = s.fma(x, s.splat(std::f32::consts::LOG2_E), s.splat(ROUND));
    let n = s.sub(shifted, s.splat(ROUND));
    let r = s.fma(n, s.splat(-LN2_HIGH), x);
    let r = s.fma(n, s.splat(-LN2_LOW), r);
    let mut p = s.splat(COEFFICIENTS[0]);
    for coefficient in &COEFFICIENTS[1..] {
        p = s.fma(p, r, s.splat(*coefficient));
    }
    let n = s.sub_i(s.bits(shifted), s.splat_i(ROUND.to_bits() as i32));
    let half = s.sar_i::<1>(n);
    let rest = s.sub_i(n, half);
    s.mul(s.mul(p, power_of_two(s, half)), power_of_two(s, rest))
}

/// `2^n` for `n` in `-126..=127`.
#[inline(always)]
fn power_of_two<S: Simd>(s: S, n: S::I) -> S::F {
    s.with_bits(s.shl_i::<23>(s.add_i(n, s.splat_i(127))))
}

/// `x / (1 + e^-x)`.
#[inline(always)]
pub(crate) fn silu<S: Simd>(s: S, x: S::F) -> S::F {
    x_sigmoid(s, x, x)
}

/// The tanh approximation of GELU: `x / 2 * (1 + tanh(u))` with `u = sqrt(2 / pi) * (x + 0.044715 x^3)`, which is
/// `x / (1 + e^-2u)`, a form without cancellation.
#[inline(always)]
pub(crate) fn gelu_tanh<S: Simd>(s: S, x: S::F) -> S::F {
    const TWO_SQRT_2_OVER_PI: f32 = std::f32::consts::FRAC_2_SQRT_PI * std::f32::consts::SQRT_2;
    let cubic = s.fma(s.mul(x, x), s.splat(0.044_715), s.splat(1.0));
    let u2 = s.mul(s.mul(x, s.splat(TWO_SQRT_2_OVER_PI)), cubic);
    x_sigmoid(s, x, u2)
}

/// `x / (1 + e^-z)`. Where `e^-z` is infinite the result is -0 (or NaN for an infinite x, as in the reference).
#[inline(always)]
fn x_sigmoid<S: Simd>(s: S, x: S::F, z: S::F) -> S::F {
    let e = exp(s, s.sub(s.splat(0.0), z));
    s.div(x, s.add(s.splat(1.0), e))
}
