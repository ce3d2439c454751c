//! One round for one service: gather, ask the core, write the status, carry out the plan.
//!
//! The status goes first, over the version that was read. If somebody wrote meanwhile that fails, and nothing of the plan is
//! done: it was made from an old read. So two rounds never give out one group's id, even when two replicas believe that they
//! work.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kube::api::{Api, Patch, PatchParams};
use kube::runtime::controller::Action;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::{Client, ResourceExt};
use kvasir_operator_api::names::Names;
use kvasir_operator_api::{InferenceService, InferenceServiceStatus};
use kvasir_operator_core::accepted::{self, Judgement, Last};
use kvasir_operator_core::build::certificate;
use kvasir_operator_core::child::{Kind, Live};
use kvasir_operator_core::observed::Observed;
use kvasir_operator_core::{FieldError, Plan, Settings, Validated, groups, plan, sharing, status};
use serde_json::json;
use tokio::sync::watch;

use crate::apply::{Applier, ApplyError};
use crate::backoff::Backoff;
use crate::cache::{Cache, ServiceKey, version};
use crate::certificates::{self, CertificateError, Secrets};
use crate::engines;
use crate::events::Events;
use crate::fence::is_fenced;
use crate::gather;
use crate::metrics::{Metrics, Outcome};
use crate::neighbours::Neighbours;
use crate::watch::{Trigger, chain};

/// Field manager of the status.
const STATUS_MANAGER: &str = "kvasir-operator-status";
/// Longest time for one round.
const ROUND: Duration = Duration::from_mins(2);
/// Shortest pause between two rounds that nothing but time is the reason for.
const SOON: Duration = Duration::from_millis(100);
/// When to look for what our own writes made, if no watch shows it.
const ECHO: Duration = Duration::from_secs(2);

/// A round didn't come to its end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RoundError {
    /// The status couldn't be written.
    #[error("can't write the status: {}", chain(source))]
    Status {
        /// What the API server said.
        source: kube::Error,
    },
    /// The service changed since it was read.
    #[error("the service changed meanwhile")]
    Stale,
    /// The plan couldn't be carried out.
    #[error(transparent)]
    Apply(#[from] ApplyError),
    /// Certificates couldn't be made or kept.
    #[error(transparent)]
    Certificates(#[from] CertificateError),
    /// It took too long.
    #[error("the round took longer than {} s", ROUND.as_secs())]
    TooLong,
}

impl RoundError {
    fn apply_error(&self) -> Option<&ApplyError> {
        match self {
            Self::Apply(error) | Self::Certificates(CertificateError::Write(error)) => Some(error),
            _ => None,
        }
    }

    /// What couldn't be done, in one word for figures.
    fn what(&self) -> &'static str {
        match self {
            Self::Status { .. } => "status",
            Self::Stale => "stale",
            Self::Apply(error) | Self::Certificates(CertificateError::Write(error)) => error.what(),
            Self::Certificates(CertificateError::Make(_) | CertificateError::Random) => "certificate",
            Self::TooLong => "time",
        }
    }

    /// Somebody else wrote at the same time.
    pub(crate) fn is_conflict(&self) -> bool {
        matches!(self, Self::Stale) || matches!(self.apply_error(), Some(ApplyError::Changed(_)))
    }

    /// Nothing more of the round should be done: it read what is old, or the lease is lost.
    fn ends_all(&self) -> bool {
        self.is_conflict() || self.is_fenced()
    }

    /// This replica may not write any more.
    pub(crate) fn is_fenced(&self) -> bool {
        let source = match self {
            Self::Status { source } => Some(source),
            _ => self.apply_error().and_then(ApplyError::source_error),
        };
        source.is_some_and(is_fenced)
    }
}

/// What rounds share.
pub(crate) struct Context {
    pub(crate) client: Client,
    pub(crate) cache: Arc<Cache>,
    pub(crate) settings: watch::Receiver<Settings>,
    pub(crate) backoff: Backoff,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) events: Events,
    pub(crate) neighbours: Arc<Neighbours>,
    pub(crate) trigger: Trigger,
    /// All services. Filled before the first round.
    pub(crate) services: Store<InferenceService>,
}

/// The key of a service.
pub(crate) fn key(service: &InferenceService) -> ServiceKey {
    ServiceKey {
        namespace: service.namespace().unwrap_or_default(),
        base: Names::new(&service.name_any()).service().to_owned(),
    }
}

