//! Sizes and places of tensors, all in checked arithmetic.

use std::collections::BTreeMap;
use std::ops::Range;

use super::problem::{GgufError, GgufProblem, Subject};
use crate::DType;
use crate::tensor::{StoredType, TensorEntry};

/// A tensor's entry before its data are looked at.
pub(super) struct TensorInfo<'a> {
    pub(super) name: &'a str,
    /// Where the entry begins in the file.
    pub(super) entry_offset: u64,
    /// Outermost first.
    pub(super) shape: Vec<usize>,
    pub(super) dtype: DType,
    /// Bytes of data.
    pub(super) size: u64,
    /// Offset of the data within the data section.
    pub(super) offset: u64,
}

/// Bytes of a tensor with these dimensions, innermost first.
pub(super) fn tensor_size(dims: &[u64], dtype: DType) -> Result<u64, GgufProblem> {
    let overflow = || GgufProblem::ShapeOverflow { shape: dims.to_vec() };
    let cols = dims.first().copied().unwrap_or(1);
    let row_len = usize::try_from(cols).map_err(|_| overflow())?;
    if row_len % dtype.block_len() != 0 {
        return Err(GgufProblem::BrokenBlock {
            cols,
            dtype,
            block: dtype.block_len(),
        });
    }
    let row_bytes = dtype.row_bytes(row_len).ok_or_else(overflow)?;
    let rest = || dims.iter().skip(1).map(|&dim| usize::try_from(dim).ok());
    let bytes = rest()
        .try_fold(row_bytes, |bytes, dim| bytes.checked_mul(dim?))
        .ok_or_else(overflow)?;
    // Two elements can share a byte, so the number of elements overflows on its own.
    rest()
        .try_fold(row_len, |elements, dim| elements.checked_mul(dim?))
        .ok_or_else(overflow)?;
    Ok(bytes as u64)
}

/// Checks every tensor's range against the file and against the other tensors.
pub(super) fn place_all(
    mut infos: Vec<TensorInfo<'_>>,
    data_start: u64,
    alignment: u64,
    file_len: u64,
) -> Result<BTreeMap<String, TensorEntry>, GgufError> {
    infos.sort_by_key(|info| info.offset);
    let mut tensors = BTreeMap::new();
    let mut before: Option<(&str, u64)> = None;
    for info in infos {
        let problem = |problem| GgufError {
            subject: Subject::Tensor(info.name.to_owned()),
            offset: info.entry_offset,
            problem,
        };
        let range = place(&info, data_start, alignment, file_len).map_err(problem)?;
        match before {
            Some((other, end)) if range.start < end => {
                return Err(problem(GgufProblem::Overlap {
                    other: other.to_owned(),
                }));
            }
            _ => before = Some((info.name, range.end)),
        }
        // `place` has compared the range with the length of a slice, so that it fits `usize`.
        let entry = TensorEntry {
            stored: StoredType::Known(info.dtype),
            shape: info.shape,
            start: range.start as usize,
            end: range.end as usize,
        };
        tensors.insert(info.name.to_owned(), entry);
    }
    Ok(tensors)
}

/// The byte range of one tensor, counted from the start of the file.
fn place(
    info: &TensorInfo<'_>,
    data_start: u64,
    alignment: u64,
    file_len: u64,
) -> Result<Range<u64>, GgufProblem> {
    if !info.offset.is_multiple_of(alignment) {
        return Err(GgufProblem::Unaligned {
            offset: info.offset,
            alignment,
        });
    }
    let start = data_start.checked_add(info.offset);
    let end = start
        .and_then(|start| start.checked_add(info.size))
        .filter(|&end| end <= file_len);
    match (start, end) {
        (Some(start), Some(end)) => Ok(start..end),
        _ => Err(GgufProblem::DataBeyondFile {
            start: start.unwrap_or(info.offset),
            size: info.size,
            file_len,
        }),
    }
}
