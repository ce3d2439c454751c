//! safetensors, as one file or as shards with an index.
//!
//! Format: the specification in the `safetensors` project's README. Its rules are held strictly: the tensors cover the
//! data section exactly, without gap or overlap, and no name occurs twice. Empty tensors are part of the format.

mod header;
mod index;
mod json;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

pub use header::{Header, parse};
pub use index::parse_index;

use kvasir_files::{FileError, Limit};

use crate::map::MappedFile;
use crate::tensor::TensorEntry;
use crate::{TensorView, WeightsError};

/// Largest index file that is read; published ones stay below 10 MB.
const MAX_INDEX_BYTES: u64 = 100 << 20;

/// A safetensors file or index is malformed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SafetensorsError {
    /// The file is shorter than what it declares.
    #[error("the file ends at byte {available}, the header reaches to byte {needed}")]
    Truncated {
        /// Where the header would end.
        needed: u64,
        /// The file's length.
        available: u64,
    },
    /// The header is above its limit.
    #[error("a header of {len} bytes is declared, the limit is {limit}")]
    HeaderTooLong {
        /// The declared length.
        len: u64,
        /// The limit, in bytes.
        limit: u64,
    },
    /// The header isn't the JSON that it must be.
    #[error("the header is malformed at byte {offset}: {reason}")]
    Malformed {
        /// Where in the file.
        offset: u64,
        /// What the JSON reader said.
        reason: String,
    },
    /// A tensor has too many dimensions.
    #[error("tensor `{name}` has {found} dimensions, the limit is {limit}")]
    Dimensions {
        /// The tensor.
        name: String,
        /// The declared number.
        found: usize,
        /// The limit.
        limit: usize,
    },
    /// A tensor's number of elements or bytes overflows.
    #[error("tensor `{name}` has the shape {shape:?}, whose size can't be addressed")]
    ShapeOverflow {
        /// The tensor.
        name: String,
        /// The declared shape.
        shape: Vec<u64>,
    },
    /// A tensor's data range doesn't have the size of its shape and type.
    #[error("tensor `{name}` at byte {start} has {found} bytes of data, its shape and type need {needed}")]
    SizeMismatch {
        /// The tensor.
        name: String,
        /// First byte of the data, counted from the start of the file.
        start: u64,
        /// Bytes in the declared range.
        found: u64,
        /// Bytes that shape and type need.
        needed: u64,
    },
    /// A tensor's data range ends before it begins, or behind the end of the file.
    #[error("tensor `{name}` has the data range {begin}..{end} of a data section of {available} bytes")]
    BadRange {
        /// The tensor.
        name: String,
        /// First byte, counted from the start of the data section.
        begin: u64,
        /// One past the last byte.
        end: u64,
        /// Length of the data section.
        available: u64,
    },
    /// Between two tensors' data, or behind the last, lie bytes that belong to none; or two tensors share bytes.
    #[error(
        "the data before `{name}` end at byte {expected} of the data section, the next begin at byte {found}"
    )]
    GapOrOverlap {
        /// The tensor that begins at the wrong place, or `end of the file`.
        name: String,
        /// Where the data before it end.
        expected: u64,
        /// Where its data begin.
        found: u64,
    },
    /// A shard's name in the index isn't a plain `.safetensors` file name.
    #[error(
        "the index names the shard {shard:?} for tensor `{name}`; a shard must be a plain .safetensors file name"
    )]
    ShardName {
        /// The tensor.
        name: String,
        /// The name in the index.
        shard: String,
    },
    /// The index names more shards than the limit.
    #[error("the index names {found} shards, the limit is {limit}")]
    TooManyShards {
        /// Number of different names.
        found: usize,
        /// The limit.
        limit: usize,
    },
    /// The index promises a tensor that its shard doesn't have.
    #[error("the index promises tensor `{name}` in {shard}, which does not have it")]
    NotInShard {
        /// The tensor.
        name: String,
        /// The shard's file name.
        shard: String,
    },
}

/// An open safetensors checkpoint.
#[derive(Debug)]
pub struct Safetensors {
    dir: PathBuf,
    /// In the order of their file names.
    shards: Vec<Shard>,
    /// Tensor name -> index into `shards`.
    tensors: BTreeMap<String, usize>,
}

#[derive(Debug)]
struct Shard {
    file: MappedFile,
    header: Header,
}

impl Safetensors {
    /// Maps one `.safetensors` file.
    ///
    /// # Errors
    /// [`WeightsError::Safetensors`] with the place and the problem, or the error of opening the file.
    pub fn open(path: &Path) -> Result<Self, WeightsError> {
        Self::from_map(MappedFile::open(path)?)
    }

