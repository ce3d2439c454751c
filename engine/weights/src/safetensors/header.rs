//! The header parser: bytes in, owned and checked data out.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};

use super::SafetensorsError;
use super::json::{UniqueMap, malformed};
use crate::DType;
use crate::tensor::{StoredType, TensorEntry};

/// Largest header that the format's reference implementation reads.
const MAX_HEADER_BYTES: u64 = 100_000_000;
/// Bytes of the length field before the header.
const LENGTH_BYTES: u64 = 8;
/// Most dimensions of a tensor; checkpoints of language models stay below 6.
const MAX_DIMS: usize = 8;

/// Everything in a safetensors file but the tensors' data.
#[derive(Clone, Debug, PartialEq)]
pub struct Header {
    /// Free text by key.
    pub metadata: BTreeMap<String, String>,
    /// Tensors by name, with ranges that lie inside the parsed bytes.
    pub tensors: BTreeMap<String, TensorEntry>,
    /// Bytes from the start of the file to the first byte of data.
    pub len: usize,
}

/// Parses a whole file's bytes.
///
/// # Errors
/// The first problem, with its place.
pub fn parse(bytes: &[u8]) -> Result<Header, SafetensorsError> {
    let file_len = bytes.len() as u64;
    let truncated = |needed| SafetensorsError::Truncated {
        needed,
        available: file_len,
    };
    let header_len = u64::from_le_bytes(*bytes.first_chunk().ok_or_else(|| truncated(LENGTH_BYTES))?);
    if header_len > MAX_HEADER_BYTES {
        return Err(SafetensorsError::HeaderTooLong {
            len: header_len,
            limit: MAX_HEADER_BYTES,
        });
    }
    let data_start = LENGTH_BYTES + header_len;
    if data_start > file_len {
        return Err(truncated(data_start));
    }
    let json = &bytes[LENGTH_BYTES as usize..data_start as usize];
    if json.first() != Some(&b'{') {
        let reason = "the header must begin with `{`".to_owned();
        return Err(SafetensorsError::Malformed {
            offset: LENGTH_BYTES,
            reason,
        });
    }
    let raw: RawHeader =
        serde_json::from_slice(json).map_err(|error| malformed(json, LENGTH_BYTES, &error))?;
    let mut tensors = BTreeMap::new();
    for (name, tensor) in raw.tensors.0 {
        let entry = entry(&name, tensor, data_start, file_len)?;
        tensors.insert(name, entry);
    }
    check_cover(&tensors, data_start, file_len)?;
    Ok(Header {
        metadata: raw.metadata,
        tensors,
        len: data_start as usize,
    })
}

#[derive(Deserialize)]
struct RawTensor {
    dtype: String,
    shape: Shape,
    data_offsets: [u64; 2],
}

/// The dimensions up to [`MAX_DIMS`], and how many there are: a header full of dimensions takes no memory.
struct Shape {
    dims: Vec<u64>,
    count: usize,
}

impl<'de> Deserialize<'de> for Shape {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(ShapeVisitor)
    }
}

struct ShapeVisitor;

impl<'de> Visitor<'de> for ShapeVisitor {
    type Value = Shape;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array of dimensions")
    }

    fn visit_seq<S: SeqAccess<'de>>(self, mut seq: S) -> Result<Shape, S::Error> {
        let mut shape = Shape {
            dims: Vec::new(),
            count: 0,
        };
        while let Some(dim) = seq.next_element()? {
            shape.count += 1;
            if shape.count <= MAX_DIMS {
                shape.dims.push(dim);
            }
        }
        Ok(shape)
    }
}

#[derive(Default)]
struct RawHeader {
    metadata: BTreeMap<String, String>,
    tensors: UniqueMap<RawTensor>,
}

impl<'de> Deserialize<'de> for RawHeader {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(HeaderVisitor)
    }
}

struct HeaderVisitor;

