//! Tenants' accounts with limits per minute and concurrency, shared with the other gateways of a service.
//!
//! [`Accounts`] is what the gateway asks: [`charge`](Accounts::charge) before a request runs, [`OpenCharge::settle`] when it ended. Behind it
//! is the core's [`Ledger`](kvasir_gateway_core::limits::Ledger) and, where one is configured, a [`LimitStore`] that all gateways ask.
//!
//! ```text
//! charge --> store answers?  yes: it decides, the ledger records          settle, cancel --> ledger
//!                            no:  the ledger decides by this gateway's share
//! keeper: asks the ledger what the store must hear, tells it, renews leases of running requests, and comes back to a store that answers again
//! ```
//!
//! Settlements never wait: the ledger keeps what the store hasn't taken until it's back, as long as it can still matter there (a minute).
//! What a gateway admitted while the store was away is handed over afterwards, and a store that came back empty hears everything of the last
//! minute again.

mod accounts;
mod keeper;
mod redis;

pub use accounts::{Accounts, AccountsFigures, Admitted, OpenCharge};
pub use redis::{RedisStore, RedisStoreError};

use std::fmt::Debug;
use std::time::Duration;

use async_trait::async_trait;
use kvasir_gateway_core::limits::store::Verdict;
use kvasir_gateway_core::limits::{Cost, Ended, Handover, Instance, Limits, RequestId, Told};
use kvasir_gateway_core::names::TenantName;

/// Accounts that several gateways share. [`ReferenceStore`](kvasir_gateway_core::limits::store::ReferenceStore) says what each call means.
#[async_trait]
pub trait LimitStore: Debug + Send + Sync {
    /// Admits a request or says why there is no room for it. The account must be the known one, if one is given.
    async fn charge(
        &self,
        tenant: &TenantName,
        limits: &Limits,
        estimate: Cost,
        request: (&RequestId, Option<&Instance>),
    ) -> Result<Verdict, StoreError>;

    /// Corrects charges and ends their leases.
    async fn settle(
        &self,
        tenant: &TenantName,
        instance: &Instance,
        ended: &[Ended],
    ) -> Result<Told, StoreError>;

    /// Adds what a gateway has to hand over.
    async fn merge(&self, tenant: &TenantName, handover: &Handover) -> Result<Told, StoreError>;

    /// Renews leases.
    async fn renew(
        &self,
        tenant: &TenantName,
        instance: &Instance,
        requests: &[RequestId],
    ) -> Result<Told, StoreError>;

    /// Whether the store answers.
    async fn ping(&self) -> Result<(), StoreError>;

    /// Connections that were opened so far: after another one the store may be one that has lost its memory.
    fn num_connections(&self) -> u64;
}

/// Why the store didn't answer.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// It can't be reached, or refused the call.
    #[error("the limit store can't be used: {reason}")]
    Unavailable {
        /// What is known about it.
        reason: String,
    },
    /// It took too long.
    #[error("the limit store gave no answer within {} ms", after.as_millis())]
    TimedOut {
        /// How long it was waited for.
        after: Duration,
    },
    /// It answered something else.
    #[error("the limit store answered {call} with something that isn't an answer to it")]
    Unexpected {
        /// The call.
        call: &'static str,
    },
}

#[cfg(test)]
mod tests;
