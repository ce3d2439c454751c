//! Rotary position embeddings: from a description to tables of cosines and sines.
//!
//! Inverse frequencies are computed the way transformers computes them (`modeling_rope_utils.py`), in f32 with the same
//! order of operations, because at a position of some thousands an error of one unit in the last place of a frequency
//! is an error of a thousandth of a radian. Powers, cosines and sines are rounded from f64.

use std::f64::consts::PI;

use kvasir_backend::{RopeStyle, RopeTable};

use crate::error::ModelError;

/// How a model encodes positions.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeConfig {
    /// Base of the geometric series of wavelengths, greater than 1.
    pub theta: f64,
    /// How many of a head's values rotate: even, in `2..=head_dim`.
    pub rotary_dim: usize,
    /// Which values form a pair.
    pub style: RopeStyle,
    /// How frequencies were changed to reach longer contexts.
    pub scaling: RopeScaling,
}

/// The scaling kinds, by transformers' names. Lengths are in tokens.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    /// None.
    Default,
    /// All frequencies are divided by a factor.
    Linear {
        /// At least 1.
        factor: f64,
    },
    /// The base grows with the length of the sequence once that exceeds the original length. Kvasir serves such a model
    /// within its original length only, where the kind changes nothing: beyond it, the rotation of a cached key would
    /// depend on how long its sequence became later.
    Dynamic,
    /// Llama 3.1: long wavelengths are divided, short ones kept, with a smooth passage.
    Llama3 {
        /// Divides the low frequencies.
        factor: f64,
        /// `original_len` divided by the wavelength above which frequencies are divided.
        low_freq_factor: f64,
        /// `original_len` divided by the wavelength below which frequencies are kept.
        high_freq_factor: f64,
        /// Context length before the extension.
        original_len: f64,
    },
    /// YaRN (arXiv 2309.00071).
    Yarn {
        /// Divides the low frequencies.
        factor: f64,
        /// Context length before the extension.
        original_len: f64,
        /// Multiplies cosines and sines.
        attention_factor: f64,
        /// Rotations over the original length above which a frequency is kept.
        beta_fast: f64,
        /// Rotations over the original length below which a frequency is divided.
        beta_slow: f64,
        /// Whether the borders of the ramp are rounded outwards.
        truncate: bool,
    },
    /// LongRoPE (arXiv 2402.13753). As in vLLM, the long factors are used for every sequence if the server's
    /// `max_model_len` exceeds the original length, so that cached keys stay valid.
    LongRope {
        /// Divisors within the original length, one per frequency.
        short_factors: Vec<f32>,
        /// Divisors beyond it.
        long_factors: Vec<f32>,
        /// Context length before the extension.
        original_len: usize,
        /// Multiplies cosines and sines.
        attention_factor: f64,
    },
    /// Divisors from a GGUF file's `rope_freqs.weight`, one per frequency; how GGUF stores `Llama3`.
    Divisors(Vec<f32>),
}

impl RopeConfig {
    /// Cosines and sines for positions `0..max_len`.
    ///
    /// # Errors
    /// If memory for the table is short.
    pub fn table(&self, max_len: usize, num_q_heads: usize) -> Result<RopeTable, ModelError> {
        let inv_freq = self.inverse_frequencies(max_len);
        let scale = self.attention_factor() as f32;
        let num_values = max_len.checked_mul(inv_freq.len());
        let (mut cos, mut sin) = (Vec::new(), Vec::new());
        let reserved = num_values
            .is_some_and(|num| cos.try_reserve_exact(num).is_ok() && sin.try_reserve_exact(num).is_ok());
        if !reserved {
            let bytes = num_values
                .and_then(|num| num.checked_mul(8))
                .unwrap_or(usize::MAX);
            return Err(ModelError::OutOfMemory {
                what: "the table of rotary positions",
                bytes,
            });
        }
        for position in 0..max_len {
            for &frequency in &inv_freq {
                // The product is rounded to f32 before the cosine, as in transformers.
                let angle = f64::from(position as f32 * frequency);
                cos.push(angle.cos() as f32 * scale);
                sin.push(angle.sin() as f32 * scale);
            }
        }
        Ok(RopeTable {
            style: self.style,
            rotary_dim: self.rotary_dim,
            num_q_heads,
            cos,
            sin,
        })
    }

    /// Radians per position of each pair.
    fn inverse_frequencies(&self, max_len: usize) -> Vec<f32> {
        let base = inverse_powers(self.theta, self.rotary_dim);
        match &self.scaling {
            RopeScaling::Default | RopeScaling::Dynamic => base,
            RopeScaling::Linear { factor } => base.iter().map(|f| f / *factor as f32).collect(),
            RopeScaling::Divisors(divisors) => base.iter().zip(divisors).map(|(f, d)| f / d).collect(),
            RopeScaling::LongRope {
                short_factors,
                long_factors,
                original_len,
                ..
            } => {
                let factors = if max_len > *original_len {
                    long_factors
                } else {
                    short_factors
                };
                factors
                    .iter()
                    .enumerate()
                    .map(|(i, factor)| 1.0 / (factor * power(self.theta, 2 * i, self.rotary_dim)))
                    .collect()
            }
            RopeScaling::Llama3 {
                factor,
                low_freq_factor,
                high_freq_factor,
                original_len,
            } => base
                .iter()
                .map(|&f| llama3_frequency(f, *factor, *low_freq_factor, *high_freq_factor, *original_len))
                .collect(),
            RopeScaling::Yarn {
                factor,
                original_len,
                beta_fast,
                beta_slow,
                truncate,
                ..
            } => {
                let (low, high) = yarn_ramp_borders(
                    self.rotary_dim,
                    self.theta,
                    *original_len,
                    *beta_fast,
                    *beta_slow,
                    *truncate,
                );
                (0..self.rotary_dim / 2)
                    .map(|i| {
                        let kept = 1.0 - (((i as f64 - low) / (high - low)) as f32).clamp(0.0, 1.0);
                        let power = power(self.theta, 2 * i, self.rotary_dim);
                        let divided = 1.0 / (*factor as f32 * power);
                        divided * (1.0 - kept) + (1.0 / power) * kept
                    })
                    .collect()
            }
        }
    }

