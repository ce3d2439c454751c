//! A tensor as it lies in a file.

use crate::{DType, WeightsError};

/// One tensor, borrowed from the memory map.
#[derive(Clone, Copy, Debug)]
pub struct TensorView<'a> {
    /// The name in the file.
    pub name: &'a str,
    /// How `data` is encoded.
    pub dtype: DType,
    /// Row-major, outermost first: a matrix is `[rows (outputs), cols (inputs)]` for both formats.
    pub shape: &'a [usize],
    /// Exactly the bytes of `shape` in `dtype`. The format promises no alignment for the element type.
    pub data: &'a [u8],
}

impl TensorView<'_> {
    /// Number of elements.
    pub fn num_elements(&self) -> usize {
        // The parsers refuse shapes whose product overflows.
        self.shape.iter().product()
    }
}

/// A tensor's type as the file states it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoredType {
    /// One that Kvasir reads.
    Known(DType),
    /// One that it doesn't, by its name in the file. Such a tensor only fails when it is asked for: checkpoints carry
    /// integer buffers (`position_ids`) that no model of ours uses.
    Other(String),
}

/// Where a tensor lies; made by the parsers, which have checked every field against the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorEntry {
    /// Element type.
    pub stored: StoredType,
    /// Row-major, outermost first.
    pub shape: Vec<usize>,
    /// First byte, counted from the start of the file.
    pub start: usize,
    /// One past the last byte.
    pub end: usize,
}

impl TensorEntry {
    /// The tensor as a view into its file's bytes.
    pub(crate) fn view<'a>(&'a self, name: &'a str, file: &'a [u8]) -> Result<TensorView<'a>, WeightsError> {
        match &self.stored {
            StoredType::Known(dtype) => Ok(TensorView {
                name,
                dtype: *dtype,
                shape: &self.shape,
                data: &file[self.start..self.end],
            }),
            StoredType::Other(found) => Err(WeightsError::UnsupportedDType {
                name: name.to_owned(),
                found: found.clone(),
            }),
        }
    }

    /// Number of elements.
    pub fn num_elements(&self) -> u64 {
        self.shape.iter().map(|&dim| dim as u64).product()
    }

    /// Size in bytes.
    pub fn num_bytes(&self) -> u64 {
        (self.end - self.start) as u64
    }
}
