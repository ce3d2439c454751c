//! What can go wrong with a model's files.

use std::io;
use std::path::PathBuf;

use crate::gguf::GgufError;
use crate::safetensors::SafetensorsError;

/// A model's files can't be read, or don't hold what was asked for.
#[derive(Debug, thiserror::Error)]
pub enum WeightsError {
    /// A file can't be opened or read.
    #[error("can't open {path}")]
    Open {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        #[source]
        source: io::Error,
    },
    /// A file can't be mapped into memory.
    #[error("can't map {path} into memory")]
    Map {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        #[source]
        source: io::Error,
    },
    /// A path is no model of a kind that Kvasir reads.
    #[error("{path} is not a model: {reason}")]
    NotAModel {
        /// The file or directory.
        path: PathBuf,
        /// Why not, and what would be one.
        reason: &'static str,
    },
    /// A directory has several GGUF files and nothing says which one is meant.
    #[error("{path} has {count} .gguf files; give the path of the one to load")]
    SeveralGguf {
        /// The directory.
        path: PathBuf,
        /// How many were found.
        count: usize,
    },
    /// A GGUF file is malformed or of an unsupported kind.
    #[error("{path}: {source}")]
    Gguf {
        /// The file.
        path: PathBuf,
        /// The place and the problem.
        source: GgufError,
    },
    /// A safetensors file or index is malformed.
    #[error("{path}: {source}")]
    Safetensors {
        /// The file.
        path: PathBuf,
        /// The place and the problem.
        source: SafetensorsError,
    },
    /// The model has no tensor of this name.
    #[error("the model has no tensor `{name}`")]
    MissingTensor {
        /// The name that was asked for.
        name: String,
    },
    /// A tensor's element type isn't supported.
    #[error("tensor `{name}` is stored as {found}; supported in safetensors are F32, F16 and BF16")]
    UnsupportedDType {
        /// The tensor.
        name: String,
        /// Its type's name in the file.
        found: String,
    },
    /// The metadata lack a key.
    #[error("the metadata have no key `{key}`")]
    MissingKey {
        /// The key that was asked for.
        key: String,
    },
    /// A metadata value has another type than its meaning needs.
    #[error("metadata key `{key}` must be {wanted}, the file has {found}")]
    WrongType {
        /// The key.
        key: String,
        /// The type that is needed.
        wanted: &'static str,
        /// The type in the file.
        found: String,
    },
    /// An integer in the metadata doesn't fit the type that its meaning needs.
    #[error("metadata key `{key}` is {value}, which does not fit {wanted}")]
    OutOfRange {
        /// The key.
        key: String,
        /// The type that is needed.
        wanted: &'static str,
        /// The value in the file.
        value: i128,
    },
}

/// Turns "there is no such key" into `None`, for keys with a default.
pub trait OptionalKey<T> {
    /// `Ok(None)` instead of [`WeightsError::MissingKey`]; every other error stays one.
    ///
    /// # Errors
    /// The original error, unless it is a missing key.
    fn optional(self) -> Result<Option<T>, WeightsError>;
}

impl<T> OptionalKey<T> for Result<T, WeightsError> {
    fn optional(self) -> Result<Option<T>, WeightsError> {
        match self {
            Ok(value) => Ok(Some(value)),
            Err(WeightsError::MissingKey { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }
}