    fn attention_factor(&self) -> f64 {
        match self.scaling {
            RopeScaling::Yarn { attention_factor, .. } | RopeScaling::LongRope { attention_factor, .. } => {
                attention_factor
            }
            _ => 1.0,
        }
    }
}

/// `theta^(exponent / dim)` in f32.
fn power(theta: f64, exponent: usize, dim: usize) -> f32 {
    f64::from(theta as f32).powf(f64::from(exponent as f32 / dim as f32)) as f32
}

fn inverse_powers(theta: f64, dim: usize) -> Vec<f32> {
    (0..dim / 2).map(|i| 1.0 / power(theta, 2 * i, dim)).collect()
}

fn llama3_frequency(frequency: f32, factor: f64, low: f64, high: f64, original_len: f64) -> f32 {
    let wavelength = (2.0 * PI) as f32 / frequency;
    if wavelength < (original_len / high) as f32 {
        frequency
    } else if wavelength > (original_len / low) as f32 {
        frequency / factor as f32
    } else {
        let smooth = (original_len as f32 / wavelength - low as f32) / (high - low) as f32;
        (1.0 - smooth) * frequency / factor as f32 + smooth * frequency
    }
}

/// Between which pair indices YaRN passes from kept to divided frequencies; never equal.
fn yarn_ramp_borders(
    dim: usize,
    theta: f64,
    original_len: f64,
    beta_fast: f64,
    beta_slow: f64,
    truncate: bool,
) -> (f64, f64) {
    let index_of =
        |rotations: f64| dim as f64 * (original_len / (rotations * 2.0 * PI)).ln() / (2.0 * theta.ln());
    let (mut low, mut high) = (index_of(beta_fast), index_of(beta_slow));
    if truncate {
        (low, high) = (low.floor(), high.ceil());
    }
    let (low, high) = (low.max(0.0), high.min(dim as f64 - 1.0));
    (low, if low == high { high + 0.001 } else { high })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rope(scaling: RopeScaling) -> RopeConfig {
        RopeConfig {
            theta: 10_000.0,
            rotary_dim: 8,
            style: RopeStyle::Halves,
            scaling,
        }
    }

    #[test]
    fn position_zero_is_not_rotated() {
        let table = rope(RopeScaling::Default).table(3, 2).unwrap();
        assert_eq!(table.cos[..4], [1.0; 4]);
        assert_eq!(table.sin[..4], [0.0; 4]);
        assert_eq!(table.cos.len(), 3 * 4);
    }

    #[test]
    fn first_pair_turns_by_one_radian_per_position() {
        let table = rope(RopeScaling::Default).table(3, 2).unwrap();
        assert!((table.sin[4] - 1f32.sin()).abs() < 1e-7);
        assert!((table.sin[5] - 0.1f32.sin()).abs() < 1e-7);
    }

    #[test]
    fn linear_scaling_slows_every_pair() {
        let table = rope(RopeScaling::Linear { factor: 4.0 }).table(5, 2).unwrap();
        let plain = rope(RopeScaling::Default).table(2, 2).unwrap();
        assert_eq!(table.cos[4 * 4..], plain.cos[4..]);
    }

    #[test]
    fn yarn_with_equal_borders_has_finite_frequencies() {
        let yarn = RopeScaling::Yarn {
            factor: 2.0,
            original_len: 1.0,
            attention_factor: 1.5,
            beta_fast: 32.0,
            beta_slow: 1.0,
            truncate: true,
        };
        let table = rope(yarn).table(4, 1).unwrap();
        assert!(table.cos.iter().chain(&table.sin).all(|value| value.is_finite()));
        assert_eq!(table.cos[0], 1.5);
    }

    #[test]
    fn divisors_of_llama3_equal_its_formula() {
        let llama3 = RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_len: 64.0,
        };
        let direct = rope(llama3).inverse_frequencies(1);
        let plain = rope(RopeScaling::Default).inverse_frequencies(1);
        let divisors = plain.iter().zip(&direct).map(|(p, d)| p / d).collect();
        let divided = rope(RopeScaling::Divisors(divisors)).inverse_frequencies(1);
        for (a, b) in direct.iter().zip(&divided) {
            assert!((a - b).abs() <= 2.0 * f32::EPSILON * a);
        }
    }

    #[test]
    fn table_that_cannot_be_allocated_is_an_error() {
        let error = rope(RopeScaling::Default).table(usize::MAX / 2, 1).unwrap_err();
        assert!(matches!(
            error,
            ModelError::OutOfMemory {
                bytes: usize::MAX,
                ..
            }
        ));
    }
}