/// One round, with its time and outcome counted.
pub(crate) async fn reconcile(
    service: Arc<InferenceService>,
    context: Arc<Context>,
) -> Result<Action, RoundError> {
    let round = context.metrics.round(&ObjectRef::from_obj(&*service));
    let result = match tokio::time::timeout(ROUND, work(&service, &context)).await {
        Ok(result) => result,
        Err(_) => Err(RoundError::TooLong),
    };
    if let Err(error) = &result {
        context.metrics.failed(error.what());
    }
    round.end(match &result {
        Ok(_) => Outcome::Done,
        Err(error) if error.is_conflict() => Outcome::Conflict,
        Err(error) if error.is_fenced() => Outcome::Fenced,
        Err(_) => Outcome::Failed,
    });
    result
}

/// What happens after a failed round: a pause that grows.
#[expect(clippy::needless_pass_by_value, reason = "the controller's signature")]
pub(crate) fn failed(service: Arc<InferenceService>, error: &RoundError, context: Arc<Context>) -> Action {
    let uid = service.uid().unwrap_or_default();
    let pause = context.backoff.failed(&uid, error.is_conflict());
    let (namespace, name) = (service.namespace().unwrap_or_default(), service.name_any());
    if error.is_conflict() || error.is_fenced() {
        tracing::debug!(%namespace, %name, %error, ?pause, "the round is repeated");
    } else {
        tracing::warn!(%namespace, %name, %error, ?pause, "the round failed and is repeated");
    }
    Action::requeue(pause)
}

async fn work(service: &InferenceService, context: &Context) -> Result<Action, RoundError> {
    let key = key(service);
    let uid = service.uid().unwrap_or_default();
    if service.metadata.deletion_timestamp.is_some() {
        // Its children go with it: the garbage collector follows their owner references.
        context.backoff.forget(&uid);
        context.cache.forget(&key);
        return Ok(Action::await_change());
    }
    if version(service.metadata.resource_version.as_deref()) < context.cache.status_version(&key) {
        return Ok(Action::requeue(ECHO));
    }
    context.cache.named(&key, &service.name_any());
    let settings = context.settings.borrow().clone();
    // Whole seconds, as the API server stores them.
    let now = Timestamp::from_second(Timestamp::now().as_second()).unwrap_or(Timestamp::UNIX_EPOCH);
    let (validated, refusal) = match judge(service, &settings, context) {
        Judgement::Accepted(validated) => (*validated, None),
        // It stops nothing: what runs goes on by the spec that was accepted last.
        Judgement::Refused {
            errors,
            last: Some(Last::Valid(validated)),
        } => (*validated, Some(errors)),
        Judgement::Refused { errors, last } => {
            let last = last.map(|(Last::Valid(running) | Last::Outdated(running))| *running);
            return Box::pin(refuse(service, &key, &errors, last, &settings, now, context)).await;
        }
    };
    let applier = Applier {
        client: &context.client,
        cache: &context.cache,
        metrics: &context.metrics,
        key: &key,
    };
    let (observed, secrets) = gather::gather(service, &validated, &settings, &applier, now).await?;
    let plan = plan(&validated, &observed, &settings, now);
    let new = status::of_running(&validated, refusal.as_deref(), &plan, &observed, &settings, now);
    let news = status::news(&observed.status, &new);
    write_status(service, &key, &observed.status, new, context).await?;
    tell(service, plan.decisions.events.iter().chain(&news), context).await;
    if !plan.is_empty() {
        log(service, &plan);
    }
    context.cache.begin_writing(&key);
    let applied = applier.carry_out(&plan).await.map_err(RoundError::from);
    if applied.as_ref().is_err_and(RoundError::ends_all) {
        return applied.map(|_| Action::await_change());
    }
    // Whatever else couldn't be written: certificates end, and with them everything.
    drain(service, &key, &plan, context);
    tell_guests(&validated, &key, context);
    let worked = Box::pin(certify(&validated, &applier, &settings, secrets, now)).await?;
    let refused = applied?;
    if refused.is_none() {
        context.backoff.forget(&uid);
    }
    // Our own writes are no news, and the status says that all objects are as they should be once a round has nothing to do: an operator that
    // starts later writes everything once more where it doesn't.
    let echo = if plan.is_empty() { Duration::MAX } else { ECHO };
    let soon = refused.map_or(echo, |error| refused_again(service, &error, context));
    let wait = next_look(&worked, plan.look_again, now).min(soon);
    Ok(Action::requeue(wait.max(SOON)))
}

