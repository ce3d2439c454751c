//! Why a model can't be served.

use std::path::PathBuf;

use kvasir_backend_cpu::CpuBackendError;
use kvasir_config::ConfigError;
use kvasir_model::ModelError;
use kvasir_service::ServiceError;
use kvasir_text::TextError;
use kvasir_weights::WeightsError;

use crate::exit::Failure;
use crate::fetch::FetchError;

/// A model that can't be served.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// An option can't be used, or doesn't fit the model.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The model isn't there.
    #[error(transparent)]
    Fetch(FetchError),
    /// The model's files can't be used.
    #[error(transparent)]
    Weights(WeightsError),
    /// The model can't be run.
    #[error(transparent)]
    Model(ModelError),
    /// The tokenizer or its surroundings can't be used.
    #[error(transparent)]
    Text(TextError),
    /// A file can't be read.
    #[error("can't read {path}", path = .path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// The device can't be used.
    #[error("the CPU backend can't start")]
    Backend(#[source] CpuBackendError),
    /// The engine can't start.
    #[error(transparent)]
    Service(ServiceError),
    /// The text side of the engine can't start.
    #[error(transparent)]
    Edge(kvasir_edge::EdgeError),
    /// The thread that loaded the model ended early.
    #[error("loading the model was interrupted")]
    Interrupted(#[source] tokio::task::JoinError),
}

impl From<LoadError> for Failure {
    fn from(error: LoadError) -> Self {
        match error {
            LoadError::Config(error) => Self::Configuration(error),
            other => Self::failed(&other),
        }
    }
}
