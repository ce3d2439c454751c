//! From a model's name to a running engine: fetch, map, check, size, load, start.
//!
//! Sizes that nobody chose are decided in [`sizes`] and written back into the configuration with their reason, so that the
//! report at start says what really holds. Nothing here waits for the network unless the model isn't local.

mod assets;
mod error;
mod executor;
mod expect;
mod news;
mod sizes;

use std::collections::HashMap;
use std::path::Path;

use kvasir_backend::KvDType;
use kvasir_backend_cpu::{CpuBackend, CpuOptions};
use kvasir_client::MODEL_BYTES;
use kvasir_client::types::ModelInfo;
use kvasir_config::{
    EngineConfig, KvCacheDtype, ModelConfig, PlaceConfig, SchedulerCompat, SchedulingPolicy,
};
use kvasir_engine_core::{KvGroup, Order, Policies, SchedulerConfig};
use kvasir_files::Limit;
use kvasir_model::{KvOptions, LoadOptions, LoadProgress, ModelConfig as ModelDescription, kv_block_bytes};
use kvasir_service::{
    CacheParts, Diagnostics, Engine, EngineSetup, ServiceError, ServiceLimits, StallLimits,
};
use kvasir_weights::Checkpoint;

pub use error::LoadError;
pub(crate) use executor::{LoadedExecutor, load_executor};
pub use expect::ExpectationError;
pub(crate) use expect::digest;

use crate::fetch::{self, FetchOptions, LocalModel, Wanted};
use crate::memory::MemoryLimit;
use crate::progress::Watcher;
use sizes::{Facts, Sizes};
pub(crate) use sizes::{check_block_size, check_budget};

/// More alternatives per token than this would be answers of megabytes.
const MAX_ALTERNATIVES: u32 = 1 << 10;

/// Where an engine runs, and for whom. The default is a process of its own for everybody who can reach it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Place {
    /// Whether only gateways are served.
    pub(crate) gateway_mode: bool,
    /// What the operator says.
    pub(crate) config: PlaceConfig,
}

/// Loads the model that the configuration names and starts its engine. Blocks: call it beside async threads.
///
/// Values that follow from the model and the machine are written into `model` and `engine`.
///
/// # Errors
/// If the model can't be had, read or run, or the configuration doesn't fit it.
pub(crate) fn start_engine(
    model: &mut ModelConfig,
    engine: &mut EngineConfig,
    place: &mut Place,
    watcher: &dyn Watcher,
) -> Result<Engine, LoadError> {
    engine.kv_events_config.value.check_mode(place.gateway_mode)?;
    // The engine does so too, but only when the model is there.
    if let Some(folder) = &engine.dump_dir.value {
        kvasir_service::dump::prepare(folder).map_err(ServiceError::DumpDir)?;
    }
    let Prepared {
        local,
        checkpoint,
        description,
        kv_dtype,
        sizes,
        backend,
    } = prepare(model, engine, watcher)?;
    let digest = checkpoint.digest();
    let info = ModelInfo {
        weights_digest: digest.to_string(),
        details: details(&description, &checkpoint, &backend, kv_dtype, engine),
        revision: engine.revision_name.value.clone().unwrap_or_default(),
        ..model_info(&local, &checkpoint, &description)
    };
    let mut on_progress =
        |progress: LoadProgress| watcher.on_weights(&local.name, progress.done_bytes, progress.total_bytes);
    let options = load_options(engine, &sizes, kv_dtype, &mut on_progress);
    // A vocabulary takes about as long as the weights of a small model: the two are read side by side.
    let (executor, assets) = std::thread::scope(|scope| {
        let assets = scope.spawn(|| assets::of_checkpoint(&checkpoint, model));
        let executor = kvasir_model::load(backend, &checkpoint, description, options);
        let assets = assets
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        (executor, assets)
    });
    let (executor, assets) = (executor?, assets?);
    let engine = Engine::start(EngineSetup {
        executor: Box::new(executor),
        scheduler: scheduler(engine, &sizes),
        policies: policies(engine),
        model: info,
        assets,
        cache: CacheParts {
            weights_digest: digest.as_bytes().to_vec(),
            weights_version: 0,
            kv_dtype: kv_dtype_name(kv_dtype).to_owned(),
        },
        identity: news::identity(engine, place),
        kv_events: news::zmq(&engine.kv_events_config.value),
        limits: ServiceLimits {
            max_logprobs: model.max_logprobs.value.min(MAX_ALTERNATIVES),
            // A CPU has nothing to set up that the first request couldn't wait for.
            max_warmup_tokens: 1,
            require_tenant_salt: place.gateway_mode,
            ..ServiceLimits::default()
        },
        diagnostics: diagnostics(engine),
    })?;
    Ok(engine)
}

