//! The engines of one model, and the requests that run there or wait for them.
//!
//! One lock holds all state of the decisions ([`core`]); whatever happens is told to it and answered by it. A task for each engine
//! ([`link`]) connects, reads its load and cache news and tells of its end. [`dispatch`] sends one request, elsewhere again if that makes
//! sense, and [`metered`] counts what comes back.

mod core;
mod dial;
pub(crate) mod dispatch;
pub(crate) mod failed;
mod feed;
mod gap;
mod link;
mod metered;
mod model;
mod outages;
mod turn;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use kvasir_edge::{EdgeConfig, Figures};
use kvasir_gateway_core::routing::{EngineFailure, EngineView, Revision};
use kvasir_gateway_core::waiting::{Refusal, Signal, Waiter};
use kvasir_tls::ClientTls;
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

pub(crate) use self::metered::{Metered, Tally};
pub(crate) use self::model::RevisionModel;
pub(crate) use self::turn::Turn;

use self::core::Core;
pub(crate) use self::core::Served;
use self::outages::{News, Outages, Troubles};
use crate::clock::Clock;
use crate::discovery::{Target, Targets};
use crate::model_settings::ModelSettings;
use crate::pool_metrics::PoolMetrics;

/// How often queues and engines are looked at without a reason.
const TICK: Duration = Duration::from_millis(100);

/// How long engines are waited for.
#[derive(Clone, Copy)]
pub(crate) struct Patience {
    /// Longest wait for a connection.
    pub(crate) connection: Duration,
    /// Longest wait for a request's first token.
    pub(crate) first_token: Duration,
    /// Longest wait for each output after it.
    pub(crate) next_token: Duration,
}

/// The engines of a model.
pub(crate) struct Pool {
    pub(crate) clock: Clock,
    pub(crate) metrics: PoolMetrics,
    /// Characters at a prompt's beginning that count for the choice of an engine; all if there is none.
    pub(crate) prefix_chars: Option<NonZeroU32>,
    state: Mutex<Core>,
    /// What the log knows of requests that failed after their first token.
    troubles: Mutex<Troubles>,
    patience: Patience,
    /// How text is made, the same for all revisions.
    edge: EdgeConfig,
    figures: Figures,
    /// Held while text assets are loaded, so that engines that come at once load them once.
    loading: tokio::sync::Mutex<()>,
}

impl Pool {
    /// `model_name` tells the figures of a model that isn't the first one.
    pub(crate) fn new(
        settings: &ModelSettings,
        patience: Patience,
        (edge, figures): (EdgeConfig, Figures),
        model_name: Option<&str>,
        clock: Clock,
    ) -> Arc<Self> {
        Arc::new(Self {
            clock,
            metrics: PoolMetrics::new(model_name),
            prefix_chars: settings.prefix_chars,
            state: Mutex::new(Core::new(settings)),
            troubles: Mutex::default(),
            patience,
            edge,
            figures,
            loading: tokio::sync::Mutex::new(()),
        })
    }

    /// Follows targets until it's dropped, by mutual TLS unless engines are on loopback.
    pub(crate) fn follow(
        self: &Arc<Self>,
        targets: watch::Receiver<Targets>,
        tls: Option<Arc<ClientTls>>,
    ) -> AbortOnDropHandle<()> {
        let pool = Arc::clone(self);
        AbortOnDropHandle::new(tokio::spawn(async move { pool.run(targets, tls).await }))
    }

    /// Lets nobody in any more: what waits is read again, for the pool that has its model then; what runs goes on.
    pub(crate) fn close(&self) {
        self.lock().close();
    }

