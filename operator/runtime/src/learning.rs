//! Which kinds beyond Kubernetes' own the cluster knows, as their definitions come and go.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use kube::Client;
use kvasir_operator_core::Settings;
use kvasir_operator_core::child::Kind;
use tokio::sync::oneshot;
use tokio::task::{AbortHandle, JoinSet};

use crate::cluster;
use crate::watch::Watcher;

/// What is watched of such kinds.
pub(crate) struct Kinds {
    pub(crate) client: Client,
    pub(crate) watcher: Watcher,
    pub(crate) settings: tokio::sync::watch::Sender<Settings>,
    /// The watches of their objects that run.
    pub(crate) watches: BTreeMap<Kind, AbortHandle>,
    /// Pause between two looks.
    pub(crate) pause: Duration,
}

impl Kinds {
    /// Looks which kinds the cluster knows, watches those that are new, and tells the rounds.
    pub(crate) async fn follow(mut self) {
        let mut tasks = JoinSet::new();
        loop {
            tokio::time::sleep(self.pause).await;
            let known = match cluster::known_kinds(&self.client).await {
                Ok(known) => known,
                Err(error) => {
                    tracing::warn!(%error, "the cluster can't be asked for its kinds");
                    continue;
                }
            };
            let before = self.settings.borrow().known_kinds.clone();
            for kind in before.difference(&known).copied() {
                self.forget(kind);
            }
            for kind in known.difference(&before).copied() {
                self.learn(kind, &mut tasks).await;
            }
        }
    }

    /// Nobody can write its objects any more: whoever tried would fail in every round.
    fn forget(&mut self, kind: Kind) {
        tracing::info!(%kind, "the cluster has lost a kind");
        if let Some(watch) = self.watches.remove(&kind) {
            watch.abort();
        }
        self.settings.send_modify(|settings| {
            settings.known_kinds.remove(&kind);
        });
        for service in self.watcher.cache.keep_only(kind, &BTreeSet::new()) {
            self.watcher.news(&service);
        }
    }

    /// Its objects must be known before any is wanted. A kind that can't be listed isn't used.
    async fn learn(&mut self, kind: Kind, tasks: &mut JoinSet<()>) {
        tracing::info!(%kind, "the cluster has learnt a kind");
        let watcher = self.watcher.clone();
        let (watch, ready) = spawn(tasks, |ready| watcher.children(kind, ready));
        if tokio::time::timeout(Duration::from_mins(1), ready).await.is_ok() {
            self.watches.insert(kind, watch);
            self.settings.send_modify(|settings| {
                settings.known_kinds.insert(kind);
            });
        } else {
            watch.abort();
        }
    }
}

/// Starts a watch; when its first list is complete is told.
pub(crate) fn spawn<F: Future<Output = ()> + Send + 'static>(
    tasks: &mut JoinSet<()>,
    watch: impl FnOnce(oneshot::Sender<()>) -> F,
) -> (AbortHandle, oneshot::Receiver<()>) {
    let (sender, receiver) = oneshot::channel();
    (tasks.spawn(watch(sender)), receiver)
}
