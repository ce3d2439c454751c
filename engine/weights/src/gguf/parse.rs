//! The header parser: bytes in, owned and checked data out.

use std::collections::{BTreeMap, BTreeSet};

use super::cursor::{Cursor, Short};
use super::layout::{TensorInfo, place_all, tensor_size};
use super::problem::{GgufError, GgufProblem, Subject};
use super::types::{ValueType, tensor_type};
use super::value::{Array, Strings, Value};
use crate::tensor::TensorEntry;

/// Most tensors in a file. The largest published models have below 10^5 (safetensors with one tensor per expert).
const MAX_TENSORS: u64 = 1 << 20;
/// Most metadata entries in a file; published models have below 100.
const MAX_KEYS: u64 = 1 << 16;
/// Longest metadata key, from the specification.
const MAX_KEY_BYTES: u64 = (1 << 16) - 1;
/// Longest tensor name. The specification says 64; some converters write longer ones.
const MAX_NAME_BYTES: u64 = 256;
/// Longest string value. Whole tokenizer.json files are stored as one; the largest published ones have 33 MB.
const MAX_STRING_BYTES: u64 = 128 << 20;
/// Deepest nesting of arrays. No published key nests at all.
const MAX_DEPTH: u32 = 4;
/// Most dimensions of a tensor, from the specification.
const MAX_DIMS: u32 = 4;
/// Fewest bytes of a metadata entry: key length, value type, a value of one byte.
const MIN_KEY_ENTRY_BYTES: u64 = 13;
/// Fewest bytes of a tensor entry: name length, number of dimensions, one dimension, type, offset.
const MIN_TENSOR_ENTRY_BYTES: u64 = 32;
/// Alignment of a file that doesn't state one, from the specification.
const DEFAULT_ALIGNMENT: u64 = 32;
/// Holds the alignment of the data section and of each tensor in it, in bytes.
const ALIGNMENT_KEY: &str = "general.alignment";
/// Holds the number of files that a split model has.
const SPLIT_KEY: &str = "split.count";

/// Everything in a GGUF file but the tensors' data.
#[derive(Clone, Debug, PartialEq)]
pub struct Header {
    /// Format version, 2 or 3.
    pub version: u32,
    /// Metadata by key.
    pub metadata: BTreeMap<String, Value>,
    /// Tensors by name, with ranges that lie inside the parsed bytes.
    pub tensors: BTreeMap<String, TensorEntry>,
    /// Bytes from the start of the file to the end of the last tensor entry.
    pub len: usize,
}

/// Parses a whole file's bytes.
///
/// # Errors
/// The first problem, with its place. Nothing is allocated on the word of a size that exceeds the bytes.
pub fn parse(bytes: &[u8]) -> Result<Header, GgufError> {
    let mut parser = Parser {
        cursor: Cursor::new(bytes),
        subject: Place::Header,
    };
    let version = parser.version()?;
    let num_tensors = parser.count("tensors", MAX_TENSORS, MIN_TENSOR_ENTRY_BYTES)?;
    let num_keys = parser.count("metadata entries", MAX_KEYS, MIN_KEY_ENTRY_BYTES)?;
    let metadata = parser.metadata(num_keys)?;
    let infos = parser.tensor_infos(num_tensors)?;
    let len = parser.cursor.position();
    let alignment = match metadata.get(ALIGNMENT_KEY) {
        Some(Value::U32(alignment)) => u64::from(*alignment),
        _ => DEFAULT_ALIGNMENT,
    };
    let data_start = (len as u64).next_multiple_of(alignment);
    let tensors = place_all(infos, data_start, alignment, bytes.len() as u64)?;
    Ok(Header {
        version,
        metadata,
        tensors,
        len,
    })
}

/// A [`Subject`] that borrows its name from the file, so that naming the place costs nothing until there is an error.
#[derive(Clone, Copy, Debug)]
enum Place<'a> {
    Header,
    KeyNumber(u64),
    Key(&'a str),
    TensorNumber(u64),
    Tensor(&'a str),
}

impl From<Place<'_>> for Subject {
    fn from(place: Place<'_>) -> Self {
        match place {
            Place::Header => Self::Header,
            Place::KeyNumber(index) => Self::KeyNumber(index),
            Place::Key(key) => Self::Key(key.to_owned()),
            Place::TensorNumber(index) => Self::TensorNumber(index),
            Place::Tensor(name) => Self::Tensor(name.to_owned()),
        }
    }
}

struct Parser<'a> {
    cursor: Cursor<'a>,
    subject: Place<'a>,
}

impl<'a> Parser<'a> {
    fn version(&mut self) -> Result<u32, GgufError> {
        let magic = self.array::<4>()?;
        if magic != *b"GGUF" {
            return Err(self.problem_at(0, GgufProblem::WrongMagic { found: magic }));
        }
        let version = self.u32()?;
        match version {
            2 | 3 => Ok(version),
            _ if (1..=3).contains(&version.swap_bytes()) => Err(self.problem_at(4, GgufProblem::BigEndian)),
            found => Err(self.problem_at(4, GgufProblem::UnsupportedVersion { found })),
        }
    }

