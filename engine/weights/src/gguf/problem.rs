//! Why a GGUF file was refused: a place and a problem.

use std::fmt;

use crate::DType;

/// A GGUF file is malformed or of an unsupported kind.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{subject} at byte {offset}: {problem}")]
pub struct GgufError {
    /// The part of the file that was being read.
    pub subject: Subject,
    /// Where in the file, counted from its first byte.
    pub offset: u64,
    /// What is wrong there.
    pub problem: GgufProblem,
}

/// A part of a GGUF file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// Magic, version and counts.
    Header,
    /// The key of the metadata entry of this index, before it is known.
    KeyNumber(u64),
    /// The value of a metadata key.
    Key(String),
    /// The name of the tensor of this index, before it is known.
    TensorNumber(u64),
    /// A tensor.
    Tensor(String),
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header => f.write_str("GGUF header"),
            Self::KeyNumber(index) => write!(f, "metadata key number {index}"),
            Self::Key(key) => write!(f, "metadata key `{}`", key.escape_debug()),
            Self::TensorNumber(index) => write!(f, "tensor number {index}"),
            Self::Tensor(name) => write!(f, "tensor `{}`", name.escape_debug()),
        }
    }
}

/// What is wrong with a part of a GGUF file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GgufProblem {
    /// The file ends in the middle of something.
    #[error("the file ends here: {needed} bytes are needed, {available} are left")]
    Truncated {
        /// Bytes that the declared value takes.
        needed: u64,
        /// Bytes from here to the end of the file.
        available: u64,
    },
    /// The file doesn't begin with `GGUF`.
    #[error("this is no GGUF file: it begins with {found:02x?} instead of `GGUF`")]
    WrongMagic {
        /// The first four bytes.
        found: [u8; 4],
    },
    /// The file was written for a big-endian machine.
    #[error("this GGUF file is big endian; convert it to little endian")]
    BigEndian,
    /// Another format version than 2 or 3.
    #[error(
        "GGUF version {found} is not supported, only 2 and 3 are; convert the model again with current tools"
    )]
    UnsupportedVersion {
        /// The declared version.
        found: u32,
    },
    /// A count is above its limit.
    #[error("{count} {what} are declared, the limit is {limit}")]
    TooMany {
        /// What is counted.
        what: &'static str,
        /// The declared count.
        count: u64,
        /// The limit.
        limit: u64,
    },
    /// A count can't be true because so many entries don't fit the rest of the file.
    #[error("{count} {what} are declared, but only {available} bytes are left")]
    CountBeyondFile {
        /// What is counted.
        what: &'static str,
        /// The declared count.
        count: u64,
        /// Bytes from here to the end of the file.
        available: u64,
    },
    /// A string is above its limit.
    #[error("a string of {len} bytes is declared, the limit is {limit}")]
    StringTooLong {
        /// The declared length.
        len: u64,
        /// The limit for this kind of string.
        limit: u64,
    },
    /// A string isn't UTF-8.
    #[error("the string is not valid UTF-8")]
    NotUtf8,
    /// A key or name occurs a second time.
    #[error("the name occurs a second time")]
    Duplicate,
    /// The type number of a metadata value is unknown.
    #[error("value type {found} is unknown")]
    UnknownValueType {
        /// The declared number.
        found: u32,
    },
    /// A boolean is neither 0 nor 1.
    #[error("a boolean must be 0 or 1, not {found}")]
    InvalidBool {
        /// The stored byte.
        found: u8,
    },
    /// Arrays within arrays, too deep.
    #[error("arrays are nested deeper than {limit} levels")]
    NestedTooDeep {
        /// The limit.
        limit: u32,
    },
    /// `general.alignment` has a wrong type.
    #[error("the alignment must be an unsigned 32-bit integer, the file has {found}")]
    AlignmentType {
        /// The type in the file.
        found: String,
    },
    /// `general.alignment` isn't a power of two.
    #[error("the alignment must be a power of two, not {found}")]
    Alignment {
        /// The declared alignment.
        found: u32,
    },
    /// The file is one part of several.
    #[error("this file is one of {parts} parts of a split model; merge them into one file first")]
    Split {
        /// The declared number of parts.
        parts: i128,
    },
    /// Too few or too many dimensions.
    #[error("{found} dimensions are declared, 1 to 4 are possible")]
    Dimensions {
        /// The declared number.
        found: u32,
    },
    /// A dimension is zero.
    #[error("dimension {index} is zero")]
    ZeroDimension {
        /// The dimension, innermost first as in the file.
        index: u32,
    },
    /// The shape's number of elements or bytes overflows.
    #[error("the shape {shape:?} (innermost first) has more elements than can be addressed")]
    ShapeOverflow {
        /// The dimensions as in the file.
        shape: Vec<u64>,
    },
    /// A row isn't a whole number of blocks.
    #[error("rows of {cols} elements are no whole number of {dtype} blocks of {block}")]
    BrokenBlock {
        /// Elements per row.
        cols: u64,
        /// The quantized type.
        dtype: DType,
        /// Elements per block.
        block: usize,
    },
    /// The element type is unknown or not supported.
    #[error(
        "element type {name} is not supported; supported are F32, F16, BF16, Q4_0 to Q8_0 and Q2_K to Q6_K"
    )]
    UnsupportedType {
        /// The type's name, or its number when it has none.
        name: String,
    },
    /// The data's offset isn't a multiple of the alignment.
    #[error("the data offset {offset} is no multiple of the alignment {alignment}")]
    Unaligned {
        /// Offset within the data section.
        offset: u64,
        /// The file's alignment.
        alignment: u64,
    },
    /// The data lie partly or wholly behind the end of the file.
    #[error("{size} bytes of data from byte {start} on reach beyond the end of the file at {file_len}")]
    DataBeyondFile {
        /// First byte of the data, counted from the start of the file, or the offset that overflowed.
        start: u64,
        /// Bytes of data.
        size: u64,
        /// The file's length.
        file_len: u64,
    },
    /// Two tensors share bytes.
    #[error("the data overlap those of tensor `{other}`")]
    Overlap {
        /// The tensor that lies before this one.
        other: String,
    },
}
