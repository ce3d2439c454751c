//! Many rows: a tile of weights is dequantized into the cache once, and a register-tiled kernel takes rows over it.

use std::ops::Range;

use super::dequantize::dequantize;
use super::{K_CHUNK, MAX_PANELS, MAX_ROWS, MatmulScratch, Rows, Sums, Tile};
use crate::pack::Packed;
use crate::simd::{LANES, Simd, Task};

/// Fills the scratch's sums with the products of a block of rows and up to 4 panels.
#[inline(always)]
pub(super) fn sum_block<S: Simd>(
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
        // Blocks of equal size: a short one at the end would wait for its own chains.
        let num_blocks = x.num_rows.div_ceil(MAX_ROWS);
        for block in 0..num_blocks {
            let row = block * x.num_rows / num_blocks;
            let count = (block + 1) * x.num_rows / num_blocks - row;
            let block = Block {
                tile,
                first_row: row,
                start,
                len,
                x,
                num_panels: panels.len(),
            };
            match count {
                1 => add_block::<S, 1>(s, block, sums),
                2 => add_block::<S, 2>(s, block, sums),
                3 => add_block::<S, 3>(s, block, sums),
                4 => add_block::<S, 4>(s, block, sums),
                5 => add_block::<S, 5>(s, block, sums),
                _ => add_block::<S, MAX_ROWS>(s, block, sums),
            }
        }
    }
}

/// A few rows and a tile.
#[derive(Clone, Copy)]
struct Block<'a> {
    tile: &'a Tile,
    first_row: usize,
    start: usize,
    len: usize,
    x: Rows<'a>,
    num_panels: usize,
}

/// Adds the products of `R` rows with all panels of the tile.
#[inline(always)]
fn add_block<S: Simd, const R: usize>(s: S, block: Block<'_>, sums: &mut Sums) {
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
