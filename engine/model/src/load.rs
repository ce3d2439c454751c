//! From files to an executor.

use kvasir_backend::{Backend, BackendError, KvDType, KvShape};
use kvasir_weights::Checkpoint;

use crate::check::check_tensors;
use crate::config::ModelConfig;
use crate::error::ModelError;
use crate::executor::Model;
use crate::plan::Limits;
use crate::runner::Runner;
use crate::transformer::Transformer;

/// Block sizes above this waste most of a block on most sequences; the bound keeps sizes in 64 bits.
const MAX_BLOCK_SIZE: usize = 1 << 12;

/// Tokens of one step above this don't make a step any more efficient; the bound keeps sizes in 64 bits.
pub const MAX_STEP_TOKENS: usize = 1 << 20;

/// How a model is to be run.
pub struct LoadOptions<'a> {
    /// Token budget of a step: plans with more are refused.
    pub max_num_tokens: usize,
    /// Prompt plus output of one sequence, in tokens; at most [`ModelConfig::max_positions`].
    pub max_model_len: usize,
    /// The KV cache.
    pub kv: KvOptions,
    /// Called after each tensor.
    pub progress: Option<&'a mut dyn FnMut(LoadProgress)>,
}

/// The KV cache.
#[derive(Clone, Copy, Debug)]
pub struct KvOptions {
    /// Tokens per block.
    pub block_size: usize,
    /// Blocks, with the null block.
    pub num_blocks: usize,
    /// Storage type; [`ModelConfig::kv_dtype`] if none.
    pub dtype: Option<KvDType>,
}

/// How far loading is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct LoadProgress {
    /// Bytes of the tensors that are loaded.
    pub done_bytes: u64,
    /// Bytes of all tensors.
    pub total_bytes: u64,
}

/// Loads a model onto a device, and starts the thread that will run its steps.
///
/// # Errors
/// If options are out of range, a tensor is missing, unexpected or of the wrong shape, or the device or the operating system refuses. The tensors
/// are checked before anything is allocated.
pub fn load<B: Backend>(
    mut backend: B,
    checkpoint: &Checkpoint,
    config: ModelConfig,
    mut options: LoadOptions<'_>,
) -> Result<Model, ModelError> {
    check_options(&config, &options)?;
    let kv_shape = kv_shape(&config, options.kv)?;
    check_tensors(&config, checkpoint)?;
    let transformer = Transformer::load(
        &mut backend,
        checkpoint,
        &config,
        options.max_num_tokens,
        options.max_model_len,
        &mut options.progress,
    )?;
    let kv = backend.new_kv(kv_shape).map_err(ModelError::Backend)?;
    let limits = Limits {
        max_num_tokens: options.max_num_tokens,
        max_model_len: options.max_model_len,
        vocab_size: config.vocab_size,
        block_size: options.kv.block_size,
        num_blocks: options.kv.num_blocks,
    };
    let runner = Runner::new(backend, transformer, kv, limits.block_size, limits.vocab_size);
    Model::start(runner, config, limits)
}

/// Bytes of one KV block over all layers.
pub fn kv_block_bytes(config: &ModelConfig, block_size: usize, dtype: KvDType) -> usize {
    let shape = KvShape {
        num_layers: config.num_layers,
        num_kv_heads: config.num_kv_heads,
        head_dim: config.head_dim,
        block_size: block_size.min(MAX_BLOCK_SIZE),
        num_blocks: 1,
        dtype,
    };
    shape.block_bytes()
}

fn check_options(config: &ModelConfig, options: &LoadOptions<'_>) -> Result<(), ModelError> {
    let within = |option, value, low: usize, high: usize| {
        if (low..=high).contains(&value) {
            Ok(())
        } else {
            Err(ModelError::Option {
                option,
                value,
                range: format!("in {low}..={high}"),
            })
        }
    };
    within("max_num_tokens", options.max_num_tokens, 1, MAX_STEP_TOKENS)?;
    within("max_model_len", options.max_model_len, 1, config.max_positions)?;
    within("block_size", options.kv.block_size, 1, MAX_BLOCK_SIZE)?;
    within("num_blocks", options.kv.num_blocks, 2, u32::MAX as usize)
}

fn kv_shape(config: &ModelConfig, options: KvOptions) -> Result<KvShape, ModelError> {
    let shape = KvShape {
        num_layers: config.num_layers,
        num_kv_heads: config.num_kv_heads,
        head_dim: config.head_dim,
        block_size: options.block_size,
        num_blocks: options.num_blocks,
        dtype: options.dtype.unwrap_or(config.kv_dtype),
    };
    match shape.block_bytes().checked_mul(options.num_blocks) {
        Some(bytes) if isize::try_from(bytes).is_ok() => Ok(shape),
        _ => Err(ModelError::Backend(BackendError::OutOfMemory {
            what: "the KV cache",
            bytes: usize::MAX,
        })),
    }
}
