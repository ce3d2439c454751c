//! Why a model can't be loaded.

use std::path::PathBuf;

use kvasir_backend::BackendError;
use kvasir_weights::WeightsError;

/// Why a model's description can't be used, or its weights can't be loaded.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The file that describes the model can't be read.
    #[error("can't read {path}, which describes the model")]
    ReadConfig {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        #[source]
        source: std::io::Error,
    },
    /// The file that describes the model is no JSON object.
    #[error("{path} is no JSON object: {reason}")]
    ParseConfig {
        /// The file.
        path: PathBuf,
        /// Where it breaks.
        reason: String,
    },
    /// The weights' files can't be read.
    #[error(transparent)]
    Weights(#[from] Box<WeightsError>),
    /// The family isn't supported.
    #[error("architecture {found} is not supported; supported are {supported}")]
    Architecture {
        /// What the file says.
        found: String,
        /// What would work.
        supported: &'static str,
    },
    /// A key that is needed is missing.
    #[error("configuration key `{key}` is missing")]
    MissingKey {
        /// The key.
        key: String,
    },
    /// A key has a value of another type than its meaning needs.
    #[error("configuration key `{key}` must be {wanted}, found {found}")]
    WrongType {
        /// The key.
        key: String,
        /// What it must be.
        wanted: &'static str,
        /// What it is.
        found: String,
    },
    /// A number is outside its range.
    #[error("configuration key `{key}` is {value}; it must be {range}")]
    OutOfRange {
        /// The key.
        key: String,
        /// The value.
        value: String,
        /// Its range.
        range: String,
    },
    /// A key that may change what the model computes, and that we don't know.
    #[error(
        "configuration key `{key}` (value {value}) is not known; it may change what the model computes, so the model is \
         not loaded"
    )]
    UnknownKey {
        /// The key.
        key: String,
        /// Its value, shortened.
        value: String,
    },
    /// A key that we know, with a value that isn't implemented.
    #[error("configuration key `{key}` is {value}, which is not supported; supported: {supported}")]
    UnsupportedValue {
        /// The key.
        key: String,
        /// The value, shortened.
        value: String,
        /// What would work.
        supported: &'static str,
    },
    /// Keys contradict each other.
    #[error("the configuration contradicts itself: {reason}")]
    Contradiction {
        /// Which keys, and how.
        reason: String,
    },
    /// A tensor that the description asks for isn't there.
    #[error("tensor `{name}` of shape {shape:?} is missing from the checkpoint")]
    MissingTensor {
        /// The tensor.
        name: String,
        /// Its shape, outermost first.
        shape: Vec<usize>,
    },
    /// A tensor has another shape than the description asks for.
    #[error("tensor `{name}` has shape {found:?}; the configuration asks for {expected:?}")]
    TensorShape {
        /// The tensor.
        name: String,
        /// Its shape, outermost first.
        found: Vec<usize>,
        /// The shape that follows from the configuration.
        expected: Vec<usize>,
    },
    /// A tensor's bytes don't fit its shape and type.
    #[error("tensor `{name}` of shape {shape:?} can't be stored as {dtype} in {bytes} bytes")]
    TensorBytes {
        /// The tensor.
        name: String,
        /// Its shape, outermost first.
        shape: Vec<usize>,
        /// Its type.
        dtype: &'static str,
        /// The bytes there are.
        bytes: usize,
    },
    /// The checkpoint has tensors that the description doesn't account for.
    #[error(
        "the checkpoint has {count} tensors that the configuration does not account for, such as `{example}`"
    )]
    UnexpectedTensors {
        /// How many.
        count: usize,
        /// The first of them.
        example: String,
    },
    /// A load option is outside its range.
    #[error("{option} is {value}; it must be {range}")]
    Option {
        /// The option.
        option: &'static str,
        /// Its value.
        value: usize,
        /// Its range.
        range: String,
    },
    /// Memory can't be had.
    #[error("{what} would take {bytes} bytes, which can't be allocated")]
    OutOfMemory {
        /// For what.
        what: &'static str,
        /// How many bytes; `usize::MAX` if the number itself overflows.
        bytes: usize,
    },
    /// The operating system gave no thread.
    #[error("can't start the executor's thread: {0}")]
    StartThread(#[source] std::io::Error),
    /// The device refused.
    #[error("the device can't load the model: {0}")]
    Backend(#[source] BackendError),
}
