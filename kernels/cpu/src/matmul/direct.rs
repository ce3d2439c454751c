//! A few rows: packed weights go through registers straight into the sums of two panels.

use std::marker::PhantomData;
use std::ops::Range;

use super::dequantize::record;
use super::{K_CHUNK, Rows, emit};
use crate::format::{Format, Quants, with_format};
use crate::pack::Packed;
use crate::simd::{LANES, Simd, Task};

/// Up to `R` rows, straight from packed weights.
#[inline(always)]
pub(super) fn direct<S: Simd, const R: usize>(
    s: S,
    weights: Packed<'_>,
    panels: Range<usize>,
    x: Rows<'_>,
    sink: &mut dyn FnMut(usize, usize, &[f32]),
) {
    // Missing rows repeat the last one, and the last of an odd number of panels runs beside itself: one kernel serves all.
    let mut rows = [&[] as &[f32]; R];
    for (r, row) in rows.iter_mut().enumerate() {
        *row = x.slice(r.min(x.num_rows - 1), 0, weights.layout().cols());
    }
    for first in panels.clone().step_by(2) {
        let end = panels.end.min(first + 2);
        let panels = [weights.panel(first), weights.panel(end - 1)];
        let mut sums = [[[0.0; LANES]; 2]; R];
        with_format!(weights.layout().weight_type(), F => {
            s.vectorize(Direct::<F, R> { panels, rows, sums: &mut sums, format: PhantomData });
        });
        for (row, sums) in sums[..x.num_rows].iter().enumerate() {
            emit(weights, first..end, row, sums, sink);
        }
    }
}

/// Two panels' sums of `R` rows, from packed weights.
struct Direct<'a, F, const R: usize> {
    panels: [&'a [u8]; 2],
    rows: [&'a [f32]; R],
    sums: &'a mut [[[f32; LANES]; 2]; R],
    format: PhantomData<F>,
}

impl<F: Format, const R: usize> Task for Direct<'_, F, R> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let cols = self.rows[0].len();
        let [a, b] = self.panels;
        let mut totals = [[s.splat(0.0); 2]; R];
        for start in (0..cols).step_by(K_CHUNK) {
            let mut acc = [[s.splat(0.0); 2]; R];
            for k in (start..cols.min(start + K_CHUNK)).step_by(F::RECORD_LEN) {
                let len = if F::RAGGED {
                    F::RECORD_LEN.min(cols - k)
                } else {
                    F::RECORD_LEN
                };
                let mut x = [&[] as &[f32]; R];
                for r in 0..R {
                    x[r] = &self.rows[r][k..][..len];
                }
                let index = k / F::RECORD_LEN;
                let records = [record::<F>(a, index, len), record::<F>(b, index, len)];
                add_record::<S, F, R>(s, records, len, x, &mut acc);
            }
            for r in 0..R {
                for p in 0..2 {
                    totals[r][p] = s.add(totals[r][p], acc[r][p]);
                }
            }
        }
        for r in 0..R {
            for p in 0..2 {
                s.store(totals[r][p], &mut self.sums[r][p]);
            }
        }
    }
}

/// `acc[r][p] += x[r] * w[p]` over a record of two panels, which holds `len` inputs (a constant except for plain formats).
#[inline(always)]
fn add_record<S: Simd, F: Format, const R: usize>(
    s: S,
    records: [&[u8]; 2],
    len: usize,
    x: [&[f32]; R],
    acc: &mut [[S::F; 2]; R],
) {
    let step = F::Quants::STEP;
    let headers = [F::header(s, records[0]), F::header(s, records[1])];
    for group in 0..len.div_ceil(F::GROUP_LEN) {
        let scales = [
            F::scales(s, headers[0], records[0], group),
            F::scales(s, headers[1], records[1], group),
        ];
        let at = F::quants_at(group);
        let group_len = if F::RAGGED { len } else { F::GROUP_LEN };
        for i in 0..group_len / step {
            let mut steps = [&[] as &[f32]; R];
            for r in 0..R {
                steps[r] = &x[r][group * F::GROUP_LEN + i * step..][..step];
            }
            for p in 0..2 {
                let bytes = &records[p][at + i * F::Quants::STEP_BYTES..][..F::Quants::STEP_BYTES];
                let loaded = F::Quants::load(s, bytes);
                for j in 0..step {
                    let w = F::weight(s, F::Quants::get(s, loaded, j), scales[p]);
                    for r in 0..R {
                        acc[r][p] = s.fma(s.splat(steps[r][j]), w, acc[r][p]);
                    }
                }
            }
        }
    }
}
