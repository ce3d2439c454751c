//! How long others may pass a sequence that doesn't fit.
//!
//! Law, both ways: from the moment at which a sequence could start but for room, those behind it may start before it for
//! [`ageing_bound`](crate::Policies::ageing_bound); after that nobody who stands behind it does, so the running set drains until it
//! fits, at the latest when nothing else runs. Without a bound nobody ever passes (S10).
//!
//! The opposite, letting others pass for ever, starves a large request on a busy server (vllm#41951); letting nobody pass stops a busy
//! server for each large request (vllm#39734).

use super::Scheduler;
use crate::arena::Slot;

/// Sequences tried behind one that doesn't fit, which bounds the time a step takes.
pub(super) const MAX_PASSED: u32 = 32;

impl Scheduler {
    /// Notes that a sequence doesn't fit, and says whether others may pass it.
    pub(super) fn may_pass(&mut self, slot: Slot) -> bool {
        let now = self.now;
        let since = *self.seqs[slot].blocked_since.get_or_insert(now);
        self.policies
            .ageing_bound
            .is_some_and(|bound| now.0 - since.0 < bound.0)
    }
}
