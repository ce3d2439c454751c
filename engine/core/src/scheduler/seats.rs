//! A waiting sequence of a higher class takes the place of a running one of a lower class.
//!
//! Law: when the first of the queue can't start, for want of a seat or of blocks, and a sequence of a strictly lower class runs, the last one
//! of the lowest class gives way in that very step. A sequence of the highest class therefore waits only for its own class: at most for the steps
//! in flight, whatever the lower ones do (vllm#40004). Equals never displace each other, so nobody is displaced in circles.
//!
//! vLLM lets it wait (S15, case T11). The price is that the displaced one is computed again.

use super::Scheduler;
use super::step::Pass;
use crate::arena::Slot;

impl Scheduler {
    /// Lets one of a lower class give way to `head`, and says whether one did.
    pub(super) fn displace_for(&mut self, head: Slot, pass: &mut Pass<'_>) -> bool {
        if !self.policies.seat_preemption || self.running.is_empty() {
            return false;
        }
        let victim = self.last_of_lowest_class();
        let is_lower = self.seqs[self.running[victim]].priority > self.seqs[head].priority;
        if is_lower {
            self.preempt(victim, pass);
        }
        is_lower
    }
}
