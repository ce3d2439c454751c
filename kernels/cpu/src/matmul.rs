//! Matrix products `out[r][o] = sum over k of x[r][k] * w[o][k]` with packed weights.
//!
//! ```text
//! for each chunk of 256 k:                       the sum of one output, whatever the path
//!     acc = 0
//!     for k in chunk: acc = fma(x[k], w[k], acc)
//!     total += acc
//! ```
//!
//! Two paths run these chains side by side. With one row (decoding), weights go from memory through registers straight
//! into the sums of a pair of panels: it is bound by the memory's bandwidth. With more rows, a tile of up to 4 panels and
//! one chunk is dequantized into the cache once, and a register-tiled kernel takes up to 6 rows at a time over it: it is
//! bound by arithmetic. Chunks keep the rounding error of long sums down (their length bounds the chain) and the tile small.

use std::marker::PhantomData;
use std::ops::Range;

use crate::format::{Format, Quants, with_format};
use crate::pack::Packed;
use crate::simd::{LANES, Simd, Task};

/// Inputs that are summed in one chain. A multiple of every format's record.
pub const K_CHUNK: usize = 256;

/// Rows whose sums wait in the scratch, so that a tile's dequantization is paid by many rows.
const ROW_BLOCK: usize = 256;

/// Panels per tile at most.
const MAX_PANELS: usize = 4;

/// Rows that the micro kernel takes at most.
const MAX_ROWS: usize = 6;

type Tile = [[[f32; LANES]; K_CHUNK]; MAX_PANELS];
type Sums = [[[f32; LANES]; MAX_PANELS]; ROW_BLOCK];

/// Row-major activations.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a> {
    /// The values; row `r` is `data[r * stride..][..cols]`.
    pub data: &'a [f32],
    /// Values from one row to the next.
    pub stride: usize,
    /// How many rows.
    pub num_rows: usize,
}

impl<'a> Rows<'a> {
    /// `len` values of row `row` from `start`.
    #[inline(always)]
    fn slice(&self, row: usize, start: usize, len: usize) -> &'a [f32] {
        &self.data[row * self.stride + start..][..len]
    }
}

/// A thread's working memory for products: about 128 KB.
#[derive(Debug)]
pub struct MatmulScratch {
    tile: Box<Tile>,
    sums: Box<Sums>,
}

impl Default for MatmulScratch {
    fn default() -> Self {
        Self {
            tile: vec![[[0.0; LANES]; K_CHUNK]; MAX_PANELS]
                .into_boxed_slice()
                .try_into()
                .expect("the tile's size"),
            sums: vec![[[0.0; LANES]; MAX_PANELS]; ROW_BLOCK]
                .into_boxed_slice()
                .try_into()
                .expect("the sums' size"),
        }
    }
}

/// The outputs of some panels for all rows.
pub struct MatmulTask<'a> {
    /// The matrix.
    pub weights: Packed<'a>,
    /// Which of its panels.
    pub panels: Range<usize>,
    /// The activations, with at least the matrix's inputs per row.
    pub x: Rows<'a>,
    /// Working memory.
    pub scratch: &'a mut MatmulScratch,
    /// Gets `(row, first output, values)` for every row, in pieces.
    pub sink: &'a mut dyn FnMut(usize, usize, &[f32]),
}

impl Task for MatmulTask<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self {
            weights,
            panels,
            x,
            scratch,
            sink,
        } = self;
        if x.num_rows == 1 {
            let row = x.slice(0, 0, weights.layout().cols());
            return one_row(s, weights, panels, row, sink);
        }
        let mut first = panels.start;
        while first < panels.end {
            let count = S::TILE_PANELS.min(panels.end - first);
            for row in (0..x.num_rows).step_by(ROW_BLOCK) {
                let num_rows = ROW_BLOCK.min(x.num_rows - row);
                let block = Rows {
                    data: &x.data[row * x.stride..],
                    stride: x.stride,
                    num_rows,
                };
                sum_block(s, weights, first..first + count, block, scratch);
                for (r, sums) in scratch.sums[..num_rows].iter().enumerate() {
                    emit(weights, first..first + count, row + r, sums, sink);
                }
            }
            first += count;
        }
    }
}