    /// A number of entries, of which each takes at least `min_bytes` of the rest of the file.
    fn count(&mut self, what: &'static str, limit: u64, min_bytes: u64) -> Result<u64, GgufError> {
        let at = self.position();
        let count = self.u64()?;
        if count > limit {
            return Err(self.problem_at(at, GgufProblem::TooMany { what, count, limit }));
        }
        self.fits(at, what, count, min_bytes)?;
        Ok(count)
    }

    fn fits(&self, at: u64, what: &'static str, count: u64, min_bytes: u64) -> Result<(), GgufError> {
        let available = self.cursor.remaining();
        if count > available / min_bytes {
            return Err(self.problem_at(
                at,
                GgufProblem::CountBeyondFile {
                    what,
                    count,
                    available,
                },
            ));
        }
        Ok(())
    }

    fn metadata(&mut self, count: u64) -> Result<BTreeMap<String, Value>, GgufError> {
        let mut metadata = BTreeMap::new();
        for index in 0..count {
            self.subject = Place::KeyNumber(index);
            let at = self.position();
            let key = self.string(MAX_KEY_BYTES)?;
            self.subject = Place::Key(key);
            let kind_at = self.position();
            let kind = self.value_type()?;
            let value = self.value(kind)?;
            check_special(key, &value).map_err(|problem| self.problem_at(kind_at, problem))?;
            if metadata.insert(key.to_owned(), value).is_some() {
                return Err(self.problem_at(at, GgufProblem::Duplicate));
            }
        }
        Ok(metadata)
    }

    fn value_type(&mut self) -> Result<ValueType, GgufError> {
        let at = self.position();
        let found = self.u32()?;
        ValueType::from_id(found).ok_or_else(|| self.problem_at(at, GgufProblem::UnknownValueType { found }))
    }

    fn value(&mut self, kind: ValueType) -> Result<Value, GgufError> {
        let value = match kind {
            ValueType::U8 => Value::U8(u8::from_le_bytes(self.array()?)),
            ValueType::I8 => Value::I8(i8::from_le_bytes(self.array()?)),
            ValueType::U16 => Value::U16(u16::from_le_bytes(self.array()?)),
            ValueType::I16 => Value::I16(i16::from_le_bytes(self.array()?)),
            ValueType::U32 => Value::U32(self.u32()?),
            ValueType::I32 => Value::I32(i32::from_le_bytes(self.array()?)),
            ValueType::U64 => Value::U64(self.u64()?),
            ValueType::I64 => Value::I64(i64::from_le_bytes(self.array()?)),
            ValueType::F32 => Value::F32(f32::from_le_bytes(self.array()?)),
            ValueType::F64 => Value::F64(f64::from_le_bytes(self.array()?)),
            ValueType::Bool => Value::Bool(self.boolean()?),
            ValueType::Str => Value::Str(self.string(MAX_STRING_BYTES)?.to_owned()),
            ValueType::Array => Value::Array(self.array_value(1)?),
        };
        Ok(value)
    }

    fn array_value(&mut self, depth: u32) -> Result<Array, GgufError> {
        if depth > MAX_DEPTH {
            return Err(self.problem(GgufProblem::NestedTooDeep { limit: MAX_DEPTH }));
        }
        let kind = self.value_type()?;
        let at = self.position();
        let len = self.u64()?;
        self.fits(at, "array elements", len, kind.min_bytes())?;
        let array = match kind {
            ValueType::U8 => Array::U8(self.numbers(len, u8::from_le_bytes)?),
            ValueType::I8 => Array::I8(self.numbers(len, i8::from_le_bytes)?),
            ValueType::U16 => Array::U16(self.numbers(len, u16::from_le_bytes)?),
            ValueType::I16 => Array::I16(self.numbers(len, i16::from_le_bytes)?),
            ValueType::U32 => Array::U32(self.numbers(len, u32::from_le_bytes)?),
            ValueType::I32 => Array::I32(self.numbers(len, i32::from_le_bytes)?),
            ValueType::U64 => Array::U64(self.numbers(len, u64::from_le_bytes)?),
            ValueType::I64 => Array::I64(self.numbers(len, i64::from_le_bytes)?),
            ValueType::F32 => Array::F32(self.numbers(len, f32::from_le_bytes)?),
            ValueType::F64 => Array::F64(self.numbers(len, f64::from_le_bytes)?),
            ValueType::Bool => Array::Bool((0..len).map(|_| self.boolean()).collect::<Result<_, _>>()?),
            ValueType::Str => Array::Str(self.strings(len)?),
            ValueType::Array => Array::Array(
                (0..len)
                    .map(|_| self.array_value(depth + 1))
                    .collect::<Result<_, _>>()?,
            ),
        };
        Ok(array)
    }

