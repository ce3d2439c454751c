//! Matrix products `out[r][o] = sum over k of x[r][k] * w[o][k]` with packed weights.
//!
//! ```text
//! for each chunk of 256 k:                       the sum of one output, whatever the path
//!     acc = 0
//!     for k in chunk: acc = fma(x[k], w[k], acc)
//!     total += acc
//! ```
//!
//! Two paths run these chains side by side. With a few rows (decoding), weights go from memory through registers straight
//! into the sums of a pair of panels: it is bound by the memory's bandwidth. With more rows, a tile of up to 4 panels and
//! one chunk is dequantized into the cache once, and a register-tiled kernel takes up to 6 rows at a time over it: it is
//! bound by arithmetic. Chunks keep the rounding error of long sums down (their length bounds the chain) and the tile small.

mod dequantize;
mod direct;
mod tiled;

use std::ops::Range;

use crate::pack::Packed;
use crate::simd::{LANES, Simd, Task};
pub(crate) use dequantize::DequantizeRow;
use direct::direct;
use tiled::sum_block;

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
        match x.num_rows {
            0 => return,
            1 => return direct::<S, 1>(s, weights, panels, x, sink),
            2 if const { S::DIRECT_ROWS >= 2 } => return direct::<S, 2>(s, weights, panels, x, sink),
            3 | 4 if const { S::DIRECT_ROWS >= 4 } => return direct::<S, 4>(s, weights, panels, x, sink),
            5..=8 if const { S::DIRECT_ROWS >= 8 } => return direct::<S, 8>(s, weights, panels, x, sink),
            _ => {}
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
