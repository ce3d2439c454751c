//! Why a model can't be served.

use kvasir_backend_cpu::CpuBackendError;
use kvasir_config::{ConfigError, StartFault};
use kvasir_edge::EdgeError;
use kvasir_files::FileError;
use kvasir_model::ModelError;
use kvasir_service::ServiceError;
use kvasir_text::TextError;
use kvasir_weights::WeightsError;

use super::expect::ExpectationError;
use crate::exit::{Failure, chain};
use crate::fetch::FetchError;

/// A model that can't be served.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// An option can't be used, or doesn't fit the model.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The model isn't there.
    #[error(transparent)]
    Fetch(Box<FetchError>),
    /// The model isn't what it was said to be.
    #[error(transparent)]
    Expectation(Box<ExpectationError>),
    /// The model's files can't be used.
    #[error(transparent)]
    Weights(Box<WeightsError>),
    /// The model can't be run.
    #[error(transparent)]
    Model(Box<ModelError>),
    /// The tokenizer or its surroundings can't be used.
    #[error(transparent)]
    Text(Box<TextError>),
    /// A file of the model or its configuration can't be read.
    #[error(transparent)]
    File(FileError),
    /// The device can't be used.
    #[error("the CPU backend can't start")]
    Backend(#[source] CpuBackendError),
    /// The engine can't start.
    #[error(transparent)]
    Service(Box<ServiceError>),
    /// The text side of the engine can't start.
    #[error(transparent)]
    Edge(Box<EdgeError>),
    /// The thread that loaded the model ended early.
    #[error("loading the model was interrupted")]
    Interrupted(#[source] tokio::task::JoinError),
}

/// Errors of other crates are boxed: some are large, and every step of loading returns this type.
macro_rules! from_boxed {
    ($($variant:ident($error:ty)),+ $(,)?) => {$(
        impl From<$error> for LoadError {
            fn from(error: $error) -> Self {
                Self::$variant(Box::new(error))
            }
        }
    )+};
}

from_boxed!(
    Fetch(FetchError),
    Weights(WeightsError),
    Model(ModelError),
    Text(TextError),
    Service(ServiceError),
    Edge(EdgeError),
);

impl LoadError {
    /// As the failure of an engine process, whose exit code says what it is about.
    pub(crate) fn of_engine(self) -> Failure {
        let fault = match &self {
            Self::Fetch(error) => error.fault(),
            Self::Expectation(error) if error.is_digest() => Some(StartFault::Digest),
            Self::Expectation(_) | Self::Weights(_) | Self::Model(_) | Self::Text(_) => {
                Some(StartFault::BadFiles)
            }
            Self::Service(error)
                if matches!(**error, ServiceError::Warmup(_) | ServiceError::StartPanicked) =>
            {
                Some(StartFault::SelfTest)
            }
            _ => None,
        };
        match (fault, &self) {
            (Some(fault), error) => Failure::Model {
                fault,
                text: chain(error),
            },
            (None, Self::Fetch(error)) if matches!(**error, FetchError::InvalidName { .. }) => {
                Failure::Usage(chain(&self))
            }
            (None, _) => self.into(),
        }
    }
}

impl From<LoadError> for Failure {
    fn from(error: LoadError) -> Self {
        match error {
            LoadError::Config(error) => Self::Configuration(error),
            // The scheduler checks only what options set.
            LoadError::Service(error) if matches!(*error, ServiceError::Config(_)) => {
                Self::Usage(error.to_string())
            }
            other => Self::failed(&other),
        }
    }
}