    fn numbers<const N: usize, T>(
        &mut self,
        len: u64,
        decode: fn([u8; N]) -> T,
    ) -> Result<Vec<T>, GgufError> {
        // `fits` has compared `len` with the rest of the file, so the product doesn't overflow.
        let bytes = self.take(len * N as u64)?;
        Ok(bytes
            .as_chunks::<N>()
            .0
            .iter()
            .map(|chunk| decode(*chunk))
            .collect())
    }

    fn strings(&mut self, len: u64) -> Result<Strings, GgufError> {
        let mut strings = Strings::default();
        for _ in 0..len {
            strings.push(self.string(MAX_STRING_BYTES)?);
        }
        Ok(strings)
    }

    fn boolean(&mut self) -> Result<bool, GgufError> {
        let at = self.position();
        match self.array::<1>()? {
            [0] => Ok(false),
            [1] => Ok(true),
            [found] => Err(self.problem_at(at, GgufProblem::InvalidBool { found })),
        }
    }

    fn string(&mut self, limit: u64) -> Result<&'a str, GgufError> {
        let at = self.position();
        let len = self.u64()?;
        if len > limit {
            return Err(self.problem_at(at, GgufProblem::StringTooLong { len, limit }));
        }
        let bytes = self.take(len)?;
        str::from_utf8(bytes).map_err(|_| self.problem_at(at, GgufProblem::NotUtf8))
    }

    fn tensor_infos(&mut self, count: u64) -> Result<Vec<TensorInfo<'a>>, GgufError> {
        let mut infos = Vec::new();
        let mut names = BTreeSet::new();
        for index in 0..count {
            self.subject = Place::TensorNumber(index);
            let info = self.tensor_info()?;
            if !names.insert(info.name) {
                return Err(self.problem_at(info.entry_offset, GgufProblem::Duplicate));
            }
            infos.push(info);
        }
        Ok(infos)
    }

    fn tensor_info(&mut self) -> Result<TensorInfo<'a>, GgufError> {
        let entry_offset = self.position();
        let name = self.string(MAX_NAME_BYTES)?;
        self.subject = Place::Tensor(name);
        let dims_at = self.position();
        let dims = self.dims()?;
        let type_at = self.position();
        let dtype = tensor_type(self.u32()?)
            .map_err(|name| self.problem_at(type_at, GgufProblem::UnsupportedType { name }))?;
        let size = tensor_size(&dims, dtype).map_err(|problem| self.problem_at(dims_at, problem))?;
        let offset = self.u64()?;
        // `tensor_size` has multiplied the dimensions in `usize`, so that each of them fits.
        let shape = dims.iter().rev().map(|&dim| dim as usize).collect();
        Ok(TensorInfo {
            name,
            entry_offset,
            shape,
            dtype,
            size,
            offset,
        })
    }

    /// The dimensions, innermost first.
    fn dims(&mut self) -> Result<Vec<u64>, GgufError> {
        let at = self.position();
        let found = self.u32()?;
        if !(1..=MAX_DIMS).contains(&found) {
            return Err(self.problem_at(at, GgufProblem::Dimensions { found }));
        }
        let mut dims = Vec::with_capacity(found as usize);
        for index in 0..found {
            let at = self.position();
            match self.u64()? {
                0 => return Err(self.problem_at(at, GgufProblem::ZeroDimension { index })),
                dim => dims.push(dim),
            }
        }
        Ok(dims)
    }

    fn u32(&mut self) -> Result<u32, GgufError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64, GgufError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], GgufError> {
        let result = self.cursor.array();
        result.map_err(|short| self.truncated(short))
    }

    fn take(&mut self, len: u64) -> Result<&'a [u8], GgufError> {
        let result = self.cursor.take(len);
        result.map_err(|short| self.truncated(short))
    }

    fn truncated(&self, Short { needed, available }: Short) -> GgufError {
        self.problem(GgufProblem::Truncated { needed, available })
    }

    fn position(&self) -> u64 {
        self.cursor.position() as u64
    }

    fn problem(&self, problem: GgufProblem) -> GgufError {
        self.problem_at(self.position(), problem)
    }

    fn problem_at(&self, offset: u64, problem: GgufProblem) -> GgufError {
        GgufError {
            subject: self.subject.into(),
            offset,
            problem,
        }
    }
}

/// Checks the values of the keys that decide how the rest of the file is read.
fn check_special(key: &str, value: &Value) -> Result<(), GgufProblem> {
    match (key, value) {
        (ALIGNMENT_KEY, &Value::U32(found)) if !found.is_power_of_two() => {
            Err(GgufProblem::Alignment { found })
        }
        (ALIGNMENT_KEY, Value::U32(_)) => Ok(()),
        // Taking another type for UINT32 gave other readers wrong offsets (llama.cpp issue 26318).
        (ALIGNMENT_KEY, other) => Err(GgufProblem::AlignmentType {
            found: other.type_name(),
        }),
        (SPLIT_KEY, value) => match value.as_integer() {
            Some(parts) if parts > 1 => Err(GgufProblem::Split { parts }),
            _ => Ok(()),
        },
        _ => Ok(()),
    }
}