/// Hands on a row's sums without the lanes that are no outputs.
#[inline(always)]
fn emit(
    weights: Packed<'_>,
    panels: Range<usize>,
    row: usize,
    sums: &[[f32; LANES]],
    sink: &mut dyn FnMut(usize, usize, &[f32]),
) {
    let first = panels.start * LANES;
    let end = (panels.end * LANES).min(weights.layout().rows());
    sink(row, first, &sums.as_flattened()[..end - first]);
}

#[inline(always)]
fn one_row<S: Simd>(
    s: S,
    weights: Packed<'_>,
    panels: Range<usize>,
    x: &[f32],
    sink: &mut dyn FnMut(usize, usize, &[f32]),
) {
    for first in panels.clone().step_by(2) {
        let end = panels.end.min(first + 2);
        // The last of an odd number of panels runs beside itself: one kernel serves both.
        let pair = [weights.panel(first), weights.panel(end - 1)];
        let mut sums = [[0.0; LANES]; 2];
        with_format!(weights.layout().weight_type(), F => {
            s.vectorize(Direct::<F> { panels: pair, x, sums: &mut sums, format: PhantomData });
        });
        emit(weights, first..end, 0, &sums, sink);
    }
}

/// Two panels' sums of one row, from packed weights.
struct Direct<'a, F> {
    panels: [&'a [u8]; 2],
    x: &'a [f32],
    sums: &'a mut [[f32; LANES]; 2],
    format: PhantomData<F>,
}

impl<F: Format> Task for Direct<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let records_per_chunk = K_CHUNK / F::RECORD_LEN;
        let mut totals = [s.splat(0.0); 2];
        for (chunk, x) in self.x.chunks(K_CHUNK).enumerate() {
            let mut acc = [s.splat(0.0); 2];
            for (i, x) in x.chunks(F::RECORD_LEN).enumerate() {
                let index = chunk * records_per_chunk + i;
                let [a, b] = self.panels;
                let records = [record::<F>(a, index, x.len()), record::<F>(b, index, x.len())];
                add_record::<S, F>(s, records, x, &mut acc);
            }
            for p in 0..2 {
                totals[p] = s.add(totals[p], acc[p]);
            }
        }
        for p in 0..2 {
            s.store(totals[p], &mut self.sums[p]);
        }
    }
}

/// Record `index`, which holds `len` inputs.
#[inline(always)]
fn record<F: Format>(panel: &[u8], index: usize, len: usize) -> &[u8] {
    let bytes = if F::RAGGED {
        F::RECORD_BYTES / F::RECORD_LEN * len
    } else {
        F::RECORD_BYTES
    };
    &panel[index * F::RECORD_BYTES..][..bytes]
}

/// Inputs of the record that are there: constant except for plain formats.
#[inline(always)]
fn record_len<F: Format>(available: usize) -> usize {
    if F::RAGGED { available } else { F::RECORD_LEN }
}

/// `acc[p] += x * w[p]` over a record of two panels.
#[inline(always)]
fn add_record<S: Simd, F: Format>(s: S, records: [&[u8]; 2], x: &[f32], acc: &mut [S::F; 2]) {
    let len = record_len::<F>(x.len());
    let step = F::Quants::STEP;
    let headers = [F::header(s, records[0]), F::header(s, records[1])];
    for group in 0..len.div_ceil(F::GROUP_LEN) {
        let scales = [
            F::scales(s, headers[0], records[0], group),
            F::scales(s, headers[1], records[1], group),
        ];
        let at = F::quants_at(group);
        let group_len = if F::RAGGED { len } else { F::GROUP_LEN };
        let x = &x[group * F::GROUP_LEN..][..group_len];
        for i in 0..group_len / step {
            let x = &x[i * step..][..step];
            for p in 0..2 {
                let bytes = &records[p][at + i * F::Quants::STEP_BYTES..][..F::Quants::STEP_BYTES];
                let loaded = F::Quants::load(s, bytes);
                for (j, x) in x.iter().enumerate() {
                    let w = F::weight(s, F::Quants::get(s, loaded, j), scales[p]);
                    acc[p] = s.fma(s.splat(*x), w, acc[p]);
                }
            }
        }
    }
}

