//! What keeps the engines of all models followed: starts models, replaces those that change, and lets those go that aren't served any more.

use std::sync::Arc;
use std::time::{Duration, Instant};

use kvasir_config::gateway::{CertificateName, EngineTlsConfig, GatewayConfig, ModelConfig};
use kvasir_edge::{EdgeConfig, Figures};
use kvasir_tls::{ClientFiles, ClientTls, Name, NameRule, TlsError};
use tokio_util::task::AbortOnDropHandle;

use crate::clock::Clock;
use crate::discovery::Discovery;
use crate::gateway::StartError;
use crate::model_settings::ModelSettings;
use crate::outside::{Outside, OutsideError};
use crate::pool::{Patience, Pool};
use crate::pools::{Model, Pools};

/// The largest bucket of token counts; requests of longer contexts count above it.
const MAX_BUCKET_TOKENS: u32 = 1 << 20;

/// How long a model is served as before while no engine can be reached as it's configured now.
const CHANGE_PATIENCE: Duration = Duration::from_secs(10);

/// Which certificates the first model's engines are shown, in logs.
const ENGINES: &str = "engines";

/// All models with what keeps their engines followed.
pub(crate) struct Fleet {
    /// How text is made, the same for all models.
    text: EdgeConfig,
    /// Of all pools: a request that waits in one after the other has one time.
    clock: Clock,
    first: Kept,
    /// In the order of the configuration in effect.
    others: Vec<Place>,
    /// No longer served here, and kept until what runs there has ended.
    retired: Vec<Kept>,
}

/// Where a model is served that isn't the first one.
struct Place {
    now: Kept,
    /// As it's configured, where that needs another pool. It takes over once it has engines, so that nobody is refused meanwhile.
    next: Option<Kept>,
}

/// A model whose engines are followed, or will be as soon as they can.
struct Kept {
    /// What it was started with.
    config: ModelConfig,
    made: Instant,
    pool: Arc<Pool>,
    following: Option<Following>,
}

struct Following {
    tls: Option<Arc<ClientTls>>,
    _discovery: Discovery,
    _task: AbortOnDropHandle<()>,
}

impl Fleet {
    /// Makes a place for each model and follows the engines of the first one. Call it within a runtime.
    ///
    /// # Errors
    /// The first model's engines can't be followed as configured. What is wrong with those of another one keeps no model from being served;
    /// [`start_missing`](Self::start_missing) tells.
    pub(crate) fn start(
        config: &GatewayConfig,
        text: EdgeConfig,
        outside: &mut Outside,
    ) -> Result<Self, StartError> {
        let mut models = config.all_models().into_iter();
        let clock = Clock::start();
        let first = models.next().expect("the file's own fields are the first model");
        let tls = first.engines.tls.as_ref().map(client_tls).transpose();
        let tls = tls.map_err(StartError::Tls)?;
        let mut first = Kept::new(first, &text, IsFirst(true), clock);
        first.follow(tls, outside).map_err(StartError::Outside)?;
        let others = models.map(|model| Kept::new(model, &text, IsFirst(false), clock));
        Ok(Self {
            others: others.map(Place::of).collect(),
            text,
            clock,
            first,
            retired: Vec::new(),
        })
    }

    /// The figures of the first model's requests, which are also those of the whole gateway.
    pub(crate) fn figures(&self) -> Figures {
        self.first.pool.figures().clone()
    }

    /// Where requests are served by the configuration that was taken over last.
    pub(crate) fn pools(&self, config: &GatewayConfig) -> Pools {
        let others = self.others.iter().map(|place| &place.now);
        let kept = std::iter::once(&self.first).chain(others);
        let mut models = config.all_models().into_iter().zip(kept).map(|(config, kept)| {
            let settings = ModelSettings::of(&config);
            Model {
                names: config.served_model_names.into(),
                session_header: settings.session_header,
                retry_after: settings.door.retry_after,
                pool: Arc::clone(&kept.pool),
            }
        });
        let first = models.next().expect("there is a first model on both sides");
        Pools::new(first, models.collect())
    }

