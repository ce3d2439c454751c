//! Arithmetic that gives the same bits everywhere: exponential, maximum, total order of logits.

/// Adding and subtracting it rounds an `f32` of magnitude below 2^22 to the nearest integer, which stays in its low bits: 1.5 * 2^23.
const ROUND: f32 = 12_582_912.0;

/// ln 2 in two parts: the first has few bits, so that its product with a small integer is exact (Cody and Waite, 1980).
const LN_2_HIGH: f32 = 0.693_359_4;
const LN_2_LOW: f32 = -2.121_944_4e-4;

/// Below this e^x is no normal `f32`.
const EXP_UNDERFLOW: f32 = -87.0;

/// e^x for x <= 0, with a relative error below 2e-7; 0 below -87 and for NaN.
///
/// x = n ln 2 + r with |r| <= ln 2 / 2; e^r by the polynomial of Cephes' `expf` (degree 7), scaled by 2^n through the exponent's bits.
/// It has no branches that depend on data, so loops over it become SIMD code, and it calls no library, so it is the same on all machines.
#[inline]
pub(crate) fn exp_of_nonpositive(x: f32) -> f32 {
    let in_range = x >= EXP_UNDERFLOW;
    let x = if in_range { x } else { EXP_UNDERFLOW };
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = (x - n * LN_2_HIGH) - n * LN_2_LOW;
    let mut p = 1.987_569_1e-4;
    p = p * r + 1.398_2e-3;
    p = p * r + 8.333_452e-3;
    p = p * r + 4.166_579_6e-2;
    p = p * r + 1.666_666_5e-1;
    p = p * r + 0.5;
    p = p * r * r + r + 1.0;
    // The low bits of `shifted` are n; n >= -126 keeps the scale a normal number.
    let scale = f32::from_bits(shifted.to_bits().wrapping_add(127) << 23);
    if in_range { p * scale } else { 0.0 }
}

/// The largest value; NaN counts as -inf, and so does nothing at all.
pub(crate) fn max(values: &[f32]) -> f32 {
    // Independent lanes let the compiler use SIMD; a maximum doesn't depend on the order.
    let mut lanes = [f32::NEG_INFINITY; 16];
    let mut chunks = values.chunks_exact(16);
    for chunk in &mut chunks {
        for (lane, &value) in lanes.iter_mut().zip(chunk) {
            *lane = if value > *lane { value } else { *lane };
        }
    }
    let rest = chunks.remainder().iter();
    lanes.iter().chain(rest).fold(
        f32::NEG_INFINITY,
        |max, &value| if value > max { value } else { max },
    )
}

/// The index of the largest value, the lowest one of equals. None if there is none above -inf.
pub(crate) fn argmax(values: &[f32]) -> Option<u32> {
    let max = max(values);
    let first = values
        .iter()
        .position(|&value| value == max && max > f32::NEG_INFINITY);
    first.map(|index| index as u32)
}

/// A key whose ascending order is: larger logit first, then lower id. NaN counts as -inf, -0 as 0.
#[inline]
pub(crate) fn rank_key(logit: f32, id: u32) -> u64 {
    let logit = if logit.is_nan() {
        f32::NEG_INFINITY
    } else {
        logit + 0.0
    };
    let bits = logit.to_bits();
    // Negative floats order backwards by their bits; flipping makes the bits ascend with the value.
    let ascending = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
    u64::from(!ascending) << 32 | u64::from(id)
}

/// The id in a [`rank_key`].
#[inline]
pub(crate) fn id_of(key: u64) -> u32 {
    key as u32
}
