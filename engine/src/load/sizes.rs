//! How long sequences may be, how many KV blocks there are, how many threads compute. Pure.
//!
//! What a person chose is kept or refused, never bent. What nobody chose follows from the model and the machine:
//!
//! - The KV cache gets half of what the memory limit leaves beside the weights. The other half is for activations, text, and the page
//!   cache of the mapped file. It never gets more than all sequences at full length could use, and its memory is touched only when
//!   blocks are first written, so a generous limit costs nothing.
//! - Sequences are as long as the model allows, or as the cache can hold one of.

use std::num::NonZeroU32;

use kvasir_config::{ByteCount, ConfigError, Dtype, EngineConfig, ModelConfig};

use kvasir_model::MAX_STEP_TOKENS;

use super::LoadError;

/// What the decision is made from.
pub(super) struct Facts {
    /// Longest sequence of the model, in tokens.
    pub(super) max_positions: u32,
    /// Bytes of a KV block over all layers.
    pub(super) block_bytes: u64,
    /// Bytes of all weights.
    pub(super) weight_bytes: u64,
    /// What this process may use.
    pub(super) memory: crate::memory::MemoryLimit,
    /// CPUs that this process may use.
    pub(super) cpus: u32,
}

/// The decision.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Sizes {
    /// Prompt plus output, in tokens.
    pub(super) max_model_len: u32,
    /// KV blocks, with the null block.
    pub(super) num_blocks: u32,
    /// Threads that compute.
    pub(super) threads: u32,
}

/// The share of the memory beside the weights that the KV cache gets: one part in this many.
const KV_PARTS: u64 = 2;
/// KV memory where no limit can be read.
const KV_BYTES_WITHOUT_LIMIT: u64 = 4 << 30;
/// Positions are counted in 32 bits with room for sums; the scheduler refuses larger pools.
const MAX_POOL_TOKENS: u64 = 1 << 31;
/// The null block, and one that can be used.
const MIN_BLOCKS: u64 = 2;
/// Attention kernels take keys and values in runs of this many positions.
const BLOCK_SIZE_STEP: u32 = 16;
/// The scheduler's limit.
const MAX_BLOCK_SIZE: u32 = 4096;
/// One token of prompt and one of output.
const MIN_MODEL_LEN: u32 = 2;

/// Decides, and writes what was decided into the configuration.
///
/// # Errors
/// If a chosen length exceeds the model's, or the cache can't hold one sequence of it.
pub(super) fn decide(
    model: &mut ModelConfig,
    engine: &mut EngineConfig,
    facts: &Facts,
) -> Result<Sizes, LoadError> {
    let threads = model.threads.get_or_derive(|| {
        (
            NonZeroU32::new(facts.cpus).unwrap_or(NonZeroU32::MIN),
            "the CPU quota and affinity".into(),
        )
    });
    let wanted_len = wanted_len(model, facts)?;
    let block_size = engine.block_size.value.get();
    check_block_size(block_size)?;
    check_budget(engine.max_num_batched_tokens.value.get())?;
    let num_blocks = num_blocks(engine, facts, wanted_len)?;
    // One block is the null block.
    let usable_tokens = u64::from(num_blocks - 1) * u64::from(block_size);
    let max_model_len = if usable_tokens >= u64::from(wanted_len) {
        wanted_len
    } else if model.max_model_len.source.is_explicit() || usable_tokens < u64::from(MIN_MODEL_LEN) {
        return Err(too_small(engine, facts, wanted_len, usable_tokens).into());
    } else {
        usable_tokens as u32
    };
    if !model.max_model_len.source.is_explicit() {
        let from = if max_model_len < wanted_len {
            "what the KV cache can hold"
        } else {
            "the model"
        };
        model.max_model_len.derive(NonZeroU32::new(max_model_len), from);
    }
    if engine.max_num_active_seqs.value.is_none() {
        engine
            .max_num_active_seqs
            .derive(Some(engine.max_num_seqs.value), "max-num-seqs");
    }
    Ok(Sizes {
        max_model_len,
        num_blocks,
        threads: threads.get(),
    })
}

/// Weights are computed in the type they are stored in.
///
/// # Errors
/// If another type is asked for.
pub(super) fn check_dtype(model: &ModelConfig) -> Result<(), LoadError> {
    match model.dtype.value {
        Dtype::Auto => Ok(()),
        other => Err(ConfigError::Conflict(format!(
            "--dtype {} isn't supported: weights are computed in the type that the file stores them in, which is --dtype auto",
            other.as_str()
        ))
        .into()),
    }
}