    /// Takes over what of a new configuration concerns engines and queues. Where requests are served then is known by
    /// [`pools`](Self::pools); once they are looked up there, [`dismiss`](Self::dismiss) the others.
    pub(crate) fn take_over(&mut self, config: &GatewayConfig) {
        let models = config.all_models();
        if let Some(first) = models.first() {
            self.first.pool.apply(&ModelSettings::of(first));
        }
        let mut old = std::mem::take(&mut self.others);
        for model in models.into_iter().skip(1) {
            let known = old
                .iter()
                .position(|place| name(&place.now.config) == name(&model));
            let place = if let Some(place) = known {
                let place = old.swap_remove(place);
                place.changed(model, &self.text, self.clock)
            } else {
                tracing::info!(model = name(&model), "a model is served from now on");
                Place::of(Kept::new(model, &self.text, IsFirst(false), self.clock))
            };
            self.others.push(place);
        }
        // What was to follow them hasn't been asked for anything.
        self.retired.extend(old.into_iter().map(|place| place.now));
        self.advance();
    }

    /// Lets models be served as they are configured, where that is possible now. Answers whether something has changed: then look
    /// [`pools`](Self::pools) up again and [`dismiss`](Self::dismiss) the others.
    pub(crate) fn advance(&mut self) -> bool {
        let before = self.retired.len();
        for place in &mut self.others {
            if let Some(next) = place.next.take_if(|next| next.is_due(&place.now)) {
                self.retired.push(std::mem::replace(&mut place.now, next));
            }
        }
        self.retired.len() > before
    }

    /// Calls those away who wait for models that aren't served any more or are served anew; what runs there goes on.
    pub(crate) fn dismiss(&mut self) {
        for kept in self.retired.iter().filter(|kept| !kept.pool.is_closed()) {
            kept.pool.close();
            tracing::info!(
                model = name(&kept.config),
                "engines are left: their model is served elsewhere, or no longer"
            );
        }
    }

    /// Follows the engines of models for which that wasn't possible so far, and forgets models that nothing runs at any more. Answers for each
    /// model that was tried what it's called in logs, and what is wrong with it.
    pub(crate) async fn start_missing(&mut self, outside: &mut Outside) -> Vec<(String, Result<(), String>)> {
        self.retired.retain(|kept| !kept.pool.is_idle());
        let mut tried = Vec::new();
        let newest = self.others.iter_mut().map(Place::newest);
        for kept in newest.filter(|kept| kept.following.is_none()) {
            let followed = match load(kept.config.engines.tls.clone()).await {
                Ok(tls) => kept.follow(tls, outside).map_err(|error| error.to_string()),
                Err(reason) => Err(reason),
            };
            tried.push((kept.which(), followed));
        }
        tried
    }

    /// What is reported under these names belongs to models that are served.
    pub(crate) fn which(&self) -> Vec<String> {
        let others = self.others.iter().map(|place| place.now.which());
        others.chain([ENGINES.to_owned()]).collect()
    }

    /// The certificates by which the gateway is known to engines, what they are called in logs, and where their figures are.
    pub(crate) fn certificates(&self) -> Vec<(String, Arc<ClientTls>, Arc<Pool>)> {
        let of = |which: String, kept: &Kept| {
            let tls = kept.following.as_ref()?.tls.clone()?;
            Some((which, tls, Arc::clone(&kept.pool)))
        };
        let first = of(ENGINES.to_owned(), &self.first);
        let others = self.others.iter().map(|place| &place.now);
        let others = others.filter_map(|kept| of(kept.which(), kept));
        first.into_iter().chain(others).collect()
    }
}

/// Whether a model is the file's first one, whose figures bear no name.
#[derive(Clone, Copy)]
struct IsFirst(bool);

impl Place {
    fn of(now: Kept) -> Self {
        Self { now, next: None }
    }