/// When time alone is a reason to look again, from now on.
fn next_look(worked: &certificates::Worked, planned: Timestamp, now: Timestamp) -> Duration {
    // No watch shows Secrets, and the status is about them too.
    if worked.wrote {
        return SOON;
    }
    let due = worked.look_again.into_iter().fold(planned, Timestamp::min);
    Duration::try_from(due.duration_since(now)).unwrap_or_default()
}

/// The service's spec, among those that it shares a gateway with.
fn judge(service: &InferenceService, settings: &Settings, context: &Context) -> Judgement {
    let others = context.neighbours.of(service, &context.services);
    accepted::judge(service, others.iter().map(|other| &**other), settings)
}

/// When what leads to a service or watches it is tried again.
fn refused_again(service: &InferenceService, error: &ApplyError, context: &Context) -> Duration {
    let pause = context.backoff.failed(&service.uid().unwrap_or_default(), false);
    let (namespace, name) = (service.namespace().unwrap_or_default(), service.name_any());
    tracing::warn!(%namespace, %name, %error, ?pause, "an entrance or a monitor is refused and tried again");
    pause
}

/// Brings the service's certificates to what is wanted.
async fn certify(
    service: &Validated,
    applier: &Applier<'_>,
    settings: &Settings,
    secrets: Secrets,
    now: Timestamp,
) -> Result<certificates::Worked, RoundError> {
    let children = applier.cache.snapshot(applier.key).children;
    let wanted = certificate::subjects(service, &children);
    let work = certificates::Work {
        applier,
        service,
        settings,
        wanted: &wanted,
        children: &children,
        own: applier.cache.own(applier.key),
        now,
    };
    let mut worked = work.carry_out(secrets).await?;
    applier.cache.keep_own(applier.key, worked.own.take());
    Ok(worked)
}

/// Guests wait until the gateway's pods were told of them, which their host's status doesn't say.
fn tell_guests(service: &Validated, key: &ServiceKey, context: &Context) {
    if service.sharing.guests.is_empty() {
        context.cache.put_told(key, Vec::new(), false);
        return;
    }
    let seen = context.cache.snapshot(key);
    let pods = seen.pods.into_iter().map(|pod| pod.view);
    let observed = Observed::around(service, seen.children, pods);
    let listed = observed.listed(service).map(str::to_owned).collect();
    if context.cache.put_told(key, listed, observed.is_told(service)) {
        for guest in &service.sharing.guests {
            let guest = ObjectRef::new(&guest.service.name).within(&key.namespace);
            // Nobody listens while the operator is stopping.
            context.trigger.send(guest).ok();
        }
    }
}

/// Tells the engines of draining groups to take nothing new, without waiting for them: the next poll shows what came of it.
fn drain(service: &InferenceService, key: &ServiceKey, plan: &Plan, context: &Context) {
    if plan.decisions.drain.is_empty() {
        return;
    }
    let Some(link) = engines::link_to(service, &context.cache) else {
        return;
    };
    for (group, address) in engines::leaders(service, &context.cache, key) {
        if plan.decisions.drain.contains(&group) {
            let (link, key) = (link.clone(), key.clone());
            tokio::spawn(async move {
                if let Err(error) = link.drain(address).await {
                    tracing::debug!(namespace = %key.namespace, service = %key.base, group, %error, "a group can't be told to drain");
                }
            });
        }
    }
}

/// A round for a service of which no spec can be built: neither its own nor one that was accepted before. `last` is the latter.
async fn refuse(
    service: &InferenceService,
    key: &ServiceKey,
    errors: &[FieldError],
    last: Option<Validated>,
    settings: &Settings,
    now: Timestamp,
    context: &Context,
) -> Result<Action, RoundError> {
    let before = service.status.clone().unwrap_or_default();
    let new = status::refused(service, errors, settings, now);
    let news = status::news(&before, &new);
    write_status(service, key, &before, new, context).await?;
    tell(service, &news, context).await;
    let applier = Applier {
        client: &context.client,
        cache: &context.cache,
        metrics: &context.metrics,
        key,
    };
    let due = match last {
        Some(last) => keep_certificates(service, &last, &applier, settings, now).await?,
        None => keep_own_certificates(service, &applier, settings, now, context).await?,
    };
    context.backoff.forget(&service.uid().unwrap_or_default());
    let wait = due.and_then(|due| Duration::try_from(due.duration_since(now)).ok());
    let resync = settings.resync.unsigned_abs();
    Ok(Action::requeue(wait.unwrap_or(resync).clamp(SOON, resync)))
}