fn wanted_len(model: &ModelConfig, facts: &Facts) -> Result<u32, ConfigError> {
    match model.max_model_len.value.map(NonZeroU32::get) {
        Some(len) if len > facts.max_positions => Err(ConfigError::Conflict(format!(
            "max-model-len {len} is longer than the model's {} tokens, for which its positions were trained",
            facts.max_positions
        ))),
        Some(len) if len < MIN_MODEL_LEN => Err(ConfigError::Conflict(format!(
            "max-model-len {len} leaves no room: it must be at least {MIN_MODEL_LEN}, a token of prompt and one of output"
        ))),
        Some(len) => Ok(len),
        None => Ok(facts.max_positions),
    }
}

/// Blocks are of a multiple of the kernels' step.
///
/// # Errors
/// If they aren't.
pub(crate) fn check_block_size(block_size: u32) -> Result<(), ConfigError> {
    if block_size.is_multiple_of(BLOCK_SIZE_STEP) && (1..=MAX_BLOCK_SIZE).contains(&block_size) {
        return Ok(());
    }
    Err(ConfigError::Conflict(format!(
        "block-size {block_size} can't be used: it must be a multiple of {BLOCK_SIZE_STEP}, up to {MAX_BLOCK_SIZE}"
    )))
}

/// The workspace of a step is made for its whole budget.
pub(crate) fn check_budget(tokens: u32) -> Result<(), ConfigError> {
    if tokens as usize <= MAX_STEP_TOKENS {
        return Ok(());
    }
    Err(ConfigError::Conflict(format!(
        "max-num-batched-tokens is {tokens}; it must be at most {MAX_STEP_TOKENS}, and so must max-num-seqs, which it follows"
    )))
}

/// Blocks with the null block; at least one more than that.
///
/// # Errors
/// If a chosen size holds no block, or more than can be counted.
fn num_blocks(engine: &mut EngineConfig, facts: &Facts, wanted_len: u32) -> Result<u32, ConfigError> {
    let block_bytes = facts.block_bytes.max(1);
    let most = MAX_POOL_TOKENS / u64::from(engine.block_size.value.get());
    if let Some((bytes, from)) = utilized(engine, facts)? {
        engine.kv_cache_memory_bytes.derive(Some(ByteCount(bytes)), from);
    }
    let is_chosen = engine.num_blocks.value.is_some() || engine.kv_cache_memory_bytes.value.is_some();
    let blocks = if let Some(blocks) = engine.num_blocks.value {
        u64::from(blocks.get()) + 1
    } else if let Some(bytes) = engine.kv_cache_memory_bytes.value {
        bytes.0 / block_bytes
    } else {
        let (bytes, from) = default_bytes(engine, facts, wanted_len);
        engine.kv_cache_memory_bytes.derive(Some(ByteCount(bytes)), from);
        bytes / block_bytes
    };
    if is_chosen && blocks < MIN_BLOCKS {
        return Err(too_small(engine, facts, wanted_len, 0));
    }
    if is_chosen && blocks > most {
        return Err(ConfigError::Conflict(format!(
            "a KV cache of {blocks} blocks of {} tokens is more than the {MAX_POOL_TOKENS} tokens that can be counted: \
             lower kv-cache-memory-bytes or num-gpu-blocks-override",
            engine.block_size.value
        )));
    }
    let blocks = blocks.clamp(MIN_BLOCKS, most) as u32;
    if engine.num_blocks.value.is_none() {
        engine
            .num_blocks
            .derive(NonZeroU32::new(blocks - 1), "kv-cache-memory-bytes");
    } else {
        engine.kv_cache_memory_bytes.derive(
            Some(ByteCount(u64::from(blocks) * block_bytes)),
            "num-gpu-blocks-override",
        );
    }
    Ok(blocks)
}

/// What the chosen part of the memory leaves beside the weights, with the words for it.
///
/// # Errors
/// If there is no limit to take a part of, or the weights need all of the part.
fn utilized(engine: &EngineConfig, facts: &Facts) -> Result<Option<(u64, String)>, ConfigError> {
    let Some(part) = engine.memory_utilization.value else {
        return Ok(None);
    };
    let Some((limit, from)) = facts.memory.smallest() else {
        return Err(ConfigError::Conflict(format!(
            "gpu-memory-utilization is {}, and no memory limit can be read that it could be a part of: give kv-cache-memory-bytes",
            part.0
        )));
    };
    let bytes = (limit as f64 * part.0) as u64;
    let room = bytes.saturating_sub(facts.weight_bytes);
    if room < facts.block_bytes.saturating_mul(MIN_BLOCKS) {
        return Err(ConfigError::Conflict(format!(
            "gpu-memory-utilization {} of {from} is {}, and the weights need {}: nothing is left for keys and values; raise it or the limit",
            part.0,
            ByteCount(bytes),
            ByteCount(facts.weight_bytes)
        )));
    }
    Ok(Some((room, format!("{} of {from} beside the weights", part.0))))
}

