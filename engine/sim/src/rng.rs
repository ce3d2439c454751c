//! Pseudo-random numbers from a seed: the same on every machine and in every version.
//!
//! xoshiro256++ (Blackman and Vigna, *Scrambled linear pseudorandom number generators*, 2021), its state filled by `SplitMix64`, as its
//! authors advise. The draws that use logarithms and powers are equal on machines whose floating point library rounds them equally.

use std::f64::consts::TAU;

/// A generator. Different streams of one seed are independent, so that a change of one distribution leaves the draws of the others alone.
#[derive(Clone, Debug)]
pub struct Rng {
    state: [u64; 4],
}

impl Rng {
    /// Stream `stream` of a seed.
    pub fn new(seed: u64, stream: u64) -> Self {
        let mut mixer = seed ^ split_mix(&mut stream.wrapping_add(0x5851_f42d_4c95_7f2d));
        Self {
            state: std::array::from_fn(|_| split_mix(&mut mixer)),
        }
    }

    /// 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        let [a, b, c, d] = self.state;
        let result = a.wrapping_add(d).rotate_left(23).wrapping_add(a);
        let (c, d) = (c ^ a, d ^ b);
        self.state = [a ^ d, b ^ c, c ^ (b << 17), d.rotate_left(45)];
        result
    }

    /// Uniform in `[0, 1)`, in steps of 2^-53.
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 * (1.0 / (1_u64 << 53) as f64)
    }

    /// Uniform in `(0, 1]`: its logarithm is finite.
    fn positive_unit(&mut self) -> f64 {
        1.0 - self.unit()
    }

    /// Uniform in `min..=max`, which must be in order. The bias of at most 2^-32 doesn't matter to a simulation.
    pub fn between(&mut self, min: u32, max: u32) -> u32 {
        let span = u64::from(max.saturating_sub(min)) + 1;
        min + ((u128::from(self.next_u64()) * u128::from(span)) >> 64) as u32
    }

    /// Exponential with mean 1.
    pub fn exponential(&mut self) -> f64 {
        -self.positive_unit().ln()
    }

    /// Normal with mean 0 and deviation 1 (Box and Muller, 1958).
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * self.positive_unit().ln()).sqrt();
        radius * (TAU * self.unit()).cos()
    }

    /// Gamma with this shape and mean 1 (Marsaglia and Tsang, 2000). Shape 1 is the exponential distribution.
    pub fn gamma(&mut self, shape: f64) -> f64 {
        if shape == 1.0 {
            return self.exponential();
        }
        if shape < 1.0 {
            // Their boost: a draw of shape + 1 times a power of a uniform one.
            let boost = self.positive_unit().powf(shape.recip());
            return self.standard_gamma(shape + 1.0) * boost / shape;
        }
        self.standard_gamma(shape) / shape
    }

    /// Gamma with a shape of at least 1 and mean `shape`.
    fn standard_gamma(&mut self, shape: f64) -> f64 {
        let d = shape - 1.0 / 3.0;
        let c = (9.0 * d).sqrt().recip();
        loop {
            let x = self.normal();
            let v = (1.0 + c * x).powi(3);
            if v > 0.0 && self.positive_unit().ln() < 0.5 * x * x + d - d * v + d * v.ln() {
                return d * v;
            }
        }
    }
}

fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Mean and coefficient of variation.
    fn moments(mut draw: impl FnMut() -> f64) -> (f64, f64) {
        let draws: Vec<f64> = (0..200_000).map(|_| draw()).collect();
        let mean = draws.iter().sum::<f64>() / draws.len() as f64;
        let variance = draws.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / draws.len() as f64;
        (mean, variance.sqrt() / mean)
    }

    #[test]
    fn the_mixer_has_the_published_values() {
        // The first outputs of SplitMix64 for seed 1234567.
        let mut state = 1_234_567;
        let outputs: Vec<u64> = (0..3).map(|_| split_mix(&mut state)).collect();
        assert_eq!(
            outputs,
            [
                6_457_827_717_110_365_317,
                3_203_168_211_198_807_973,
                9_817_491_932_198_370_423
            ]
        );
    }

    #[test]
    fn the_generator_has_the_published_values() {
        // The first outputs of xoshiro256++ for the state 1, 2, 3, 4.
        let mut rng = Rng { state: [1, 2, 3, 4] };
        let outputs: Vec<u64> = (0..4).map(|_| rng.next_u64()).collect();
        assert_eq!(
            outputs,
            [
                41_943_041,
                58_720_359,
                3_588_806_011_781_223,
                3_591_011_842_654_386
            ]
        );
    }

    #[test]
    fn streams_of_a_seed_differ_and_repeat() {
        let draws = |seed, stream| {
            let mut rng = Rng::new(seed, stream);
            [rng.next_u64(), rng.next_u64()]
        };
        assert_eq!(draws(1, 2), draws(1, 2));
        assert_ne!(draws(1, 2), draws(1, 3));
        assert_ne!(draws(1, 2), draws(2, 2));
    }

    #[test]
    fn gamma_has_mean_one_and_the_variation_of_its_shape() {
        for shape in [0.25_f64, 1.0, 4.0, 100.0] {
            let mut rng = Rng::new(7, 0);
            let (mean, variation) = moments(|| rng.gamma(shape));
            assert!((mean - 1.0).abs() < 0.03, "mean {mean} of shape {shape}");
            let expected = shape.sqrt().recip();
            assert!(
                (variation / expected - 1.0).abs() < 0.03,
                "variation {variation} of shape {shape}"
            );
        }
    }

    #[test]
    fn uniform_draws_reach_both_ends_and_nothing_else() {
        let mut rng = Rng::new(3, 0);
        let mut seen = [0; 5];
        for _ in 0..10_000 {
            seen[(rng.between(10, 14) - 10) as usize] += 1;
        }
        assert!(
            seen.iter().all(|&count| (1800..2200).contains(&count)),
            "{seen:?}"
        );
        assert_eq!(rng.between(u32::MAX, u32::MAX), u32::MAX);
    }
}
