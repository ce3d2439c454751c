//! Operations on one row: norm, rotary embedding, gated activation.

use crate::kv::padded;
use crate::math::{gelu_tanh, silu};
use crate::simd::{LANES, Simd, Task, sum};

/// A gate's activation.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Gate {
    /// `x / (1 + e^-x)`.
    Silu,
    /// The tanh approximation of GELU.
    GeluTanh,
}

/// Which values of a head rotate together.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Rotation {
    /// Value `i` with `i + n`, of `2n` that rotate.
    Halves,
    /// Value `2i` with `2i + 1`.
    Pairs,
}

/// `out = x / sqrt(mean(x^2) + eps) * weight`. The squares are summed in 16 lanes, lane `i` taking every 16th value.
pub(crate) struct RmsNorm<'a> {
    pub(crate) x: &'a [f32],
    pub(crate) weight: &'a [f32],
    pub(crate) eps: f32,
    pub(crate) out: &'a mut [f32],
}

impl Task for RmsNorm<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (chunks, tail) = self.x.as_chunks::<LANES>();
        let mut squares = s.splat(0.0);
        for x in chunks {
            let x = s.load(x);
            squares = s.fma(x, x, squares);
        }
        let rest = s.load(&padded(tail));
        squares = s.fma(rest, rest, squares);
        let mean = sum(s, squares) / self.x.len() as f32;
        let scale = 1.0 / (mean + self.eps).sqrt();
        for ((out, x), weight) in self.out.iter_mut().zip(self.x).zip(self.weight) {
            *out = x * scale * weight;
        }
    }
}

/// Rotates a head's first values by the angles of a position.
pub(crate) struct Rotate<'a> {
    pub(crate) rotation: Rotation,
    /// The values that rotate.
    pub(crate) head: &'a mut [f32],
    /// Half as many cosines.
    pub(crate) cos: &'a [f32],
    /// And sines.
    pub(crate) sin: &'a [f32],
}

impl Task for Rotate<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let angles = self.cos.iter().zip(self.sin);
        match self.rotation {
            Rotation::Halves => {
                let (first, second) = self.head.split_at_mut(self.cos.len());
                for ((a, b), (cos, sin)) in first.iter_mut().zip(second).zip(angles) {
                    (*a, *b) = rotate(*a, *b, *cos, *sin);
                }
            }
            Rotation::Pairs => {
                for ([a, b], (cos, sin)) in self.head.as_chunks_mut::<2>().0.iter_mut().zip(angles) {
                    (*a, *b) = rotate(*a, *b, *cos, *sin);
                }
            }
        }
    }
}

#[inline(always)]
fn rotate(a: f32, b: f32, cos: f32, sin: f32) -> (f32, f32) {
    (a.mul_add(cos, -(b * sin)), b.mul_add(cos, a * sin))
}

/// `out = act(gate) * up`.
pub(crate) struct GatedActivation<'a> {
    pub(crate) gate: Gate,
    pub(crate) gates: &'a [f32],
    pub(crate) ups: &'a [f32],
    pub(crate) out: &'a mut [f32],
}

impl Task for GatedActivation<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let lanes = self.gates.chunks(LANES).zip(self.ups.chunks(LANES));
        for ((gates, ups), out) in lanes.zip(self.out.chunks_mut(LANES)) {
            let x = s.load(&padded(gates));
            let activated = match self.gate {
                Gate::Silu => silu(s, x),
                Gate::GeluTanh => gelu_tanh(s, x),
            };
            let mut product = [0.0; LANES];
            s.store(s.mul(activated, s.load(&padded(ups))), &mut product);
            out.copy_from_slice(&product[..out.len()]);
        }
    }
}