fn default_bytes(engine: &EngineConfig, facts: &Facts, wanted_len: u32) -> (u64, String) {
    let blocks_per_seq = u64::from(wanted_len.div_ceil(engine.block_size.value.get()));
    let blocks = u64::from(engine.max_num_seqs.value.get())
        .saturating_mul(blocks_per_seq)
        .saturating_add(1);
    let useful = blocks.saturating_mul(facts.block_bytes);
    let (limit, from) = match facts.memory.smallest() {
        Some((bytes, from)) => (
            bytes.saturating_sub(facts.weight_bytes) / KV_PARTS,
            format!("half of {from} beside the weights"),
        ),
        None => (KV_BYTES_WITHOUT_LIMIT, "no memory limit could be read".to_owned()),
    };
    if useful <= limit {
        (useful, "max-num-seqs sequences of max-model-len".to_owned())
    } else {
        (limit, from)
    }
}

fn too_small(engine: &EngineConfig, facts: &Facts, wanted_len: u32, usable_tokens: u64) -> ConfigError {
    let blocks = u64::from(wanted_len.div_ceil(engine.block_size.value.get())) + 1;
    let needed = ByteCount(blocks.saturating_mul(facts.block_bytes));
    ConfigError::Conflict(format!(
        "the KV cache holds {usable_tokens} tokens, less than one sequence of max-model-len {wanted_len}, which needs {needed}: \
         raise kv-cache-memory-bytes to that or lower max-model-len"
    ))
}

#[cfg(test)]
mod tests {
    use kvasir_config::{Layer, Source};

    use super::*;
    use crate::memory::MemoryLimit;

    const MIB: u64 = 1 << 20;

    /// A model of 100 MiB with 8192 positions and blocks of 1 MiB.
    fn facts(memory_bytes: Option<u64>) -> Facts {
        Facts {
            max_positions: 8192,
            block_bytes: MIB,
            weight_bytes: 100 * MIB,
            memory: MemoryLimit {
                cgroup_bytes: memory_bytes,
                available_bytes: None,
            },
            cpus: 3,
        }
    }

    fn decide_with(
        options: &[(&str, &str)],
        facts: &Facts,
    ) -> (Result<Sizes, String>, ModelConfig, EngineConfig) {
        let mut layer = Layer::default();
        for (key, value) in options {
            layer.set(*key, Source::Flag, vec![(*value).to_owned()]);
        }
        let mut model = ModelConfig::resolve(&layer).unwrap();
        let mut engine = EngineConfig::resolve(&layer).unwrap();
        let sizes = decide(&mut model, &mut engine, facts).map_err(|error| error.to_string());
        (sizes, model, engine)
    }

    #[test]
    fn cache_gets_half_of_what_the_weights_leave() {
        let (sizes, _, engine) = decide_with(&[], &facts(Some(2148 * MIB)));
        assert_eq!(
            sizes.unwrap(),
            Sizes {
                max_model_len: 8192,
                num_blocks: 1024,
                threads: 3
            }
        );
        assert_eq!(
            engine.kv_cache_memory_bytes.source,
            Source::Derived("half of the cgroup's memory limit beside the weights".into())
        );
    }

    #[test]
    fn cache_is_no_larger_than_all_sequences_can_use() {
        let options = [("max-num-seqs", "2"), ("max-model-len", "160")];
        let (sizes, ..) = decide_with(&options, &facts(Some(1 << 40)));
        assert_eq!(sizes.unwrap().num_blocks, 2 * 10 + 1);
    }

    #[test]
    fn length_nobody_chose_shrinks_to_what_the_cache_holds() {
        let (sizes, model, _) = decide_with(&[("kv-cache-memory-bytes", "11MiB")], &facts(None));
        assert_eq!(sizes.unwrap().max_model_len, 160);
        assert_eq!(
            model.max_model_len.source,
            Source::Derived("what the KV cache can hold".into())
        );
    }

    #[test]
    fn chosen_length_that_does_not_fit_is_refused_with_the_size_that_would() {
        let options = [("kv-cache-memory-bytes", "11MiB"), ("max-model-len", "161")];
        let error = decide_with(&options, &facts(None)).0.unwrap_err();
        assert!(error.contains("160 tokens") && error.contains("12MiB"), "{error}");
        let fits = [("kv-cache-memory-bytes", "12MiB"), ("max-model-len", "161")];
        assert_eq!(decide_with(&fits, &facts(None)).0.unwrap().max_model_len, 161);
    }

