//! A model without an engine: for measuring it.

use kvasir_backend::Executor;
use kvasir_config::{EngineConfig, ModelConfig};
use kvasir_engine_core::SchedulerConfig;
use kvasir_model::LoadProgress;

use super::{LoadError, Prepared, load_options, prepare, scheduler};
use crate::progress::Watcher;

/// What runs plans, and what it can run.
pub(crate) struct LoadedExecutor {
    pub(crate) executor: Box<dyn Executor>,
    /// What a server would schedule with.
    pub(crate) limits: SchedulerConfig,
    pub(crate) vocab_size: u32,
    /// Threads that compute, this one included.
    pub(crate) threads: u32,
}

/// Loads the weights of the model that the configuration names, with the sizes that a server would have.
///
/// # Errors
/// If the model can't be had, read or run, or the configuration doesn't fit it.
pub(crate) fn load_executor(
    model: &mut ModelConfig,
    engine: &mut EngineConfig,
    watcher: &dyn Watcher,
) -> Result<LoadedExecutor, LoadError> {
    let Prepared {
        local,
        checkpoint,
        description,
        kv_dtype,
        sizes,
        backend,
    } = prepare(model, engine, watcher)?;
    let vocab_size = u32::try_from(description.vocab_size).unwrap_or(u32::MAX);
    let mut on_progress =
        |progress: LoadProgress| watcher.on_weights(&local.name, progress.done_bytes, progress.total_bytes);
    let options = load_options(engine, &sizes, kv_dtype, &mut on_progress);
    let executor = kvasir_model::load(backend, &checkpoint, description, options)?;
    Ok(LoadedExecutor {
        executor: Box::new(executor),
        limits: scheduler(engine, &sizes),
        vocab_size,
        threads: sizes.threads,
    })
}
