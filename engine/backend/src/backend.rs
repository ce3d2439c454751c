//! The operations a model is written over: few, fused, and with shapes that are known before they run.
//!
//! Two promises that every implementation keeps (design section 6):
//! 1. A row's result doesn't depend on the other rows of the batch, on their number, or on the number of threads.
//! 2. Attention reads K and V from the cache, after rounding to its type, in pieces of whole blocks, also for the positions
//!    that the same step wrote. So a position computes the same alone, batched, chunked, resumed and after a prefix hit.

use kvasir_engine_core::{BlockCopy, BlockId};
use kvasir_weights::DType;

/// A device that computes. All matrices multiply as `out[r][o] = sum over k of x[r][k] * w[o][k]`.
pub trait Backend: Send + 'static {
    /// A weight matrix in the device's own layout.
    type Matrix: Send;
    /// A weight vector, in f32.
    type Vector: Send;
    /// Activations: up to a fixed number of rows of f32, of which the first `rows()` are in use.
    type Buffer: Send;
    /// K and V of all layers and blocks.
    type Kv: Send;

    /// Loads matrices stacked along their outputs (for example Q, K and V), all with the same number of inputs.
    /// Parts may differ in type.
    ///
    /// # Errors
    /// If a part's type isn't supported, its byte length doesn't match its shape, or memory is short.
    fn load_matrix(&mut self, parts: &[WeightView<'_>]) -> Result<Self::Matrix, BackendError>;

    /// Loads a vector: `rows` is 1.
    ///
    /// # Errors
    /// As for `load_matrix`.
    fn load_vector(&mut self, weight: WeightView<'_>) -> Result<Self::Vector, BackendError>;

    /// Makes a buffer of up to `max_rows` rows of `width` values.
    ///
    /// # Errors
    /// If memory is short.
    fn new_buffer(&mut self, max_rows: usize, width: usize) -> Result<Self::Buffer, BackendError>;

    /// Reserves KV storage. Its memory is touched only when blocks are first written.
    ///
    /// # Errors
    /// If the shape isn't supported or the reservation fails.
    fn new_kv(&mut self, shape: KvShape) -> Result<Self::Kv, BackendError>;

    /// Copies K and V of the first positions of blocks to the same places of other blocks, in all layers. All reads come before all writes, so that chains
    /// and swaps of blocks give what they say; of several writes to one block the last one holds. Other positions keep what they have. Whose blocks they are (`seq`, `group`) means nothing here.
    ///
    /// # Errors
    /// If a block doesn't exist or has fewer positions.
    fn copy_blocks(&mut self, copies: &[BlockCopy], kv: &mut Self::Kv) -> Result<(), BackendError>;

    /// `out[i] = table[tokens[i]]`; sets `out`'s rows.
    ///
    /// # Errors
    /// If a token is outside the table.
    fn embed(
        &mut self,
        table: &Self::Matrix,
        tokens: &[u32],
        out: &mut Self::Buffer,
    ) -> Result<(), BackendError>;

    /// `out = x / sqrt(mean(x^2) + eps) * weight`, by row; sets `out`'s rows.
    ///
    /// # Errors
    /// If shapes don't match.
    fn rms_norm(
        &mut self,
        x: &Self::Buffer,
        weight: &Self::Vector,
        eps: f32,
        out: &mut Self::Buffer,
    ) -> Result<(), BackendError>;

    /// `out = x * w^T + bias`; sets `out`'s rows.
    ///
    /// # Errors
    /// If shapes don't match.
    fn linear(
        &mut self,
        w: &Self::Matrix,
        bias: Option<&Self::Vector>,
        x: &Self::Buffer,
        out: &mut Self::Buffer,
    ) -> Result<(), BackendError>;

    /// `residual += x * w^T + bias`.
    ///
    /// # Errors
    /// If shapes don't match.
    fn linear_add(
        &mut self,
        w: &Self::Matrix,
        bias: Option<&Self::Vector>,
        x: &Self::Buffer,
        residual: &mut Self::Buffer,
    ) -> Result<(), BackendError>;

    /// Rotates Q and K of each row in place by its position and writes K and V into the cache.
    /// A row of `qkv` is `[q heads | k heads | v heads]`, each of `head_dim` values.
    ///
    /// # Errors
    /// If shapes don't match or a block table is too short.
    fn rope_and_store(
        &mut self,
        qkv: &mut Self::Buffer,
        layer: usize,
        rope: &RopeTable,
        batch: &AttentionBatch<'_>,
        kv: &mut Self::Kv,
    ) -> Result<(), BackendError>;

    /// Causal attention of each row's Q over positions `0..=position` of its sequence, read from the cache;
    /// `out` is `[q heads][head_dim]` by row; sets `out`'s rows.
    ///
    /// # Errors
    /// If shapes don't match or a block table is too short.
    fn attention(
        &mut self,
        qkv: &Self::Buffer,
        layer: usize,
        spec: AttentionSpec,
        batch: &AttentionBatch<'_>,
        kv: &Self::Kv,
        out: &mut Self::Buffer,
    ) -> Result<(), BackendError>;

    /// `out = act(gate) * up` where a row of `gate_up` is `[gate | up]`; sets `out`'s rows.
    ///
    /// # Errors
    /// If shapes don't match.
    fn gated_activation(
        &mut self,
        gate_up: &Self::Buffer,
        activation: Activation,
        out: &mut Self::Buffer,
    ) -> Result<(), BackendError>;

    /// `out[i] = x[rows[i]]`; sets `out`'s rows.
    ///
    /// # Errors
    /// If a row is out of range.
    fn gather_rows(
        &mut self,
        x: &Self::Buffer,
        rows: &[usize],
        out: &mut Self::Buffer,
    ) -> Result<(), BackendError>;

    /// Copies row `row` of `x` to the host.
    ///
    /// # Errors
    /// If the row is out of range.
    fn read_row(&mut self, x: &Self::Buffer, row: usize, out: &mut [f32]) -> Result<(), BackendError>;
}

/// A weight as it lies in the file: `rows` outputs of `cols` inputs, row-major, in `dtype`'s block layout.
#[derive(Clone, Copy, Debug)]
pub struct WeightView<'a> {
    /// For error messages.
    pub name: &'a str,
    /// Storage type.
    pub dtype: DType,
    /// Outputs.
    pub rows: usize,
    /// Inputs; a multiple of the type's block length.
    pub cols: usize,
    /// Exactly `rows * dtype.row_bytes(cols)` bytes.
    pub data: &'a [u8],
}

/// Storage type of the KV cache.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum KvDType {
    /// 4 bytes a value: exact.
    F32,
    /// 2 bytes a value, 11 significant bits.
    F16,
    /// 2 bytes a value, 8 significant bits.
    Bf16,
}