impl<'de> Visitor<'de> for HeaderVisitor {
    type Value = RawHeader;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<RawHeader, M::Error> {
        let mut header = RawHeader::default();
        while let Some(key) = map.next_key::<String>()? {
            if key == "__metadata__" {
                header.metadata = map.next_value::<UniqueMap<String>>()?.0;
            } else {
                header.tensors.add::<M>(key, map.next_value()?)?;
            }
        }
        Ok(header)
    }
}

/// Checks one tensor on its own.
fn entry(
    name: &str,
    raw: RawTensor,
    data_start: u64,
    file_len: u64,
) -> Result<TensorEntry, SafetensorsError> {
    let name = || name.to_owned();
    if raw.shape.count > MAX_DIMS {
        return Err(SafetensorsError::Dimensions {
            name: name(),
            found: raw.shape.count,
            limit: MAX_DIMS,
        });
    }
    let [begin, end] = raw.data_offsets;
    let available = file_len - data_start;
    if begin > end || end > available {
        return Err(SafetensorsError::BadRange {
            name: name(),
            begin,
            end,
            available,
        });
    }
    let found = end - begin;
    let start = data_start + begin;
    if let Some(needed) = needed_bytes(&raw).ok_or_else(|| {
        let shape = raw.shape.dims.clone();
        SafetensorsError::ShapeOverflow { name: name(), shape }
    })? && needed != found
    {
        return Err(SafetensorsError::SizeMismatch {
            name: name(),
            start,
            found,
            needed,
        });
    }
    // `needed_bytes` has multiplied the dimensions in `usize`, and the range lies inside a slice.
    let shape = raw.shape.dims.iter().map(|&dim| dim as usize).collect();
    let stored = match raw.dtype.as_str() {
        "F32" => StoredType::Known(DType::F32),
        "F16" => StoredType::Known(DType::F16),
        "BF16" => StoredType::Known(DType::BF16),
        _ => StoredType::Other(raw.dtype),
    };
    Ok(TensorEntry {
        stored,
        shape,
        start: start as usize,
        end: (data_start + end) as usize,
    })
}

/// Bytes that a tensor's shape and type need: `None` when they overflow, `Some(None)` for types without a known width.
#[expect(
    clippy::option_option,
    reason = "overflow and unknown width are different answers, used in one place"
)]
fn needed_bytes(raw: &RawTensor) -> Option<Option<u64>> {
    let mut elements = 1_usize;
    let mut has_zero = false;
    for &dim in &raw.shape.dims {
        let dim = usize::try_from(dim).ok()?;
        has_zero |= dim == 0;
        // A zero must not hide an overflow of the other dimensions.
        elements = elements.checked_mul(dim.max(1))?;
    }
    let elements = if has_zero { 0 } else { elements as u64 };
    let width = match raw.dtype.as_str() {
        "F64" | "I64" | "U64" => 8,
        "F32" | "I32" | "U32" => 4,
        "F16" | "BF16" | "I16" | "U16" => 2,
        "BOOL" | "I8" | "U8" | "F8_E4M3" | "F8_E5M2" | "F8_E8M0" => 1,
        _ => return Some(None),
    };
    elements.checked_mul(width).map(Some)
}

/// The format's rule that data neither overlap nor leave bytes uncovered.
fn check_cover(
    tensors: &BTreeMap<String, TensorEntry>,
    data_start: u64,
    file_len: u64,
) -> Result<(), SafetensorsError> {
    let mut in_order: Vec<_> = tensors.iter().collect();
    in_order.sort_by_key(|(_, entry)| (entry.start, entry.end));
    let mut expected = data_start;
    let gap = |name: &str, expected, found| SafetensorsError::GapOrOverlap {
        name: name.to_owned(),
        expected: expected - data_start,
        found: found - data_start,
    };
    for (name, entry) in in_order {
        if entry.start as u64 != expected {
            return Err(gap(name, expected, entry.start as u64));
        }
        expected = entry.end as u64;
    }
    if expected != file_len {
        return Err(gap("end of the file", expected, file_len));
    }
    Ok(())
}