/// A model that was found and fits the machine; its weights aren't read yet.
struct Prepared {
    local: LocalModel,
    checkpoint: Checkpoint,
    description: ModelDescription,
    kv_dtype: KvDType,
    sizes: Sizes,
    backend: CpuBackend,
}

fn prepare(
    model: &mut ModelConfig,
    engine: &mut EngineConfig,
    watcher: &dyn Watcher,
) -> Result<Prepared, LoadError> {
    let local = find(model, watcher)?;
    expect::check_digest(model, &local.path)?;
    let checkpoint = Checkpoint::open(&local.path)?;
    expect::check_kind(model, &checkpoint)?;
    let description = ModelDescription::from_checkpoint(&checkpoint)?;
    sizes::check_dtype(model)?;
    let kv_dtype = kv_dtype(engine, &description);
    let sizes = decide_sizes(model, engine, &checkpoint, &description, kv_dtype)?;
    let backend = CpuBackend::new(CpuOptions {
        threads: sizes.threads as usize,
        isa: None,
    })
    .map_err(LoadError::Backend)?;
    Ok(Prepared {
        local,
        checkpoint,
        description,
        kv_dtype,
        sizes,
        backend,
    })
}

fn find(model: &mut ModelConfig, watcher: &dyn Watcher) -> Result<LocalModel, LoadError> {
    let options = FetchOptions::from_env(model.model_cache.value.clone())?;
    let name = model.model.value.as_deref();
    let on_event = |event: &fetch::FetchEvent<'_>| watcher.on_fetch(event);
    let wanted = Wanted {
        format: model.load_format.value,
        quantization: model.quantization.value.clone(),
    };
    let local = fetch::resolve_wanted(name, &wanted, &options, &on_event)?;
    if model.model.value.is_none() {
        model.model.derive(Some(local.name.clone()), "the default model");
    }
    Ok(local)
}

fn kv_dtype(engine: &mut EngineConfig, description: &ModelDescription) -> KvDType {
    match engine.kv_cache_dtype.value {
        KvCacheDtype::Float32 => KvDType::F32,
        KvCacheDtype::Float16 => KvDType::F16,
        KvCacheDtype::Bfloat16 => KvDType::Bf16,
        KvCacheDtype::Auto => {
            let word = match description.kv_dtype {
                KvDType::F32 => KvCacheDtype::Float32,
                KvDType::F16 => KvCacheDtype::Float16,
                KvDType::Bf16 => KvCacheDtype::Bfloat16,
            };
            engine.kv_cache_dtype.derive(word, "the precision of the weights");
            description.kv_dtype
        }
    }
}

fn kv_dtype_name(dtype: KvDType) -> &'static str {
    match dtype {
        KvDType::F32 => "float32",
        KvDType::F16 => "float16",
        KvDType::Bf16 => "bfloat16",
    }
}

fn decide_sizes(
    model: &mut ModelConfig,
    engine: &mut EngineConfig,
    checkpoint: &Checkpoint,
    description: &ModelDescription,
    kv_dtype: KvDType,
) -> Result<Sizes, LoadError> {
    let block_size = engine.block_size.value.get() as usize;
    let facts = Facts {
        max_positions: u32::try_from(description.max_positions).unwrap_or(u32::MAX),
        block_bytes: kv_block_bytes(description, block_size, kv_dtype) as u64,
        weight_bytes: checkpoint.total_bytes(),
        memory: MemoryLimit::of_this_process(),
        // The standard library reads the CPU quota of both kinds of cgroups, and the affinity mask.
        cpus: std::thread::available_parallelism()
            .map_or(1, |count| u32::try_from(count.get()).unwrap_or(u32::MAX)),
    };
    sizes::decide(model, engine, &facts)
}