/// Fills the scratch's sums with the products of a block of rows and up to 4 panels.
#[inline(always)]
fn sum_block<S: Simd>(
    s: S,
    weights: Packed<'_>,
    panels: Range<usize>,
    x: Rows<'_>,
    scratch: &mut MatmulScratch,
) {
    let cols = weights.layout().cols();
    let MatmulScratch { tile, sums } = scratch;
    sums[..x.num_rows].fill([[0.0; LANES]; MAX_PANELS]);
    for start in (0..cols).step_by(K_CHUNK) {
        let len = K_CHUNK.min(cols - start);
        for (panel, tile) in panels.clone().zip(tile.iter_mut()) {
            dequantize(s, weights, panel, start, &mut tile[..len]);
        }
        let mut row = 0;
        while row < x.num_rows {
            let block = Block {
                tile,
                first_row: row,
                start,
                len,
                x,
                num_panels: panels.len(),
            };
            row += match x.num_rows - row {
                1 => add_block::<S, 1>(s, block, sums),
                2 | 3 => add_block::<S, 2>(s, block, sums),
                4 | 5 => add_block::<S, 4>(s, block, sums),
                _ => add_block::<S, MAX_ROWS>(s, block, sums),
            };
        }
    }
}

/// A few rows and a tile.
struct Block<'a> {
    tile: &'a Tile,
    first_row: usize,
    start: usize,
    len: usize,
    x: Rows<'a>,
    num_panels: usize,
}

/// Adds the products of `R` rows with all panels of the tile; returns `R`.
#[inline(always)]
fn add_block<S: Simd, const R: usize>(s: S, block: Block<'_>, sums: &mut Sums) -> usize {
    let Block {
        tile,
        first_row,
        start,
        len,
        x,
        num_panels,
    } = block;
    let mut rows = [&[] as &[f32]; R];
    for (r, row) in rows.iter_mut().enumerate() {
        *row = x.slice(first_row + r, start, len);
    }
    let sums: &mut [[[f32; LANES]; MAX_PANELS]; R] =
        sums[first_row..][..R].as_mut_array().expect("R rows of sums");
    if S::TILE_PANELS == MAX_PANELS && num_panels == MAX_PANELS {
        s.vectorize(Micro::<R, MAX_PANELS> {
            tile,
            first_panel: 0,
            rows,
            len,
            sums,
        });
    } else {
        for first_panel in 0..num_panels {
            s.vectorize(Micro::<R, 1> {
                tile,
                first_panel,
                rows,
                len,
                sums,
            });
        }
    }
    R
}

/// The micro kernel: `sums[r][p] += sum over k of rows[r][k] * tile[p][k]`, all sums in registers.
struct Micro<'a, const R: usize, const P: usize> {
    tile: &'a Tile,
    first_panel: usize,
    rows: [&'a [f32]; R],
    len: usize,
    sums: &'a mut [[[f32; LANES]; MAX_PANELS]; R],
}

impl<const R: usize, const P: usize> Task for Micro<'_, R, P> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self {
            tile,
            first_panel,
            rows,
            len,
            sums,
        } = self;
        let mut x = [&[] as &[f32]; R];
        for r in 0..R {
            x[r] = &rows[r][..len];
        }
        let mut w = [&[] as &[[f32; LANES]]; P];
        for p in 0..P {
            w[p] = &tile[first_panel + p][..len];
        }
        let mut acc = [[s.splat(0.0); P]; R];
        for k in 0..len {
            let mut weights = [s.splat(0.0); P];
            for p in 0..P {
                weights[p] = s.load(&w[p][k]);
            }
            for r in 0..R {
                let value = s.splat(x[r][k]);
                for p in 0..P {
                    acc[r][p] = s.fma(value, weights[p], acc[r][p]);
                }
            }
        }
        for r in 0..R {
            for p in 0..P {
                let sum = &mut sums[r][first_panel + p];
                let total = s.add(s.load(sum), acc[r][p]);
                s.store(total, sum);
            }
        }
    }
}

/// Weights of one panel as f32: input `start + i` in `out[i]`. `start` is a multiple of [`K_CHUNK`].
#[inline(always)]
fn dequantize<S: Simd>(s: S, weights: Packed<'_>, panel: usize, start: usize, out: &mut [[f32; LANES]]) {
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
            let record = record::<F>(self.panel, first_record + i, out.len());
            let len = record_len::<F>(out.len());
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
