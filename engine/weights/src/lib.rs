//! Model files: GGUF and safetensors parsing that trusts no size, digests, and the memory map.
//!
//! [`Checkpoint::open`] maps a model read-only and hands out tensors as borrowed bytes; nothing is copied or converted
//! here. The parsers are plain functions over a byte slice ([`gguf::parse`], [`safetensors::parse`]), so that they can
//! be fuzzed without a file system. Three rules hold for both of them:
//!
//! 1. A size that a file declares is compared with the bytes that are really there before anything is allocated, so
//!    reading allocates at most a small multiple of the file's own header.
//! 2. Every range that leaves the parser lies inside the file, is the exact size of its shape and type, and overlaps no
//!    other tensor.
//! 3. Every error names the key or tensor and the byte offset.

mod checkpoint;
mod digest;
mod dtype;
mod error;
pub mod gguf;
mod map;
pub mod safetensors;
mod tensor;

pub use checkpoint::Checkpoint;
pub use digest::{Digest, full_digest};
pub use dtype::DType;
pub use error::{OptionalKey, WeightsError};
pub use gguf::{Gguf, Value};
pub use safetensors::Safetensors;
pub use tensor::{StoredType, TensorEntry, TensorView};
