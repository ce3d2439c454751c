//! Asks engines for their load, beside the rounds: a round never waits for an engine.
//!
//! The leading pod of each group is asked every [`PAUSE`], and every [`DRAIN_PAUSE`] where a group drains, because its last
//! request decides when it goes. An engine that can't be reached has no load. A round is asked for when the load of a service changes that
//! drains a group or tries a canary, and otherwise at most every [`REPORT`].

mod link;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use kube::runtime::reflector::{ObjectRef, Store};
use kvasir_operator_api::names::Names;
use kvasir_operator_api::{InferenceService, TlsMode};
use kvasir_operator_core::{accepted, identity};

use crate::cache::{Cache, ServiceKey};
use crate::reconcile;
use crate::watch::Trigger;
pub(crate) use link::{Answer, Link};

/// Pause between two questions.
const PAUSE: Duration = Duration::from_secs(15);
/// Pause while a group drains.
const DRAIN_PAUSE: Duration = Duration::from_secs(2);
/// Shortest time between two rounds that only new figures are the reason for.
const REPORT: Duration = Duration::from_mins(1);
/// Engines that are asked at the same time.
const AT_ONCE: usize = 64;

/// When a service was last asked and last reported.
#[derive(Clone, Copy)]
struct Times {
    asked: Instant,
    reported: Option<Instant>,
}

/// Asks all engines until it is dropped.
pub(crate) async fn poll(services: Store<InferenceService>, cache: Arc<Cache>, trigger: Trigger) {
    let mut times: BTreeMap<ServiceKey, Times> = BTreeMap::new();
    let mut ticks = tokio::time::interval(DRAIN_PAUSE);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let now = Instant::now();
        let all = services.state();
        let due: Vec<_> = all
            .iter()
            .filter(|service| is_due(service, &times, now))
            .cloned()
            .collect();
        let questions = due.into_iter().map(|service| {
            let cache = Arc::clone(&cache);
            async move {
                let answers = ask(&service, &cache).await;
                (service, answers)
            }
        });
        let mut answers = std::pin::pin!(futures::stream::iter(questions).buffer_unordered(AT_ONCE));
        while let Some((service, answers)) = answers.next().await {
            let key = reconcile::key(&service);
            let (window, clock) = (window(&service), Timestamp::now());
            let old = served_before(&service, clock - window);
            let news = cache.put_loads(&key, &answers, &old, window, clock);
            let before = times.get(&key).and_then(|times| times.reported);
            let due = is_draining(&service)
                || is_on_trial(&service)
                || before.is_none_or(|at| now.duration_since(at) >= REPORT);
            let reported = if news && due {
                // Nobody listens while the operator is stopping.
                trigger.send(ObjectRef::from_obj(&*service)).ok();
                Some(now)
            } else {
                before
            };
            let asked = now;
            times.insert(key, Times { asked, reported });
        }
        if times.len() > all.len() {
            let alive: Vec<_> = all.iter().map(|service| reconcile::key(service)).collect();
            times.retain(|key, _| alive.contains(key));
        }
    }
}

fn is_due(service: &InferenceService, times: &BTreeMap<ServiceKey, Times>, now: Instant) -> bool {
    let pause = if is_draining(service) { DRAIN_PAUSE } else { PAUSE };
    let last = times.get(&reconcile::key(service));
    last.is_none_or(|times| now.duration_since(times.asked) + DRAIN_PAUSE / 2 >= pause)
}

fn is_draining(service: &InferenceService) -> bool {
    let mut groups = service.status.iter().flat_map(|status| &status.groups);
    groups.any(|group| group.draining)
}

/// A canary gets requests: how they end decides about it.
fn is_on_trial(service: &InferenceService) -> bool {
    let rollout = service.status.as_ref().and_then(|status| status.rollout.as_ref());
    rollout.is_some_and(|rollout| rollout.canary_since.is_some() && !rollout.promoted)
}

/// Groups that were ready before that moment.
fn served_before(service: &InferenceService, moment: Timestamp) -> BTreeSet<i32> {
    let groups = service.status.iter().flat_map(|status| &status.groups);
    let old = groups.filter(|group| group.ready_since.as_ref().is_some_and(|since| since.0 < moment));
    old.map(|group| group.id).collect()
}

/// How long requests count when a canary is judged.
fn window(service: &InferenceService) -> SignedDuration {
    let spec = accepted::spec(service);
    let canary = spec.as_ref().and_then(|spec| spec.rollout.canary.as_ref());
    let analysis = canary.map(|canary| canary.analysis.clone()).unwrap_or_default();
    SignedDuration::from_secs(analysis.window_seconds.into())
}

/// Answers of the groups that gave one.
async fn ask(service: &InferenceService, cache: &Cache) -> BTreeMap<i32, Answer> {
    let key = reconcile::key(service);
    let Some(link) = link_to(service, cache) else {
        return BTreeMap::new();
    };
    let leaders = leaders(service, cache, &key);
    let questions = leaders.into_iter().map(|(group, address)| {
        let link = link.clone();
        async move {
            match link.load(address).await {
                Ok(answer) => Some((group, answer)),
                Err(error) => {
                    tracing::debug!(namespace = %key_namespace(service), group, %error, "an engine gave no answer");
                    None
                }
            }
        }
    });
    futures::future::join_all(questions)
        .await
        .into_iter()
        .flatten()
        .collect()
}

fn key_namespace(service: &InferenceService) -> &str {
    service.metadata.namespace.as_deref().unwrap_or_default()
}

/// How the engines of a service are reached; nothing while there is no certificate for it.
pub(crate) fn link_to(service: &InferenceService, cache: &Cache) -> Option<Link> {
    match accepted::spec(service)?.tls.mode {
        TlsMode::Off => Some(Link::plain()),
        TlsMode::Internal | TlsMode::CertManager | TlsMode::Provided => {
            let own = cache.own(&reconcile::key(service))?;
            let name = service.metadata.name.as_deref()?;
            let engine = identity::engine_of(key_namespace(service), name);
            match Link::secured(&own, engine) {
                Ok(link) => Some(link),
                Err(error) => {
                    tracing::warn!(namespace = %key_namespace(service), name, %error, "engines can't be asked");
                    None
                }
            }
        }
    }
}

/// Admin addresses of the leading pods that run, by group.
pub(crate) fn leaders(
    service: &InferenceService,
    cache: &Cache,
    key: &ServiceKey,
) -> BTreeMap<i32, SocketAddr> {
    let port = accepted::spec(service).and_then(|spec| u16::try_from(spec.engine.ports.admin).ok());
    let Some(port) = port else {
        return BTreeMap::new();
    };
    let uid = service.metadata.uid.as_deref().unwrap_or_default();
    let pods = cache
        .snapshot(key)
        .own_pods(&Names::new(&service.name_any()), uid);
    let leading = pods
        .into_iter()
        .filter(|pod| pod.view.ordinal == 0 && pod.view.ready && !pod.view.deleting);
    leading
        .filter_map(|pod| {
            let address: IpAddr = pod.address?.parse().ok()?;
            Some((pod.view.group?, SocketAddr::new(address, port)))
        })
        .collect()
}