    /// Whether it's been closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.lock().is_closed()
    }

    /// Whether nothing runs or waits here.
    pub(crate) fn is_idle(&self) -> bool {
        let now = self.clock.now();
        self.lock().is_idle(now)
    }

    /// The figures of its model's requests.
    pub(crate) fn figures(&self) -> &Figures {
        &self.figures
    }

    /// Takes over what of new settings concerns engines and queues.
    pub(crate) fn apply(&self, settings: &ModelSettings) {
        let now = self.clock.now();
        let mut core = self.lock();
        core.apply(settings);
        core.usher(now);
    }

    /// Text and hashes for a request: those of a revision whose turn it is, of the usable ones, or of any known one while none is usable.
    pub(crate) fn pick(&self, session: Option<u64>) -> Option<Arc<RevisionModel>> {
        let now = self.clock.now();
        self.lock().pick(session, now)
    }

    /// What the engines serve, as clients know it.
    pub(crate) fn served(&self) -> Served {
        self.lock().served().clone()
    }

    /// Whether requests may be sent here: an engine is usable, or they may be parked.
    pub(crate) fn is_ready(&self) -> bool {
        let now = self.clock.now();
        self.lock().is_ready(now)
    }

    /// Whether an engine can be used.
    pub(crate) fn has_engine(&self) -> bool {
        let now = self.clock.now();
        self.lock().has_engine(now)
    }

    /// All engines, for figures.
    pub(crate) fn engines(&self) -> Vec<EngineView> {
        let now = self.clock.now();
        self.lock().views(now)
    }

    /// What waits.
    pub(crate) fn waiting(&self) -> Signal {
        let now = self.clock.now();
        self.lock().signal(now)
    }

    /// Waits until the request may go on. A request that comes again with the same `waiter` has what is left of its time.
    ///
    /// # Errors
    /// It's sent away.
    pub(crate) async fn turn(
        self: &Arc<Self>,
        waiter: &mut Waiter,
        revision: Option<&Revision>,
    ) -> Result<Turn, Refusal> {
        turn::wait(self, waiter, revision).await
    }

    /// An engine has failed a request after its first token. All requests of an engine may fail at one time, so not each of them makes a line.
    fn failed_begun(&self, engine: &str, failure: EngineFailure, reason: &str) {
        let mut troubles = self.troubles.lock().unwrap_or_else(PoisonError::into_inner);
        if troubles.is_news(engine, failure, Instant::now()) {
            let code = failure.code();
            tracing::warn!(
                engine,
                code,
                reason,
                "an engine failed a request after its first token"
            );
        }
    }

    fn lock(&self) -> MutexGuard<'_, Core> {
        // Every change under the lock is complete before anything that could panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn run(self: Arc<Self>, mut targets: watch::Receiver<Targets>, tls: Option<Arc<ClientTls>>) {
        let mut links: BTreeMap<SocketAddr, Link> = BTreeMap::new();
        let mut outages = Outages::default();
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        self.update(&mut links, &targets.borrow_and_update().clone(), tls.as_ref());
        loop {
            tokio::select! {
                changed = targets.changed() => {
                    if changed.is_err() {
                        // Whoever followed the source is gone; what is known stays.
                        std::future::pending::<()>().await;
                    }
                    let known = targets.borrow_and_update().clone();
                    self.update(&mut links, &known, tls.as_ref());
                }
                _ = tick.tick() => {
                    for news in self.tick(&mut outages) {
                        news.log();
                    }
                }
            }
        }
    }

    /// Looks at queues and engines, and says what has changed about the latter.
    fn tick(&self, outages: &mut Outages) -> Vec<News> {
        let now = self.clock.now();
        let mut core = self.lock();
        core.tick(now);
        outages.look(core.router.engines(now), now)
    }

    /// Opens and closes links so that there is one for each target.
    fn update(
        self: &Arc<Self>,
        links: &mut BTreeMap<SocketAddr, Link>,
        targets: &Targets,
        tls: Option<&Arc<ClientTls>>,
    ) {
        links.retain(|address, _| targets.all.iter().any(|target| target.address == *address));
        for target in targets.all.iter() {
            if let Some(link) = links.get(&target.address)
                && link.is_same_engine(target)
            {
                link.target.send_if_modified(|known| {
                    let is_new = known != target;
                    known.clone_from(target);
                    is_new
                });
                continue;
            }
            let (sender, receiver) = watch::channel(target.clone());
            let running = tokio::spawn(link::run(Arc::clone(self), receiver, tls.cloned()));
            links.insert(
                target.address,
                Link {
                    target: sender,
                    _task: AbortOnDropHandle::new(running),
                },
            );
        }
    }
}

/// The task of one engine.
struct Link {
    target: watch::Sender<Target>,
    _task: AbortOnDropHandle<()>,
}

impl Link {
    /// Whether the address still leads to the same pod.
    fn is_same_engine(&self, target: &Target) -> bool {
        self.target.borrow().pod_uid == target.pod_uid
    }
}