    /// The model as it's configured.
    fn newest(&mut self) -> &mut Kept {
        self.next.as_mut().unwrap_or(&mut self.now)
    }

    /// The same model by a new version of the configuration.
    fn changed(mut self, model: ModelConfig, text: &EdgeConfig, clock: Clock) -> Self {
        let settings = ModelSettings::of(&model);
        self.now.pool.apply(&settings);
        if self.now.goes_on_as(&model) {
            self.next = None;
        } else if let Some(next) = self.next.as_ref().filter(|next| next.goes_on_as(&model)) {
            next.pool.apply(&settings);
        } else {
            self.next = Some(Kept::new(model, text, IsFirst(false), clock));
        }
        self
    }
}

impl Kept {
    fn new(config: ModelConfig, text: &EdgeConfig, IsFirst(is_first): IsFirst, clock: Clock) -> Self {
        let figures = Figures::of_requests(MAX_BUCKET_TOKENS);
        if let Some(name) = config.served_model_names.first() {
            figures.name_model(name);
        }
        let routing = &config.routing;
        let patience = Patience {
            connection: Duration::from_millis(routing.connect_timeout_millis.into()),
            first_token: Duration::from_secs(routing.first_token_timeout_seconds.into()),
            next_token: Duration::from_secs(routing.inter_token_timeout_seconds.into()),
        };
        let pool = Pool::new(
            &ModelSettings::of(&config),
            patience,
            (text.clone(), figures),
            (!is_first).then(|| name(&config)),
            clock,
        );
        Self {
            config,
            made: Instant::now(),
            pool,
            following: None,
        }
    }

    fn follow(&mut self, tls: Option<Arc<ClientTls>>, outside: &mut Outside) -> Result<(), OutsideError> {
        let discovery = outside.discovery(&self.config.engines)?;
        let task = self.pool.follow(discovery.targets(), tls.clone());
        self.following = Some(Following {
            tls,
            _discovery: discovery,
            _task: task,
        });
        Ok(())
    }

    /// Whether it should be served here and no longer where it is `now`.
    fn is_due(&self, now: &Self) -> bool {
        let is_late = self.following.is_some() && self.made.elapsed() > CHANGE_PATIENCE;
        self.pool.has_engine() || !now.pool.has_engine() || is_late
    }

    /// Whether a new version of the model can be served by this pool. Engines, routing, the room and the name of the figures are those that it
    /// was made with.
    fn goes_on_as(&self, new: &ModelConfig) -> bool {
        let lasting = |of: &ModelConfig| {
            let capacity = of.waiting.capacity;
            (
                name(of).to_owned(),
                format!("{:?} {:?} {capacity}", of.engines, of.routing),
            )
        };
        lasting(&self.config) == lasting(new)
    }

    /// What it's called in logs.
    fn which(&self) -> String {
        format!("{ENGINES} of {}", name(&self.config))
    }
}

/// The name that answers show.
fn name(config: &ModelConfig) -> &str {
    config.served_model_names.first().map_or("", String::as_str)
}

async fn load(config: Option<EngineTlsConfig>) -> Result<Option<Arc<ClientTls>>, String> {
    let loading = tokio::task::spawn_blocking(move || config.as_ref().map(client_tls).transpose());
    match loading.await {
        Ok(loaded) => loaded.map_err(|error| error.to_string()),
        Err(error) => Err(error.to_string()),
    }
}

fn client_tls(config: &EngineTlsConfig) -> Result<Arc<ClientTls>, TlsError> {
    let name = |name: &CertificateName| match name {
        CertificateName::Dns(name) => Name::Dns(name.clone()),
        CertificateName::Uri(uri) => Name::Uri(uri.clone()),
    };
    ClientTls::load(ClientFiles {
        authorities: config.authorities.clone(),
        identity: Some((config.certificate.clone(), config.key.clone())),
        names: NameRule::any_of(config.names.iter().map(name))?,
    })
    .map(Arc::new)
}
