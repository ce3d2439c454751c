//! From start to end: lease, watches, rounds, and an orderly stop.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::Api;
use kube::client::ClientBuilder;
use kube::runtime::WatchStreamExt;
use kube::runtime::controller::{self, ReconcileRequest};
use kube::runtime::reflector::store::Writer;
use kube::runtime::reflector::{self, Store};
use kube::runtime::watcher::{self, watcher};
use kube::{Client, Config};
use kvasir_operator_api::InferenceService;
use kvasir_operator_core::Settings;
use kvasir_operator_core::child::Kind;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::backoff::{self, Backoff};
use crate::cache::Cache;
use crate::cluster::{self, ClusterError};
use crate::enforcement;
use crate::engines;
use crate::events::Events;
use crate::fence::{Fence, FenceLayer};
use crate::http::{self, Health, Phase};
use crate::learning::{Kinds, spawn};
use crate::lease::{Keeper, LeaseError, Times};
use crate::metrics::Metrics;
use crate::neighbours::Neighbours;
use crate::options::{Options, Scope};
use crate::reconcile::{self, Context};
use crate::reviewers;
use crate::watch::{self, Trigger, Watcher, chain};

/// News about one service within this time is one round.
const DEBOUNCE: Duration = Duration::from_millis(100);

/// The operator can't run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// No cluster is known.
    #[error("no cluster is known: set KUBECONFIG or run in a pod: {0}")]
    Config(#[source] kube::config::InferConfigError),
    /// The client can't be made.
    #[error("can't make a client for the cluster: {}", chain(.0))]
    Client(#[source] kube::Error),
    /// Nothing can be served.
    #[error("can't listen for health and metrics: {0}")]
    Listen(#[source] std::io::Error),
    /// The cluster isn't as needed.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// The lease was lost.
    #[error(transparent)]
    Lease(#[from] LeaseError),
}

/// Runs until `stop` is cancelled, or until the lease is lost. Waits for the lease first.
///
/// # Errors
/// The operator can't start, or lost its lease; then the process must end.
pub async fn run(options: Options, stop: CancellationToken) -> Result<(), RunError> {
    let config = Config::infer().await.map_err(RunError::Config)?;
    let fence = Arc::new(Fence::default());
    let reader = client(config.clone(), None)?;
    let metrics = Arc::new(Metrics::new(&options.settings.version));
    let health = Arc::new(Health::default());
    health.tick();
    http::serve(
        options.listen,
        Arc::clone(&health),
        Arc::clone(&metrics),
        // Twice the longest pause that a service is left alone for, whether its round came to its end or failed.
        2 * options.settings.resync.unsigned_abs().max(backoff::LONGEST),
        stop.clone(),
    )
    .await
    .map_err(RunError::Listen)?;
    cluster::check(&reader).await?;
    let mut keeper = Keeper::new(
        Api::<Lease>::namespaced(reader.clone(), &options.settings.operator_namespace),
        options.lease_name.clone(),
        options.identity.clone(),
        Times {
            duration: options.lease_duration,
            deadline: options.lease_deadline,
            retry: options.lease_retry,
        },
        Arc::clone(&fence),
    );
    health.enter(Phase::Waiting);
    tokio::select! {
        () = stop.cancelled() => return Ok(()),
        () = keeper.acquire(|| health.tick()) => {}
    }
    tracing::info!(identity = %options.identity, "the lease is ours");
    metrics.lead(true);
    health.enter(Phase::Filling);
    // Cancelled when the work has come to its end, so that the lease is held until then.
    let finished = CancellationToken::new();
    let operator = Operator {
        writer: client(config, Some(fence))?,
        reader,
        options,
        metrics: Arc::clone(&metrics),
        health: Arc::clone(&health),
    };
    let work = operator.work(stop, finished.clone());
    let kept = {
        let keep = keeper.keep(&finished, || health.tick());
        tokio::select! {
            kept = keep => kept.map_err(RunError::from),
            worked = work => worked,
        }
    };
    metrics.lead(false);
    health.enter(Phase::Stopping);
    if kept.is_ok() {
        keeper.release().await;
    }
    kept
}

fn client(mut config: Config, fence: Option<Arc<Fence>>) -> Result<Client, RunError> {
    // What fails is tried again by the next round, which sees what has changed since.
    config.default_retry = fence.is_none();
    config.connect_timeout = Some(Duration::from_secs(10));
    let builder = ClientBuilder::try_from(config).map_err(RunError::Client)?;
    Ok(builder.with_layer(&FenceLayer(fence)).build())
}

struct Operator {
    writer: Client,
    reader: Client,
    options: Options,
    metrics: Arc<Metrics>,
    health: Arc<Health>,
}

impl Operator {
    /// Fills the caches and works until `stop`; then lets rounds in progress end.
    async fn work(self, stop: CancellationToken, finished: CancellationToken) -> Result<(), RunError> {
        let mut settings = self.options.settings.clone();
        settings.known_kinds = cluster::known_kinds(&self.reader).await?;
        let (settings_sender, settings) = tokio::sync::watch::channel(settings);
        let cache = Arc::new(Cache::default());
        let (trigger, news) = mpsc::unbounded_channel();
        let watches = trigger.clone();
        let watcher = Watcher {
            client: self.reader.clone(),
            scope: self.options.scope.clone(),
            cache: Arc::clone(&cache),
            trigger: watches,
            metrics: Arc::clone(&self.metrics),
        };
        // Aborted when this future ends.
        let mut tasks = JoinSet::new();
        let known = settings.borrow().known_kinds.clone();
        let mut synced = Vec::new();
        let mut watches = BTreeMap::new();
        for kind in Kind::ALL {
            // Secrets are read by name, see `unwatched`: nobody who can list them should run in a cluster without need.
            if kind != Kind::Secret && (kind.is_native() || known.contains(&kind)) {
                let (watch, ready) = spawn(&mut tasks, |ready| watcher.clone().children(kind, ready));
                watches.insert(kind, watch);
                synced.push(ready);
            }
        }
        synced.push(spawn(&mut tasks, |ready| watcher.clone().pods(ready)).1);
        if self.options.scope == Scope::Cluster {
            synced.push(spawn(&mut tasks, |ready| watcher.clone().nodes(ready)).1);
        }
        tasks.spawn(watcher.clone().unwatched());
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            _ = futures::future::join_all(synced) => {}
        }
        let (children, pods, nodes) = cache.size();
        tracing::info!(children, pods, nodes, "the caches are full");
        let kinds = Kinds {
            client: self.reader.clone(),
            watcher,
            settings: settings_sender,
            watches,
            pause: self.options.settings.resync.unsigned_abs(),
        };
        tasks.spawn(kinds.follow());
        self.health.enter(Phase::Working);
        self.rounds(cache, settings, (trigger, news), stop.clone()).await;
        finished.cancel();
        Ok(())
    }

    /// Works until `stop`, and at most the shutdown timeout longer.
    async fn rounds(
        &self,
        cache: Arc<Cache>,
        settings: tokio::sync::watch::Receiver<Settings>,
        (trigger, news): (
            Trigger,
            mpsc::UnboundedReceiver<reflector::ObjectRef<InferenceService>>,
        ),
        stop: CancellationToken,
    ) {
        let events = Events::new(
            self.writer.clone(),
            self.options.identity.clone(),
            Arc::clone(&self.metrics),
        );
        let (services, writer) = reflector::store();
        let context = Arc::new(Context {
            client: self.writer.clone(),
            cache: Arc::clone(&cache),
            settings,
            backoff: Backoff::default(),
            metrics: Arc::clone(&self.metrics),
            events,
            neighbours: Arc::new(Neighbours::default()),
            trigger: trigger.clone(),
            services: services.clone(),
        });
        // The store itself wakes only the last of those that wait for it, and the controller does.
        let listed = CancellationToken::new();
        let stream = self.services(writer, Arc::clone(&context), trigger.clone(), listed.clone());
        self.metrics.observe(services.clone(), Arc::clone(&cache));
        // Aborted when this future ends.
        let _tasks = self.visits(&services, &cache, &context.settings, trigger, listed);
        let config = controller::Config::default()
            .concurrency(self.options.concurrency)
            .debounce(DEBOUNCE);
        let changed = stream.map(|service| ReconcileRequest::from(reflector::ObjectRef::from_obj(&service)));
        let news = tokio_stream(news).map(ReconcileRequest::from);
        let metrics = Arc::clone(&self.metrics);
        let queue = futures::stream::select(changed, news)
            .inspect(move |request| metrics.due(&request.obj_ref))
            .take_until(stop.clone().cancelled_owned())
            .map(Ok::<_, Infallible>);
        let work = controller::applier(
            |service, context| Box::pin(reconcile::reconcile(service, context)),
            reconcile::failed,
            context,
            services,
            queue,
            config,
        )
        .for_each(|ended| {
            if let Err(controller::Error::ObjectNotFound(service)) = &ended {
                self.metrics
                    .gone(&reflector::ObjectRef::clone(service).into_kind_unchecked(()));
            }
            async {}
        });
        let mut work = std::pin::pin!(work);
        tokio::select! {
            () = &mut work => return,
            () = stop.cancelled() => {}
        }
        self.health.enter(Phase::Stopping);
        if tokio::time::timeout(self.options.shutdown_timeout, work)
            .await
            .is_err()
        {
            tracing::warn!("rounds in progress were cut off");
        }
    }

    /// What asks pods themselves and keeps rights, beside the rounds. `listed` is cancelled when all services are known.
    fn visits(
        &self,
        services: &Store<InferenceService>,
        cache: &Arc<Cache>,
        settings: &tokio::sync::watch::Receiver<Settings>,
        trigger: Trigger,
        listed: CancellationToken,
    ) -> JoinSet<()> {
        let mut tasks = JoinSet::new();
        if self.options.is_pod {
            tasks.spawn(enforcement::poll(
                services.clone(),
                Arc::clone(cache),
                settings.clone(),
                trigger.clone(),
            ));
        }
        tasks.spawn(engines::poll(services.clone(), Arc::clone(cache), trigger));
        if let Some(name) = self.options.settings.token_reviewers.clone() {
            let (services, client) = (services.clone(), self.writer.clone());
            tasks.spawn(async move {
                // An empty store would take the right from everybody.
                listed.cancelled().await;
                reviewers::keep(services, client, name).await;
            });
        }
        tasks
    }

    /// Changes of the watched services, which go to the store by `writer` before their neighbours hear of them. `listed` is cancelled when
    /// all of them are known.
    fn services(
        &self,
        writer: Writer<InferenceService>,
        context: Arc<Context>,
        trigger: Trigger,
        listed: CancellationToken,
    ) -> impl futures::Stream<Item = InferenceService> + Send + 'static {
        let api: Api<InferenceService> = match &self.options.scope {
            Scope::Cluster => Api::all(self.reader.clone()),
            Scope::Namespace(namespace) => Api::namespaced(self.reader.clone(), namespace),
        };
        let metrics = Arc::clone(&self.metrics);
        let neighbours = Arc::clone(&context.neighbours);
        watcher(api, watch::limits())
            .default_backoff()
            .modify(|service| service.metadata.managed_fields = None)
            .inspect(move |event| match event {
                Ok(watcher::Event::Delete(service)) => {
                    context.cache.forget(&reconcile::key(service));
                    let uid = service.metadata.uid.clone();
                    context.backoff.forget(&uid.unwrap_or_default());
                }
                Ok(_) => {}
                Err(error) => {
                    metrics.watch_failed("InferenceService");
                    tracing::warn!(error = %chain(error), "the watch of services ended and is started again");
                }
            })
            .reflect(writer)
            .inspect(move |event| {
                for neighbour in event.iter().flat_map(|event| neighbours.note(event)) {
                    // Nobody listens while the operator is stopping.
                    trigger.send(neighbour).ok();
                }
                if matches!(event, Ok(watcher::Event::InitDone)) {
                    listed.cancel();
                }
            })
            .applied_objects()
            // Said above.
            .filter_map(|service| std::future::ready(service.ok()))
    }
}

fn tokio_stream<T: Send + 'static>(
    receiver: mpsc::UnboundedReceiver<T>,
) -> impl futures::Stream<Item = T> + Send {
    futures::stream::unfold(receiver, |mut receiver| async move {
        receiver.recv().await.map(|item| (item, receiver))
    })
}
