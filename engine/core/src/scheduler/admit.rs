//! The waiting queue's share of a step: admission with a cached prefix and a reservation for the whole sequence (S8 to S14).
//!
//! Law: a sequence starts only if all of its tokens fit into the blocks that are free now, beside what [`reserve`](super::reserve) keeps;
//! an attempt that fails changes nothing. Sequences start in the order of the queue, except that those who wait for something else than
//! room are passed over (S9), and that others may pass one that doesn't fit for as long as [`ageing`](super::ageing) allows.

use super::Scheduler;
use super::ageing::MAX_PASSED;
use super::step::Pass;
use crate::arena::Slot;
use crate::event::Event;
use crate::sequence::Phase;

/// What came of an attempt to start a sequence.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Verdict {
    Started,
    /// It waits for something else than room.
    Skipped,
    /// It needs this many free blocks.
    Blocked(u32),
}

/// What a sequence can start behind. The blocks themselves are in [`Scheduler::hits`] or in the tables of the leader.
#[derive(Clone, Copy, Default)]
pub(super) struct Prefix {
    /// Whole blocks that are shared.
    pub(super) num_blocks: u32,
    /// Positions that are already computed: of the shared blocks, and of the one that is copied, if they end within a block.
    pub(super) num_tokens: u32,
    /// The sequence of the same request that holds the blocks, if they don't come from the cache.
    pub(super) leader: Option<Slot>,
}

impl Scheduler {
    /// Admits until the budget, the running set or memory is full.
    pub(super) fn admit_waiting(&mut self, pass: &mut Pass<'_>) {
        let mut num_passed = 0;
        let mut candidate = self.head();
        while let Some((key, slot)) = candidate {
            if pass.is_full() {
                return;
            }
            if self.running.len() >= self.config.max_num_active_seqs as usize {
                if self.is_skipped(slot) {
                    candidate = self.waiting.after(key);
                } else if !self.displace_for(slot, pass) {
                    return;
                }
                continue;
            }
            candidate = match self.try_admit(slot, pass) {
                Verdict::Started if num_passed == 0 => self.head(),
                Verdict::Started | Verdict::Skipped => self.waiting.after(key),
                Verdict::Blocked(num_blocks) => {
                    if num_blocks <= self.pool.num_free() + self.num_due() {
                        // The steps in flight hold what it needs; nobody may take it meanwhile.
                        return;
                    }
                    if self.displace_for(slot, pass) {
                        continue;
                    }
                    num_passed += 1;
                    if num_passed > MAX_PASSED || !self.may_pass(slot) {
                        return;
                    }
                    self.waiting.after(key)
                }
            };
        }
    }

    /// Whether something else than room keeps a sequence waiting.
    fn is_skipped(&self, slot: Slot) -> bool {
        let options = &self.seqs[slot].options;
        !self
            .adapters
            .admits(options.adapter, self.policies.max_active_adapters)
            || self.waits_for_leader(slot)
    }

    /// Starts a sequence, or changes nothing.
    fn try_admit(&mut self, slot: Slot, pass: &mut Pass<'_>) -> Verdict {
        if self.is_skipped(slot) {
            return Verdict::Skipped;
        }
        let (free, reserve) = (self.pool.num_free(), self.reserve());
        let seq = &self.seqs[slot];
        // At least one position is computed, into a block of its own; and its tokens have to be known.
        if seq.num_pending > 0 || free == 0 {
            return Verdict::Blocked(reserve.saturating_add(1));
        }
        let num_tokens = seq.num_tokens();
        let prefix = self.find_prefix(slot);
        let needed = self.num_needed(num_tokens, &prefix).saturating_add(reserve);
        if needed > free {
            return Verdict::Blocked(needed);
        }
        self.start(slot, prefix, pass);
        Verdict::Started
    }

    fn start(&mut self, slot: Slot, prefix: Prefix, pass: &mut Pass<'_>) {
        let seq = &mut self.seqs[slot];
        self.waiting.remove(seq);
        if self.reserves_ahead {
            seq.reserve(&self.layout);
        }
        if let Some(leader) = prefix.leader {
            self.share_with_leader(slot, leader, &prefix);
        } else {
            self.take_hits(slot, prefix.num_tokens);
        }
        let seq = &mut self.seqs[slot];
        let num_tokens = pass.chunk(seq, prefix.num_tokens);
        let end = prefix.num_tokens + num_tokens;
        let num_blocks = end.div_ceil(self.config.block_size) - prefix.num_blocks;
        self.pool.log().act_for(seq.id);
        let allocated = seq.tables.grow(num_blocks, &mut self.pool);
        debug_assert!(
            allocated,
            "a chunk needs no more than the whole sequence, which fits"
        );
        self.running.push(slot);
        self.adapters.enter(seq.options.adapter);
        seq.phase = Phase::Running;
        seq.blocked_since = None;
        seq.num_computed = prefix.num_tokens;
        seq.num_written = prefix.num_tokens;
        seq.num_published = prefix.num_blocks;
        let resumed = seq.num_preemptions > 0;
        if self.config.enable_prefix_caching && seq.reads_prefix_cache {
            self.counters
                .count_lookup(resumed, seq.num_tokens(), prefix.num_tokens);
        }
        pass.events.push(Event::Scheduled {
            seq: seq.id,
            cached_tokens: prefix.num_tokens,
            resumed,
        });
        pass.push(seq, slot, num_tokens, 0);
        self.shares.charge(&seq.options, num_tokens);
        if let Some(leader) = prefix.leader {
            self.copy_from_leader(slot, leader, &prefix, pass);
        }
    }

    /// What is known of a sequence, from the leader of its request or from the cache.
    fn find_prefix(&mut self, slot: Slot) -> Prefix {
        self.hits.clear();
        match self.find_group_prefix(slot) {
            Some(prefix) => prefix,
            None => self.find_cached(slot),
        }
    }
}