    #[test]
    fn length_beyond_the_models_is_refused() {
        let error = decide_with(&[("max-model-len", "8193")], &facts(None))
            .0
            .unwrap_err();
        assert!(error.contains("8192"), "{error}");
        assert!(decide_with(&[("max-model-len", "1")], &facts(None)).0.is_err());
    }

    #[test]
    fn blocks_can_be_given_directly() {
        let (sizes, _, engine) = decide_with(&[("num-gpu-blocks-override", "600")], &facts(None));
        assert_eq!(sizes.unwrap().num_blocks, 601);
        assert_eq!(engine.kv_cache_memory_bytes.value, Some(ByteCount(601 * MIB)));
    }

    #[test]
    fn chosen_cache_that_holds_no_block_is_refused() {
        // Two blocks are the least: one of them is the null block.
        for bytes in ["0", "1", "1MiB", "2097151"] {
            let error = decide_with(&[("kv-cache-memory-bytes", bytes)], &facts(None))
                .0
                .unwrap_err();
            assert!(error.contains("holds 0 tokens"), "{bytes}: {error}");
        }
        assert_eq!(
            decide_with(&[("kv-cache-memory-bytes", "2MiB")], &facts(None))
                .0
                .unwrap()
                .max_model_len,
            16
        );
    }

    #[test]
    fn chosen_cache_that_can_not_be_counted_is_refused() {
        for option in [
            ("kv-cache-memory-bytes", "16777215TiB"),
            ("num-gpu-blocks-override", "4294967295"),
        ] {
            let error = decide_with(&[option], &facts(None)).0.unwrap_err();
            assert!(error.contains(option.0), "{error}");
        }
    }

    #[test]
    fn block_sizes_that_no_kernel_takes_are_refused() {
        for size in ["1", "17", "4112", "4294967280"] {
            let error = decide_with(&[("block-size", size)], &facts(None)).0.unwrap_err();
            assert!(error.contains("block-size") && error.contains("16"), "{error}");
        }
    }

    #[test]
    fn budgets_that_no_step_has_room_for_are_refused_by_name() {
        for (tokens, is_taken) in [("1048576", true), ("1048577", false), ("4294967295", false)] {
            let (sizes, ..) = decide_with(&[("max-num-batched-tokens", tokens)], &facts(None));
            assert_eq!(sizes.is_ok(), is_taken, "{tokens}");
            if let Err(error) = sizes {
                assert!(
                    error.contains("max-num-batched-tokens") && error.contains("1048576"),
                    "{error}"
                );
            }
        }
    }

    #[test]
    fn extreme_inputs_stay_in_range() {
        for (memory, blocks) in [
            (Some(0), "4294967295"),
            (Some(u64::MAX), "1"),
            (None, "2147483648"),
        ] {
            let mut extreme = facts(memory);
            extreme.block_bytes = u64::MAX;
            for option in [
                ("num-gpu-blocks-override", blocks),
                ("kv-cache-memory-bytes", "16777215TiB"),
            ] {
                let (sizes, ..) = decide_with(&[option], &extreme);
                if let Ok(sizes) = sizes {
                    assert!(u64::from(sizes.num_blocks) * 16 <= MAX_POOL_TOKENS);
                }
            }
        }
    }

    #[test]
    fn other_compute_types_than_the_files_are_refused() {
        let mut layer = Layer::default();
        layer.set("dtype", Source::Flag, vec!["bfloat16".to_owned()]);
        assert!(check_dtype(&ModelConfig::resolve(&layer).unwrap()).is_err());
        assert!(check_dtype(&ModelConfig::default()).is_ok());
    }

    #[test]
    fn a_chosen_part_of_the_memory_holds_weights_and_cache_together() {
        // Of 1000 MiB half is 500 MiB, and the weights have 100 MiB.
        let (sizes, _, engine) = decide_with(&[("gpu-memory-utilization", "0.5")], &facts(Some(1000 * MIB)));
        assert_eq!(sizes.unwrap().num_blocks, 400);
        assert_eq!(
            engine.kv_cache_memory_bytes.value,
            Some(ByteCount(400 * MIB)),
            "it is said what was made of it"
        );
    }

    #[test]
    fn a_part_that_holds_no_cache_and_a_part_of_nothing_are_refused() {
        for (memory, said) in [
            (Some(1000 * MIB), "the weights need 100MiB"),
            (None, "no memory limit can be read"),
        ] {
            let (sizes, ..) = decide_with(&[("gpu-memory-utilization", "0.05")], &facts(memory));
            let error = sizes.unwrap_err();
            assert!(error.contains(said), "{error}");
        }
    }
}