/// What goes on for such a service: its pods run, and live no longer than their certificates. When the next of them is due.
async fn keep_certificates(
    service: &InferenceService,
    running: &Validated,
    applier: &Applier<'_>,
    settings: &Settings,
    now: Timestamp,
) -> Result<Option<Timestamp>, RoundError> {
    let seen = applier.cache.snapshot(applier.key);
    let names = certificates::names(running, gather::ids(service, running, &seen));
    let secrets = certificates::read(applier, &names, &running.uid).await?;
    let worked = Box::pin(certify(running, applier, settings, secrets, now)).await?;
    Ok(worked.look_again)
}

/// The same where nobody knows by which spec its pods run, if it has any: the status was lost, or a later operator wrote it. What the operator
/// itself has signed is renewed.
async fn keep_own_certificates(
    service: &InferenceService,
    applier: &Applier<'_>,
    settings: &Settings,
    now: Timestamp,
    context: &Context,
) -> Result<Option<Timestamp>, RoundError> {
    let uid = service.uid().unwrap_or_default();
    let own = |live: &&Live| live.is_owned_by(&uid);
    let seen = applier.cache.snapshot(applier.key);
    let mut own = seen.children.iter().filter(own);
    let has_gateway = own.any(|live| live.reference.kind == Kind::Deployment);
    let running = Validated::as_it_runs(service, has_gateway);
    let others = context.neighbours.of(service, &context.services);
    let others: Vec<&InferenceService> = others.iter().map(|other| &**other).collect();
    let running = sharing::keep(service, running, &others, settings);
    let names = [running.names.authority()];
    let secrets = certificates::read(applier, &names, &uid).await?;
    if secrets.values().all(|found| !found.ours) {
        return Ok(None);
    }
    keep_certificates(service, &running, applier, settings, now).await
}

/// Over the version that was read, and only if it says something new.
async fn write_status(
    service: &InferenceService,
    key: &ServiceKey,
    before: &InferenceServiceStatus,
    new: InferenceServiceStatus,
    context: &Context,
) -> Result<(), RoundError> {
    if service.status.is_some() && *before == new {
        return Ok(());
    }
    let api: Api<InferenceService> = Api::namespaced(context.client.clone(), &key.namespace);
    let name = service.name_any();
    let patch = json!({
        "apiVersion": "kvasir.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {
            "name": name,
            "namespace": key.namespace,
            "uid": service.metadata.uid,
            "resourceVersion": service.metadata.resource_version,
        },
        "status": new,
    });
    let params = PatchParams::apply(STATUS_MANAGER).force();
    let result = api.patch_status(&name, &params, &Patch::Apply(&patch)).await;
    context.metrics.wrote_status(result.is_ok());
    match result {
        Ok(answer) => {
            let made = version(answer.metadata.resource_version.as_deref());
            context.cache.wrote_status(key, made);
            Ok(())
        }
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Err(RoundError::Stale),
        Err(source) => Err(RoundError::Status { source }),
    }
}

async fn tell(
    service: &InferenceService,
    events: impl IntoIterator<Item = &groups::Event>,
    context: &Context,
) {
    for event in events {
        context.events.publish(service, event).await;
    }
}

fn log(service: &InferenceService, plan: &Plan) {
    let (namespace, name) = (service.namespace().unwrap_or_default(), service.name_any());
    let decisions = &plan.decisions;
    tracing::info!(
        %namespace, %name,
        write = plan.write.len(), delete = plan.delete.len(),
        create_groups = decisions.create.len(), delete_groups = ?decisions.delete,
        restart_pods = decisions.restart_pods.len(),
        "changing",
    );
    for write in &plan.write {
        tracing::debug!(%namespace, %name, object = %write.child.reference, exists = write.uid.is_some(), "writing");
    }
}
