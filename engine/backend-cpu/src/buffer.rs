//! Activations and weight vectors.

use kvasir_backend::BackendError;
use kvasir_kernels_cpu::Rows;

use crate::region::Region;

/// Rows of f32, one after the other. Memory is touched by the rows that are used.
#[derive(Debug)]
pub struct CpuBuffer {
    region: Region,
    max_rows: usize,
    width: usize,
    rows: usize,
}

/// A weight vector.
#[derive(Debug)]
pub struct CpuVector {
    pub(crate) values: Vec<f32>,
}

impl CpuBuffer {
    pub(crate) fn new(max_rows: usize, width: usize) -> Result<Self, BackendError> {
        let bytes = max_rows
            .checked_mul(width)
            .and_then(|values| values.checked_mul(4));
        let what = "activations";
        let bytes = bytes.ok_or(BackendError::OutOfMemory {
            what,
            bytes: usize::MAX,
        })?;
        Ok(Self {
            region: Region::new(bytes, what)?,
            max_rows,
            width,
            rows: 0,
        })
    }

    /// Rows in use.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Values per row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Changes the number of rows in use.
    pub(crate) fn set_rows(&mut self, rows: usize, operation: &'static str) -> Result<(), BackendError> {
        if rows > self.max_rows {
            let reason = format!("{rows} rows for a buffer of {}", self.max_rows);
            return Err(BackendError::Shape { operation, reason });
        }
        self.rows = rows;
        Ok(())
    }

    /// The values of the rows in use.
    pub(crate) fn values(&self) -> &[f32] {
        &self.region.floats()[..self.rows * self.width]
    }

    pub(crate) fn values_mut(&mut self) -> &mut [f32] {
        let len = self.rows * self.width;
        &mut self.region.floats_mut()[..len]
    }

    pub(crate) fn row(&self, row: usize) -> &[f32] {
        &self.values()[row * self.width..][..self.width]
    }

    /// `count` rows from `first`.
    pub(crate) fn view(&self, first: usize, count: usize) -> Rows<'_> {
        Rows {
            data: &self.values()[first * self.width..],
            stride: self.width,
            num_rows: count,
        }
    }
}
