//! Tenants' accounts with limits per minute and concurrency, shared with the other gateways of a service.
//!
//! [`Accounts`] is what the gateway asks: [`charge`](Accounts::charge) before a request runs, [`OpenCharge::settle`] when it ended. Behind it
//! is the core's [`Ledger`](kvasir_gateway_core::limits::Ledger) and, where one is configured, a [`LimitStore`] that all gateways ask.
//!
//! ```text
//! charge --> store answers?  yes: it decides, the ledger records          settle, cancel --> ledger
//!                            no:  the ledger decides by this gateway's share             `-> queue --> store
//! keeper: sends the queue, renews leases of running requests, and comes back to the store when it answers again
//! ```
//!
//! Settlements never wait: they are queued, and those that the store couldn't take are sent when it's back, as long as they can still
//! matter there (a minute). What a gateway admitted while the store was away is added to it afterwards.

mod accounts;
mod keeper;
mod redis;

pub use accounts::{Accounts, AccountsFigures, Admitted, OpenCharge};
pub use redis::{RedisStore, RedisStoreError};

use std::fmt::Debug;
use std::time::Duration;

use async_trait::async_trait;
use kvasir_gateway_core::limits::store::Admission;
use kvasir_gateway_core::limits::{Cost, Exhausted, Limits, MergeItem, StoreAdjustment};
use kvasir_gateway_core::names::TenantName;

/// Accounts that several gateways share. [`ReferenceStore`](kvasir_gateway_core::limits::store::ReferenceStore) says what each call means.
#[async_trait]
pub trait LimitStore: Debug + Send + Sync {
    /// Admits a request or says why there is no room for it. `request` is unique among all gateways; its lease is the time after which
    /// it no longer counts as running unless it's renewed.
    async fn charge(
        &self,
        tenant: &TenantName,
        limits: &Limits,
        estimate: Cost,
        lease: (&str, Duration),
    ) -> Result<Result<Admission, Exhausted>, StoreError>;

    /// Corrects a charge and ends the lease of `request`, which is empty for a charge that has none.
    async fn settle(&self, adjustment: &StoreAdjustment, request: &str) -> Result<(), StoreError>;

    /// Adds what was admitted without the store to one tenant's account. Answers the store's slot.
    async fn merge(&self, tenant: &TenantName, items: &[MergeItem]) -> Result<u64, StoreError>;

    /// Renews leases of one tenant.
    async fn renew(
        &self,
        tenant: &TenantName,
        requests: &[String],
        lease: Duration,
    ) -> Result<(), StoreError>;

    /// Whether the store answers.
    async fn ping(&self) -> Result<(), StoreError>;
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
