//! GGUF, versions 2 and 3, little endian.
//!
//! Format: the specification in `docs/gguf.md` of the ggml project. Where it leaves room, this reader decides:
//!
//! - Dimensions are stored innermost first; [`crate::TensorView::shape`] has them outermost first.
//! - A tensor has 1 to 4 dimensions, none of them zero.
//! - Tensors may lie in any order with gaps between them, but never overlap: no writer makes such files, and a model
//!   that reads one tensor's bytes as another's is broken or hostile.
//! - The padding after the last tensor may be missing.
//! - One part of a split model is refused; the parts must be merged first.

mod cursor;
mod layout;
mod parse;
mod problem;
mod types;
mod value;

use std::path::Path;

pub use parse::{Header, parse};
pub use problem::{GgufError, GgufProblem, Subject};
pub use value::{Array, Strings, Value};

use crate::map::MappedFile;
use crate::tensor::TensorEntry;
use crate::{TensorView, WeightsError};

/// An open GGUF file.
#[derive(Debug)]
pub struct Gguf {
    file: MappedFile,
    header: Header,
}

impl Gguf {
    /// Maps the file at `path` and parses its header.
    ///
    /// # Errors
    /// [`WeightsError::Gguf`] with the place and the problem, or the error of opening the file.
    pub fn open(path: &Path) -> Result<Self, WeightsError> {
        Self::from_map(MappedFile::open(path)?)
    }

    pub(crate) fn from_map(file: MappedFile) -> Result<Self, WeightsError> {
        let header = parse(file.bytes()).map_err(|source| WeightsError::Gguf {
            path: file.path().to_owned(),
            source,
        })?;
        Ok(Self { file, header })
    }

    /// The file's path.
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// The format version, 2 or 3.
    pub fn version(&self) -> u32 {
        self.header.version
    }

    /// The tensor called `name`.
    ///
    /// # Errors
    /// [`WeightsError::MissingTensor`].
    pub fn tensor(&self, name: &str) -> Result<TensorView<'_>, WeightsError> {
        let Some((name, entry)) = self.header.tensors.get_key_value(name) else {
            return Err(WeightsError::MissingTensor {
                name: name.to_owned(),
            });
        };
        entry.view(name, self.file.bytes())
    }

    /// All metadata in the order of the keys.
    pub fn metadata(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.header
            .metadata
            .iter()
            .map(|(key, value)| (key.as_str(), value))
    }

    /// The value of a metadata key, whatever its type.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.header.metadata.get(key)
    }

    /// An integer of any stored width that fits `u32`.
    ///
    /// # Errors
    /// [`WeightsError::MissingKey`], [`WeightsError::WrongType`] or [`WeightsError::OutOfRange`]; so for all getters.
    /// [`OptionalKey::optional`](crate::OptionalKey::optional) makes a missing key `None`.
    pub fn get_u32(&self, key: &str) -> Result<u32, WeightsError> {
        let value = self.require(key)?;
        let number = value
            .as_integer()
            .ok_or_else(|| wrong(key, "an integer", value))?;
        u32::try_from(number).map_err(|_| WeightsError::OutOfRange {
            key: key.to_owned(),
            wanted: "an unsigned 32-bit integer",
            value: number,
        })
    }

    /// A 32-bit float, or a 64-bit one rounded to it.
    ///
    /// # Errors
    /// As [`Self::get_u32`].
    pub fn get_f32(&self, key: &str) -> Result<f32, WeightsError> {
        match self.require(key)? {
            Value::F32(number) => Ok(*number),
            Value::F64(number) => Ok(*number as f32),
            other => Err(wrong(key, "a float", other)),
        }
    }

    /// A string.
    ///
    /// # Errors
    /// As [`Self::get_u32`].
    pub fn get_str(&self, key: &str) -> Result<&str, WeightsError> {
        match self.require(key)? {
            Value::Str(text) => Ok(text),
            other => Err(wrong(key, "a string", other)),
        }
    }

    /// A boolean.
    ///
    /// # Errors
    /// As [`Self::get_u32`].
    pub fn get_bool(&self, key: &str) -> Result<bool, WeightsError> {
        match self.require(key)? {
            Value::Bool(flag) => Ok(*flag),
            other => Err(wrong(key, "a boolean", other)),
        }
    }

    /// An array of strings.
    ///
    /// # Errors
    /// As [`Self::get_u32`].
    pub fn get_str_array(&self, key: &str) -> Result<&Strings, WeightsError> {
        match self.require(key)? {
            Value::Array(Array::Str(strings)) => Ok(strings),
            other => Err(wrong(key, "an array of strings", other)),
        }
    }

    /// An array of integers of any stored width, all of which fit `i32`.
    ///
    /// # Errors
    /// As [`Self::get_u32`].
    pub fn get_i32_array(&self, key: &str) -> Result<Vec<i32>, WeightsError> {
        let value = self.require(key)?;
        let Value::Array(array) = value else {
            return Err(wrong(key, "an array of integers", value));
        };
        let fit = |number: i128| {
            i32::try_from(number).map_err(|_| WeightsError::OutOfRange {
                key: key.to_owned(),
                wanted: "a signed 32-bit integer",
                value: number,
            })
        };
        match array {
            Array::I32(numbers) => Ok(numbers.clone()),
            Array::U8(numbers) => Ok(numbers.iter().map(|&n| n.into()).collect()),
            Array::I8(numbers) => Ok(numbers.iter().map(|&n| n.into()).collect()),
            Array::U16(numbers) => Ok(numbers.iter().map(|&n| n.into()).collect()),
            Array::I16(numbers) => Ok(numbers.iter().map(|&n| n.into()).collect()),
            Array::U32(numbers) => numbers.iter().map(|&n| fit(n.into())).collect(),
            Array::U64(numbers) => numbers.iter().map(|&n| fit(n.into())).collect(),
            Array::I64(numbers) => numbers.iter().map(|&n| fit(n.into())).collect(),
            Array::F32(_) | Array::F64(_) | Array::Bool(_) | Array::Str(_) | Array::Array(_) => {
                Err(wrong(key, "an array of integers", value))
            }
        }
    }

    /// An array of 32-bit floats. No other type is taken for one: token scores declared as bytes are an error.
    ///
    /// # Errors
    /// As [`Self::get_u32`].
    pub fn get_f32_array(&self, key: &str) -> Result<&[f32], WeightsError> {
        match self.require(key)? {
            Value::Array(Array::F32(numbers)) => Ok(numbers),
            other => Err(wrong(key, "an array of 32-bit floats", other)),
        }
    }

    pub(crate) fn file(&self) -> &MappedFile {
        &self.file
    }

    pub(crate) fn header_len(&self) -> usize {
        self.header.len
    }

    pub(crate) fn entries(&self) -> &std::collections::BTreeMap<String, TensorEntry> {
        &self.header.tensors
    }

    fn require(&self, key: &str) -> Result<&Value, WeightsError> {
        self.get(key)
            .ok_or_else(|| WeightsError::MissingKey { key: key.to_owned() })
    }
}

fn wrong(key: &str, wanted: &'static str, found: &Value) -> WeightsError {
    WeightsError::WrongType {
        key: key.to_owned(),
        wanted,
        found: found.type_name(),
    }
}