/// Size and type of the KV storage.
#[derive(Clone, Copy, Debug)]
pub struct KvShape {
    /// Transformer layers.
    pub num_layers: usize,
    /// KV heads per layer.
    pub num_kv_heads: usize,
    /// Values per head.
    pub head_dim: usize,
    /// Tokens per block.
    pub block_size: usize,
    /// Blocks, with the null block.
    pub num_blocks: usize,
    /// Storage type.
    pub dtype: KvDType,
}

impl KvShape {
    /// Bytes of one block over all layers, K and V.
    pub fn block_bytes(&self) -> usize {
        let value_bytes = match self.dtype {
            KvDType::F32 => 4,
            KvDType::F16 | KvDType::Bf16 => 2,
        };
        2 * self.num_layers * self.num_kv_heads * self.head_dim * self.block_size * value_bytes
    }
}

/// Which pairs of a head's values rotate together.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum RopeStyle {
    /// Value `i` with `i + rotary_dim / 2` (Hugging Face weights).
    Halves,
    /// Value `2i` with `2i + 1` (GGUF weights of the llama architecture, whose Q and K rows were permuted).
    Pairs,
}

/// Cosines and sines for every position, already scaled: `[position][rotary_dim / 2]`.
#[derive(Clone, Debug)]
pub struct RopeTable {
    /// Pairing.
    pub style: RopeStyle,
    /// How many of a head's values rotate; even, at most `head_dim`.
    pub rotary_dim: usize,
    /// `num_q_heads` of the rows that are rotated.
    pub num_q_heads: usize,
    /// Cosines.
    pub cos: Vec<f32>,
    /// Sines.
    pub sin: Vec<f32>,
}

/// What attention computes.
#[derive(Clone, Copy, Debug)]
pub struct AttentionSpec {
    /// Query heads, a multiple of the KV heads.
    pub num_q_heads: usize,
    /// Scores are multiplied by this, usually `1 / sqrt(head_dim)`.
    pub scale: f32,
    /// Only the last this many positions are seen, the current one included.
    pub sliding_window: Option<usize>,
}

/// Which rows belong to which sequence, and where their K and V are.
#[derive(Clone, Copy, Debug)]
pub struct AttentionBatch<'a> {
    /// The sequences; their rows follow each other without gaps.
    pub seqs: &'a [AttentionSeq<'a>],
}

/// One sequence's rows.
#[derive(Clone, Copy, Debug)]
pub struct AttentionSeq<'a> {
    /// First row of the buffers.
    pub first_row: usize,
    /// Number of rows.
    pub num_rows: usize,
    /// Position of the first row; row `i` is at `first_position + i`.
    pub first_position: usize,
    /// Physical blocks of positions `0..first_position + num_rows`.
    pub blocks: &'a [BlockId],
}

/// The gate's activation.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Activation {
    /// `x / (1 + exp(-x))`.
    Silu,
    /// The tanh approximation of GELU.
    GeluTanh,
}

/// Why an operation failed.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    /// The weight can't be loaded.
    #[error("weight {name}: {reason}")]
    Weight {
        /// The tensor.
        name: String,
        /// What is wrong.
        reason: String,
    },
    /// Memory can't be had.
    #[error("{bytes} bytes for {what} can't be allocated")]
    OutOfMemory {
        /// For what.
        what: &'static str,
        /// How many bytes.
        bytes: usize,
    },
    /// Operands don't fit together: a fault of the caller.
    #[error("{operation}: {reason}")]
    Shape {
        /// Which operation.
        operation: &'static str,
        /// What doesn't fit.
        reason: String,
    },
    /// The implementation has a fault; the operation's results are lost.
    #[error("{operation} failed: {reason}")]
    Fault {
        /// Which operation.
        operation: &'static str,
        /// What happened.
        reason: String,
    },
}