fn load_options<'a>(
    engine: &EngineConfig,
    sizes: &Sizes,
    kv_dtype: KvDType,
    on_progress: &'a mut dyn FnMut(LoadProgress),
) -> LoadOptions<'a> {
    LoadOptions {
        max_num_tokens: engine.max_num_batched_tokens.value.get() as usize,
        max_model_len: sizes.max_model_len as usize,
        kv: KvOptions {
            block_size: engine.block_size.value.get() as usize,
            num_blocks: sizes.num_blocks as usize,
            dtype: Some(kv_dtype),
        },
        progress: Some(on_progress),
    }
}

fn policies(engine: &EngineConfig) -> Policies {
    let rules = match engine.scheduler_compat.value {
        SchedulerCompat::Kvasir => Policies {
            share_group_prompts: true,
            ..Policies::serve()
        },
        SchedulerCompat::Vllm => Policies::vllm(),
    };
    let order = match engine.scheduling_policy.value {
        SchedulingPolicy::Fcfs => Order::Arrival,
        SchedulingPolicy::Priority => Order::Priority,
    };
    Policies {
        order,
        max_in_flight: if engine.async_scheduling.value { 2 } else { 1 },
        ..rules
    }
}

fn diagnostics(engine: &EngineConfig) -> Diagnostics {
    let ceiling = engine.stall_timeout.value.0;
    let stall = StallLimits::default();
    Diagnostics {
        stall: StallLimits {
            floor: stall.floor.min(ceiling),
            ceiling,
            patience: stall.patience.max(ceiling),
        },
        recorded_inputs: engine.record_inputs.value as usize,
        dump_dir: engine.dump_dir.value.clone(),
        ..Diagnostics::default()
    }
}

fn scheduler(engine: &EngineConfig, sizes: &Sizes) -> SchedulerConfig {
    let max_num_seqs = engine.max_num_seqs.value.get();
    SchedulerConfig {
        max_num_batched_tokens: engine.max_num_batched_tokens.value.get(),
        max_num_seqs,
        max_num_active_seqs: engine
            .max_num_active_seqs
            .value
            .map_or(max_num_seqs, std::num::NonZero::get),
        max_model_len: sizes.max_model_len,
        block_size: engine.block_size.value.get(),
        num_blocks: sizes.num_blocks,
        // The executor keeps the KV of all layers together, behind a window too.
        groups: vec![KvGroup::Full],
        enable_prefix_caching: engine.enable_prefix_caching.value,
        long_prefill_token_threshold: engine.long_prefill_token_threshold.value,
        max_num_queued_reqs: engine.max_num_queued_reqs.value,
        max_num_queued_tokens: engine.max_num_queued_tokens.value.0,
    }
}

/// What is served; what follows from the scheduler's configuration is filled in by the service.
fn model_info(local: &LocalModel, checkpoint: &Checkpoint, description: &ModelDescription) -> ModelInfo {
    ModelInfo {
        model: local.name.clone(),
        architecture: format!("{:?}", description.architecture).to_lowercase(),
        vocab_size: u32::try_from(description.vocab_size).unwrap_or(u32::MAX),
        num_parameters: checkpoint.num_parameters(),
        dtype: checkpoint.main_dtype().to_string(),
        ..ModelInfo::default()
    }
}

/// Constants of this engine that clients may see.
fn details(
    description: &ModelDescription,
    checkpoint: &Checkpoint,
    backend: &CpuBackend,
    kv_dtype: KvDType,
    engine: &EngineConfig,
) -> HashMap<String, String> {
    let max_num_seqs = engine.max_num_seqs.value;
    let max_num_active_seqs = engine.max_num_active_seqs.value.unwrap_or(max_num_seqs);
    [
        ("backend", backend.describe()),
        (
            "enable_prefix_caching",
            engine.enable_prefix_caching.value.to_string(),
        ),
        ("max_num_active_seqs", max_num_active_seqs.to_string()),
        (
            "max_num_batched_tokens",
            engine.max_num_batched_tokens.value.to_string(),
        ),
        ("kv_cache_dtype", kv_dtype_name(kv_dtype).to_owned()),
        (MODEL_BYTES, checkpoint.total_bytes().to_string()),
        ("num_layers", description.num_layers.to_string()),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_owned(), value))
    .collect()
}

/// For tokenizers, templates and generation configurations: the largest tokenizers have a tenth of this.
const LIMIT: Limit = Limit {
    max_bytes: 512 << 20,
    advice: "is it the right file?",
};

/// Reads a file that a model or its configuration needs.
fn read(path: &Path) -> Result<Vec<u8>, LoadError> {
    kvasir_files::read(path, LIMIT).map_err(LoadError::File)
}
