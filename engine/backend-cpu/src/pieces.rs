//! Operations cut into pieces: products by output panels, the rest by rows.
#![expect(unsafe_code, reason = "pieces write disjoint rows or columns of one buffer")]

use kvasir_backend::BackendError;
use kvasir_kernels_cpu::MatmulTask;

use crate::backend::{CpuBackend, Scratch};
use crate::buffer::{CpuBuffer, CpuVector};
use crate::check::expect;
use crate::matrix::CpuMatrix;
use crate::pool::lock;
use crate::shared::SharedMut;

/// Values per piece of an operation that goes by rows: some microseconds of work, many times a hand-over.
pub(crate) const VALUES_PER_PIECE: usize = 16 * 1024;

/// Panels per piece of a product with one row: a few microseconds, so that threads end together.
const DECODE_PANELS: usize = 4;

/// Panels per piece of a product with more rows: what the micro kernel takes at once.
const PREFILL_PANELS: usize = 4;

impl CpuBackend {
    /// `x * w^T + bias`, into `out` or added to it.
    pub(crate) fn product(
        &mut self,
        operation: &'static str,
        w: &CpuMatrix,
        bias: Option<&CpuVector>,
        x: &CpuBuffer,
        (out, add): (&mut CpuBuffer, bool),
    ) -> Result<(), BackendError> {
        expect(operation, "inputs", x.width(), w.cols())?;
        expect(operation, "outputs", out.width(), w.rows())?;
        expect(operation, "rows", out.rows(), x.rows())?;
        if let Some(bias) = bias {
            expect(operation, "biases", bias.values.len(), w.rows())?;
        }
        if x.rows() == 0 {
            return Ok(());
        }
        let panels = if x.rows() == 1 {
            DECODE_PANELS
        } else {
            PREFILL_PANELS
        };
        let width = out.width();
        let out = SharedMut::new(out.values_mut());
        let Self {
            kernels,
            pool,
            scratch,
            ..
        } = self;
        pool.run(operation, w.num_pieces(panels), &|worker, piece| {
            let piece = w.piece(piece, panels);
            let scratch = &mut lock(&scratch[worker]).matmul;
            let rows = x.view(0, x.rows());
            let mut sink = |row: usize, output: usize, sums: &[f32]| {
                let first = piece.first_row + output;
                // SAFETY: A piece owns the outputs of its panels, in all rows, and the slice ends with this call.
                let out = unsafe { out.part(row * width + first, sums.len()) };
                let bias = bias.map(|bias| &bias.values[first..][..sums.len()]);
                finish_outputs(out, sums, bias, add);
            };
            let task = MatmulTask {
                weights: piece.weights,
                panels: piece.panels,
                x: rows,
                scratch,
                sink: &mut sink,
            };
            kernels.matmul(task);
        })
    }

    /// Runs `work(worker, row, row of out)` for every row.
    pub(crate) fn by_rows(
        &mut self,
        operation: &'static str,
        out: &mut CpuBuffer,
        work: &(dyn Fn(&mut Scratch, usize, &mut [f32]) + Sync),
    ) -> Result<(), BackendError> {
        let (rows, width) = (out.rows(), out.width());
        let rows_per_piece = (VALUES_PER_PIECE / width.max(1)).max(1);
        let out = SharedMut::new(out.values_mut());
        let Self { pool, scratch, .. } = self;
        pool.run(operation, rows.div_ceil(rows_per_piece), &|worker, piece| {
            let first = piece * rows_per_piece;
            let scratch = &mut *lock(&scratch[worker]);
            for row in first..rows.min(first + rows_per_piece) {
                // SAFETY: A piece owns its rows.
                let out = unsafe { out.part(row * width, width) };
                work(scratch, row, out);
            }
        })
    }
}

/// Adds the bias and writes or adds a row's outputs.
fn finish_outputs(out: &mut [f32], sums: &[f32], bias: Option<&[f32]>, add: bool) {
    let finish = |i: usize| bias.map_or(sums[i], |bias| sums[i] + bias[i]);
    for (i, out) in out.iter_mut().enumerate() {
        *out = if add { *out + finish(i) } else { finish(i) };
    }
}