    pub(crate) fn from_map(file: MappedFile) -> Result<Self, WeightsError> {
        let dir = parent(file.path());
        let shard = Shard::parse(file)?;
        let tensors = shard
            .header
            .tensors
            .keys()
            .map(|name| (name.clone(), 0))
            .collect();
        Ok(Self {
            dir,
            shards: vec![shard],
            tensors,
        })
    }

    /// Maps all shards that the index at `path` (`model.safetensors.index.json`) names.
    ///
    /// # Errors
    /// As [`Self::open`]; also when the index is malformed or promises what its shards don't have.
    pub fn open_index(path: &Path) -> Result<Self, WeightsError> {
        let failed = |source| WeightsError::Safetensors {
            path: path.to_owned(),
            source,
        };
        let weight_map = parse_index(&read_index(path)?).map_err(failed)?;
        let dir = parent(path);
        let mut numbers: BTreeMap<&str, usize> =
            weight_map.values().map(|shard| (shard.as_str(), 0)).collect();
        let mut shards = Vec::with_capacity(numbers.len());
        for (name, number) in &mut numbers {
            *number = shards.len();
            shards.push(Shard::parse(MappedFile::open(&dir.join(name))?)?);
        }
        let mut tensors = BTreeMap::new();
        for (name, shard) in &weight_map {
            let number = numbers[shard.as_str()];
            if !shards[number].header.tensors.contains_key(name) {
                let (name, shard) = (name.clone(), shard.clone());
                return Err(failed(SafetensorsError::NotInShard { name, shard }));
            }
            tensors.insert(name.clone(), number);
        }
        Ok(Self { dir, shards, tensors })
    }

    /// The directory of the weights, where `config.json` and `tokenizer.json` lie.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The tensor called `name`.
    ///
    /// # Errors
    /// [`WeightsError::MissingTensor`], or [`WeightsError::UnsupportedDType`] for other types than F32, F16 and BF16.
    pub fn tensor(&self, name: &str) -> Result<TensorView<'_>, WeightsError> {
        let missing = || WeightsError::MissingTensor {
            name: name.to_owned(),
        };
        let (name, &number) = self.tensors.get_key_value(name).ok_or_else(missing)?;
        let shard = &self.shards[number];
        let entry = shard.header.tensors.get(name).ok_or_else(missing)?;
        entry.view(name, shard.file.bytes())
    }

    /// The free text of the `__metadata__` entries of all shards; of equal keys that of the first shard.
    pub fn metadata(&self) -> BTreeMap<&str, &str> {
        let all = self.shards.iter().rev().flat_map(|shard| &shard.header.metadata);
        all.map(|(key, value)| (key.as_str(), value.as_str())).collect()
    }

    pub(crate) fn entries(&self) -> impl Iterator<Item = (&str, &TensorEntry)> {
        self.tensors.iter().map(|(name, &number)| {
            let entry = self.shards[number].header.tensors.get(name);
            (
                name.as_str(),
                entry.expect("`open` and `open_index` list only tensors that the shard has"),
            )
        })
    }

    pub(crate) fn contains(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// The mapped files with the lengths of their headers.
    pub(crate) fn files(&self) -> impl Iterator<Item = (&MappedFile, usize)> {
        self.shards.iter().map(|shard| (&shard.file, shard.header.len))
    }
}

impl Shard {
    fn parse(file: MappedFile) -> Result<Self, WeightsError> {
        let header = parse(file.bytes()).map_err(|source| WeightsError::Safetensors {
            path: file.path().to_owned(),
            source,
        })?;
        Ok(Self { file, header })
    }
}

fn parent(path: &Path) -> PathBuf {
    path.parent().map_or_else(PathBuf::new, Path::to_owned)
}

fn read_index(path: &Path) -> Result<Vec<u8>, WeightsError> {
    let open = |source| WeightsError::Open {
        path: path.to_owned(),
        source,
    };
    let limit = Limit {
        max_bytes: MAX_INDEX_BYTES,
        advice: "is it an index of safetensors files?",
    };
    kvasir_files::read(path, limit).map_err(|error| match error {
        FileError::TooLarge { num_bytes: len, .. } => WeightsError::Safetensors {
            path: path.to_owned(),
            source: SafetensorsError::HeaderTooLong {
                len,
                limit: MAX_INDEX_BYTES,
            },
        },
        other => open(other.into_io()),
    })
}
