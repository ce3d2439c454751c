//! Draws: a number from (seed, position), and the token whose share of the distribution it falls into.

/// Multipliers and key increments of Philox4x32, from Salmon et al., *Parallel Random Numbers: As Easy as 1, 2, 3* (2011).
const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const KEY_INCREMENTS: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
const NUM_ROUNDS: usize = 10;

/// The draw of a position of a sequence: uniform in `[0, 1)`, with 53 bits.
///
/// A function of its arguments alone: no state advances, so a token doesn't depend on which other sequences or steps drew before it.
/// Philox4x32-10 with the seed as its key and the position as its counter: neighbouring seeds and positions, which are what `n`
/// sequences of one request use, give independent numbers.
pub fn uniform(seed: u64, position: u64) -> f64 {
    let [a, b, _, _] = philox(
        [position as u32, (position >> 32) as u32, 0, 0],
        [seed as u32, (seed >> 32) as u32],
    );
    let bits = u64::from(b) << 32 | u64::from(a);
    (bits >> 11) as f64 / (1_u64 << 53) as f64
}

/// One block of Philox4x32-10.
pub(crate) fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..NUM_ROUNDS {
        let first = u64::from(MULTIPLIERS[0]) * u64::from(counter[0]);
        let second = u64::from(MULTIPLIERS[1]) * u64::from(counter[2]);
        counter = [
            (second >> 32) as u32 ^ counter[1] ^ key[0],
            second as u32,
            (first >> 32) as u32 ^ counter[3] ^ key[1],
            first as u32,
        ];
        key = [
            key[0].wrapping_add(KEY_INCREMENTS[0]),
            key[1].wrapping_add(KEY_INCREMENTS[1]),
        ];
    }
    counter
}

/// Weights are summed in pieces of this many: a draw walks the sums of pieces first and only one piece token by token.
pub(crate) const WEIGHTS_PER_SUM: usize = 256;

/// Sums of consecutive pieces of `weights`, in `f64`.
pub(crate) fn piece_sums(weights: &[f32], sums: &mut Vec<f64>) {
    sums.clear();
    sums.extend(weights.chunks(WEIGHTS_PER_SUM).map(sum));
}

/// The sum in `f64`, in four lanes: a fixed order that SIMD code can keep.
pub(crate) fn sum(weights: &[f32]) -> f64 {
    let mut lanes = [0.0_f64; 4];
    let mut chunks = weights.chunks_exact(4);
    for chunk in &mut chunks {
        for (lane, &weight) in lanes.iter_mut().zip(chunk) {
            *lane += f64::from(weight);
        }
    }
    let rest: f64 = chunks.remainder().iter().map(|&weight| f64::from(weight)).sum();
    (lanes[0] + lanes[1]) + (lanes[2] + lanes[3]) + rest
}

/// The first index at which the running sum of `weights` exceeds `u` (in `[0, 1)`) times their sum: index i has probability
/// `weights[i] / sum`. `sums` are [`piece_sums`] of the weights. None if no weight is positive.
pub(crate) fn pick(weights: &[f32], sums: &[f64], u: f64) -> Option<usize> {
    let target = u * sums.iter().sum::<f64>();
    let mut before = 0.0;
    for (index, (piece, piece_sum)) in weights.chunks(WEIGHTS_PER_SUM).zip(sums).enumerate() {
        if before + piece_sum > target {
            let offset = pick_in_order(piece, target - before)?;
            return Some(index * WEIGHTS_PER_SUM + offset);
        }
        before += piece_sum;
    }
    // Rounding can leave the target just above the last sum.
    weights.iter().rposition(|&weight| weight > 0.0)
}

/// The first index at which the running sum exceeds `target`; the last positive weight where rounding leaves none.
fn pick_in_order(weights: &[f32], target: f64) -> Option<usize> {
    let mut before = 0.0;
    let found = weights.iter().position(|&weight| {
        before += f64::from(weight);
        before > target
    });
    found.or_else(|| weights.iter().rposition(|&weight| weight > 0.0))
}
