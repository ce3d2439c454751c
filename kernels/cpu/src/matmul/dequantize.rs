//! Packed weights back to f32.

use std::marker::PhantomData;

use super::{K_CHUNK, MatmulScratch};
use crate::format::{Format, Quants, with_format};
use crate::pack::Packed;
use crate::simd::{LANES, Simd, Task};

/// Weights of one panel as f32: input `start + i` in `out[i]`. `start` is a multiple of [`K_CHUNK`].
#[inline(always)]
pub(super) fn dequantize<S: Simd>(
    s: S,
    weights: Packed<'_>,
    panel: usize,
    start: usize,
    out: &mut [[f32; LANES]],
) {
    let panel = weights.panel(panel);
    with_format!(weights.layout().weight_type(), F => {
        s.vectorize(Dequantize::<F> { panel, start, out, format: PhantomData });
    });
}

struct Dequantize<'a, F> {
    panel: &'a [u8],
    start: usize,
    out: &'a mut [[f32; LANES]],
    format: PhantomData<F>,
}

impl<F: Format> Task for Dequantize<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let first_record = self.start / F::RECORD_LEN;
        let step = F::Quants::STEP;
        for (i, out) in self.out.chunks_mut(F::RECORD_LEN).enumerate() {
            let len = if F::RAGGED { out.len() } else { F::RECORD_LEN };
            let record = record::<F>(self.panel, first_record + i, len);
            let header = F::header(s, record);
            for (group, out) in out[..len].chunks_mut(F::GROUP_LEN).enumerate() {
                let scales = F::scales(s, header, record, group);
                let quants = &record[F::quants_at(group)..];
                for (out, bytes) in out
                    .chunks_exact_mut(step)
                    .zip(quants.chunks_exact(F::Quants::STEP_BYTES))
                {
                    let loaded = F::Quants::load(s, bytes);
                    for (j, out) in out.iter_mut().enumerate() {
                        let w = F::weight(s, F::Quants::get(s, loaded, j), scales);
                        s.store(w, out);
                    }
                }
            }
        }
    }
}

/// One row of the matrix as f32.
pub(crate) struct DequantizeRow<'a> {
    /// The matrix.
    pub(crate) weights: Packed<'a>,
    /// Which row.
    pub(crate) row: usize,
    /// Gets the matrix's inputs.
    pub(crate) out: &'a mut [f32],
    /// Working memory.
    pub(crate) scratch: &'a mut MatmulScratch,
}

impl Task for DequantizeRow<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let tile = &mut self.scratch.tile[0];
        for (chunk, out) in self.out.chunks_mut(K_CHUNK).enumerate() {
            let weights = &mut tile[..out.len()];
            dequantize(s, self.weights, self.row / LANES, chunk * K_CHUNK, weights);
            for (out, lanes) in out.iter_mut().zip(weights) {
                *out = lanes[self.row % LANES];
            }
        }
    }
}

/// Record `index`, which holds `len` inputs.
#[inline(always)]
pub(super) fn record<F: Format>(panel: &[u8], index: usize, len: usize) -> &[u8] {
    let bytes = if F::RAGGED {
        F::RECORD_BYTES / F::RECORD_LEN * len
    } else {
        F::RECORD_BYTES
    };
    &panel[index * F::RECORD_BYTES..][..bytes]
}
