//! The Lease: only its holder works. It is changed by compare-and-swap on its version.
//!
//! Renewal opens the [`Fence`] until the deadline, counted from before the request was sent. The deadline is shorter than the
//! lease, so that the fence is closed before another replica can take over. A holder that can't renew until then, or finds
//! somebody else's name, stops at once.

mod turn;

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::{Api, PostParams};
use tokio_util::sync::CancellationToken;

use crate::fence::{Fence, uptime};
use crate::watch::chain;
use turn::{Record, Sighting, Turn};

/// The lease can't be kept.
#[derive(Debug, thiserror::Error)]
pub enum LeaseError {
    /// Another replica has it.
    #[error("the lease was taken by {holder}: this replica stops")]
    Taken {
        /// Who has it now.
        holder: String,
    },
    /// It couldn't be renewed in time.
    #[error("the lease couldn't be renewed for {} s: this replica stops: {last}", after.as_secs())]
    Expired {
        /// How long.
        after: Duration,
        /// What the last attempt said.
        last: String,
    },
}

/// Times of a lease.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    pub(crate) duration: Duration,
    pub(crate) deadline: Duration,
    pub(crate) retry: Duration,
}

/// Takes and keeps a Lease.
pub(crate) struct Keeper {
    api: Api<Lease>,
    name: String,
    identity: String,
    times: Times,
    fence: Arc<Fence>,
    sighting: Sighting,
    waits_for: Option<String>,
}

impl Keeper {
    pub(crate) fn new(
        api: Api<Lease>,
        name: String,
        identity: String,
        times: Times,
        fence: Arc<Fence>,
    ) -> Self {
        Self {
            api,
            name,
            identity,
            times,
            fence,
            sighting: Sighting::default(),
            waits_for: None,
        }
    }

    /// Waits until the lease is ours. `tick` is called at each try.
    pub(crate) async fn acquire(&mut self, tick: impl Fn()) {
        loop {
            tick();
            match self.attempt().await {
                Ok(None) => return,
                Ok(Some(holder)) => {
                    if self.waits_for.as_ref() != Some(&holder) {
                        tracing::info!(lease = %self.name, %holder, "another replica works; this one waits");
                        self.waits_for = Some(holder);
                    }
                }
                Err(error) => {
                    tracing::warn!(lease = %self.name, error = %chain(&error), "the lease can't be read or taken");
                }
            }
            tokio::time::sleep(self.times.retry).await;
        }
    }

    /// Keeps the lease until it is lost or `stop` is cancelled; then gives it back.
    pub(crate) async fn keep(&mut self, stop: &CancellationToken, tick: impl Fn()) -> Result<(), LeaseError> {
        let mut last = String::new();
        loop {
            tick();
            let left = self.fence.until().saturating_sub(uptime());
            if left.is_zero() {
                return Err(LeaseError::Expired {
                    after: self.times.deadline,
                    last,
                });
            }
            tokio::select! {
                () = stop.cancelled() => return Ok(()),
                () = tokio::time::sleep(self.times.retry.min(left)) => {}
            }
            let left = self.fence.until().saturating_sub(uptime());
            match tokio::time::timeout(left, self.attempt()).await {
                Ok(Ok(None)) => {}
                Ok(Ok(Some(holder))) => {
                    self.fence.close();
                    return Err(LeaseError::Taken { holder });
                }
                Ok(Err(error)) => last = chain(&error),
                Err(_) => "the API server doesn't answer".clone_into(&mut last),
            }
        }
    }

    /// Gives the lease back, so that another replica needn't wait.
    pub(crate) async fn release(&mut self) {
        self.fence.close();
        let result = async {
            let Some(mut lease) = self.api.get_opt(&self.name).await? else {
                return Ok(());
            };
            let spec = lease.spec.get_or_insert_default();
            if spec.holder_identity.as_deref() != Some(self.identity.as_str()) {
                return Ok(());
            }
            spec.holder_identity = None;
            spec.lease_duration_seconds = Some(1);
            self.api
                .replace(&self.name, &PostParams::default(), &lease)
                .await
                .map(drop)
        };
        if let Err::<(), kube::Error>(error) = result.await {
            tracing::warn!(lease = %self.name, error = %chain(&error), "the lease couldn't be given back");
        }
    }

    /// One look and, where it is our turn, one write. Somebody else's name if it is theirs.
    async fn attempt(&mut self) -> Result<Option<String>, kube::Error> {
        let begin = uptime();
        let found = self.api.get_opt(&self.name).await?;
        let record = found.as_ref().map(record);
        let turn = self.sighting.turn(record.as_ref(), &self.identity, uptime());
        let params = PostParams::default();
        let written = match (turn, found) {
            (Turn::Create, _) => self.api.create(&params, &self.renewed(None)).await,
            (Turn::Wait, _) | (_, None) => {
                return Ok(Some(record.and_then(|r| r.holder).unwrap_or_default()));
            }
            (Turn::Take | Turn::Renew, Some(before)) => {
                let lease = self.renewed(Some(before));
                self.api.replace(&self.name, &params, &lease).await
            }
        };
        match written {
            Ok(_) => {
                self.fence.open_until(begin + self.times.deadline);
                Ok(None)
            }
            // Somebody was faster; the next look shows who.
            Err(kube::Error::Api(status)) if status.code == 409 => {
                let now = self.api.get_opt(&self.name).await?;
                let holder = now.as_ref().map(self::record).and_then(|r| r.holder);
                match holder.filter(|holder| !holder.is_empty() && *holder != self.identity) {
                    Some(holder) => Ok(Some(holder)),
                    None => Err(kube::Error::Api(status)),
                }
            }
            Err(error) => Err(error),
        }
    }

    fn renewed(&self, before: Option<Lease>) -> Lease {
        let now = MicroTime(Timestamp::now());
        let mut lease = before.unwrap_or_else(|| Lease {
            metadata: ObjectMeta {
                name: Some(self.name.clone()),
                ..ObjectMeta::default()
            },
            spec: None,
        });
        let spec = lease.spec.get_or_insert_default();
        if spec.holder_identity.as_deref() != Some(self.identity.as_str()) {
            spec.acquire_time = Some(now.clone());
            spec.lease_transitions = Some(spec.lease_transitions.map_or(0, |n| n.saturating_add(1)));
        }
        *spec = LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: i32::try_from(self.times.duration.as_secs()).ok(),
            renew_time: Some(now),
            ..spec.clone()
        };
        lease
    }
}

fn record(lease: &Lease) -> Record {
    let spec = lease.spec.clone().unwrap_or_default();
    Record {
        holder: spec.holder_identity,
        duration: Duration::from_secs(
            spec.lease_duration_seconds
                .and_then(|seconds| u64::try_from(seconds).ok())
                .unwrap_or(0),
        ),
        version: lease.metadata.resource_version.clone().unwrap_or_default(),
    }
}
