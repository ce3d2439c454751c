//! The served models by their names: where a request's engines are looked up.

use std::sync::Arc;
use std::time::Duration;

use http::HeaderName;
use kvasir_client::types::ModelInfo;
use kvasir_edge::host::ModelNames;

use crate::pool::Pool;

/// How long a gateway that has just started isn't ready before all of its models are.
const START_PATIENCE: Duration = Duration::from_secs(3);

/// One model. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Model {
    /// Names that clients may call it by; empty for those that its engines give it.
    pub(crate) names: ModelNames,
    /// The header that names a session.
    pub(crate) session_header: HeaderName,
    /// What `Retry-After` says to those who are sent away.
    pub(crate) retry_after: Duration,
    pub(crate) pool: Arc<Pool>,
}

/// All models. Only one that is alone may have no configured names.
#[derive(Clone)]
pub(crate) struct Pools {
    pub(crate) first: Model,
    pub(crate) others: Vec<Model>,
    /// The configured names of all.
    names: Arc<[ModelNames]>,
}

impl Pools {
    pub(crate) fn new(first: Model, others: Vec<Model>) -> Self {
        let all = std::iter::once(&first).chain(&others);
        Self {
            names: all.map(|model| Arc::clone(&model.names)).collect(),
            first,
            others,
        }
    }

    /// All models, the first one first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Model> {
        std::iter::once(&self.first).chain(&self.others)
    }

    /// The model that has this name. A model without configured names is alone, and whatever its engines call it now, it's the one.
    pub(crate) fn by_name(&self, name: &str) -> Option<&Model> {
        if self.first.names.is_empty() {
            return Some(&self.first);
        }
        self.iter()
            .find(|model| model.names.iter().any(|other| other == name))
    }

    /// What clients may call the models.
    pub(crate) fn names(&self) -> Arc<[ModelNames]> {
        if self.first.names.is_empty() {
            return Arc::new([self.first.pool.served().names]);
        }
        Arc::clone(&self.names)
    }

    /// What the engines of a model serve.
    pub(crate) fn info(&self, name: &str) -> Option<Arc<ModelInfo>> {
        self.by_name(name)?.pool.served().info
    }

    /// Whether requests may be sent here, `since` the process started.
    ///
    /// One model that can be served, or parked for, is enough: whoever took the gateway out of its Service because of another one, which may be
    /// scaled to zero or broken, would take the working models away with it. Requests of the other one are answered with 503 here. Only at
    /// its start a gateway waits a moment for all: those it takes over from serve them all, and it meets the engines of one a little before
    /// those of another.
    pub(crate) fn is_ready(&self, since: Duration) -> bool {
        let mut all = self.iter().map(|model| model.pool.is_ready());
        if since < START_PATIENCE {
            all.all(|is_ready| is_ready)
        } else {
            all.any(|is_ready| is_ready)
        }
    }
}
