//! How many adapters run at one time (S9).
//!
//! Law: the running set never has more than [`max_active_adapters`](crate::Policies::max_active_adapters) different adapters. A sequence that
//! would add one too many is passed over and holds up nobody (case T14).

use std::collections::BTreeMap;

use crate::ids::AdapterId;

/// Running sequences per adapter.
#[derive(Debug, Default)]
#[cfg_attr(feature = "model", derive(Clone))]
pub(crate) struct Adapters {
    running: BTreeMap<AdapterId, u32>,
}

impl Adapters {
    /// Whether one more sequence with this adapter keeps the limit.
    pub(super) fn admits(&self, adapter: Option<AdapterId>, limit: Option<u32>) -> bool {
        match (adapter, limit) {
            (Some(adapter), Some(limit)) => {
                self.running.contains_key(&adapter) || self.running.len() < limit as usize
            }
            _ => true,
        }
    }

    pub(super) fn enter(&mut self, adapter: Option<AdapterId>) {
        if let Some(adapter) = adapter {
            *self.running.entry(adapter).or_insert(0) += 1;
        }
    }

    pub(super) fn leave(&mut self, adapter: Option<AdapterId>) {
        let Some(adapter) = adapter else { return };
        if let Some(count) = self.running.get_mut(&adapter) {
            *count -= 1;
            if *count == 0 {
                self.running.remove(&adapter);
            }
        }
    }

    /// Different adapters in the running set.
    pub(crate) fn num_active(&self) -> usize {
        self.running.len()
    }
}
