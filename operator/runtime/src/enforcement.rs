//! Tries every port of every service from the operator's own pod: whether the network keeps it out is judged by the core.
//!
//! Beside the rounds, as the engines' load: a round never waits for a connection. A visit opens connections and sends nothing.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use kube::runtime::reflector::{ObjectRef, Store};
use kvasir_operator_api::InferenceService;
use kvasir_operator_core::enforcement::{Door, Suspicion, doors, judge};
use kvasir_operator_core::{Settings, accepted, validate};
use tokio::net::TcpStream;
use tokio::sync::watch;

use crate::cache::{Cache, ServiceKey};
use crate::reconcile;
use crate::watch::Trigger;

/// How often it's looked which services are due.
const TICK: Duration = Duration::from_secs(5);
/// Pause between two visits to pods that are the same.
const PAUSE: Duration = Duration::from_mins(1);
/// Longest wait for a connection: a network that drops doesn't answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// Services that are visited at the same time, and connections that are tried at the same time for one of them.
const AT_ONCE: usize = 32;

/// The last visit to a service.
#[derive(Default)]
struct Visit {
    at: Option<Instant>,
    doors: Vec<Door>,
    suspicion: Suspicion,
}

impl Visit {
    fn is_due(&self, doors: &[Door], now: Instant) -> bool {
        let Some(at) = self.at else {
            return true;
        };
        self.suspicion.is_doubtful() || self.doors != doors || now.duration_since(at) >= PAUSE
    }
}

/// Visits all services until it is dropped.
pub(crate) async fn poll(
    services: Store<InferenceService>,
    cache: Arc<Cache>,
    settings: watch::Receiver<Settings>,
    trigger: Trigger,
) {
    let mut visits: BTreeMap<ServiceKey, Visit> = BTreeMap::new();
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let all = services.state();
        let alive: Vec<_> = all.iter().map(|service| reconcile::key(service)).collect();
        visits.retain(|key, _| alive.contains(key));
        let mut due = Vec::new();
        for (service, key) in all.into_iter().zip(alive) {
            let doors = doors_of(&service, &key, &cache, &settings.borrow());
            let visit = visits.entry(key.clone()).or_default();
            if !doors.is_empty() && visit.is_due(&doors, Instant::now()) {
                due.push((service, key, doors));
            }
        }
        let knocks = due.into_iter().map(|(service, key, doors)| async move {
            let found = knock(doors.clone()).await;
            (service, key, doors, found)
        });
        let mut answers = std::pin::pin!(futures::stream::iter(knocks).buffer_unordered(AT_ONCE));
        while let Some((service, key, doors, found)) = answers.next().await {
            let visit = visits.entry(key.clone()).or_default();
            visit.at = Some(Instant::now());
            visit.doors = doors;
            if let Some(found) = visit.suspicion.weigh(judge(&found))
                && cache.put_enforcement(&key, found)
            {
                // Nobody listens while the operator is stopping.
                trigger.send(ObjectRef::from_obj(&*service)).ok();
            }
        }
    }
}

fn doors_of(service: &InferenceService, key: &ServiceKey, cache: &Cache, settings: &Settings) -> Vec<Door> {
    let running = accepted::last(service);
    let Some(validated) = running.and_then(|running| validate(&running, settings).ok()) else {
        return Vec::new();
    };
    // Nobody can say what listens in a pod of somebody else's.
    let pods = cache.snapshot(key).own_pods(&validated.names, &validated.uid);
    let pods: Vec<_> = pods.into_iter().map(|pod| (pod.view, pod.address)).collect();
    doors(&validated, &pods, settings)
}

/// Which doors open.
async fn knock(doors: Vec<Door>) -> Vec<(Door, bool)> {
    let tries = doors.into_iter().map(|door| async move {
        let opened = opens(door.address).await;
        (door, opened)
    });
    let mut found: Vec<_> = futures::stream::iter(tries)
        .buffer_unordered(AT_ONCE)
        .collect()
        .await;
    found.sort_by(|(a, _), (b, _)| (&a.pod, a.address.port()).cmp(&(&b.pod, b.address.port())));
    found
}

async fn opens(address: SocketAddr) -> bool {
    let connection = tokio::time::timeout(PATIENCE, TcpStream::connect(address)).await;
    matches!(connection, Ok(Ok(_)))
}

#[cfg(test)]
mod tests {
    use kvasir_operator_core::enforcement::Expected;
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn a_door_opens_where_somebody_listens_and_nowhere_else() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let open = listener.local_addr().unwrap();
        let closed = {
            let gone = TcpListener::bind("127.0.0.1:0").await.unwrap();
            gone.local_addr().unwrap()
        };
        let door = |address: SocketAddr, pod: &str| Door {
            address,
            pod: pod.to_owned(),
            name: "grpc",
            expected: Expected::Closed,
        };
        let found = knock(vec![door(open, "a"), door(closed, "b")]).await;
        let opened: Vec<_> = found
            .iter()
            .map(|(door, opened)| (door.pod.as_str(), *opened))
            .collect();
        assert_eq!(opened, [("a", true), ("b", false)]);
    }

    #[test]
    fn a_visit_is_due_when_pods_change_when_it_is_doubtful_and_after_a_while() {
        let now = Instant::now();
        let mut visit = Visit::default();
        assert!(visit.is_due(&[], now));
        visit.at = Some(now);
        assert!(!visit.is_due(&[], now));
        assert!(visit.is_due(&[], now + PAUSE));
        let door = Door {
            address: "10.0.0.1:1".parse().unwrap(),
            pod: "a".to_owned(),
            name: "grpc",
            expected: Expected::Closed,
        };
        assert!(visit.is_due(std::slice::from_ref(&door), now));
        let reached = judge(&[(door, true)]);
        assert!(visit.suspicion.weigh(reached).is_none());
        assert!(visit.is_due(&[], now));
    }
}
