//! The waiting queue's share of a step: admission with a cached prefix and a reservation for the whole sequence (S8 to S14).

use super::step::Pass;
use super::{Scheduler, queued};
use crate::event::Event;
use crate::ids::SeqId;
use crate::sequence::Phase;

/// The cached blocks that a sequence can start behind.
#[derive(Clone, Copy, Default)]
struct Prefix {
    num_blocks: u32,
    /// Those of them that nobody holds: sharing them uses up free blocks.
    num_free: u32,
}

impl Scheduler {
    /// Admits from the head of the queue until the budget, the running set or memory is full. The head blocks those behind it (S10).
    pub(super) fn admit_waiting(&mut self, pass: &mut Pass<'_>) {
        while pass.tokens_left > 0 && self.running.len() < self.config.max_num_active_seqs as usize {
            let Some(&head) = self.waiting.front() else { return };
            if !self.try_admit(head, pass) {
                return;
            }
        }
    }

    /// Admits the head of the queue, or changes nothing and says false.
    fn try_admit(&mut self, head: SeqId, pass: &mut Pass<'_>) -> bool {
        let block_size = self.config.block_size;
        let prefix = self.find_prefix(head);
        let seq = queued(&mut self.seqs, head);
        let reserved = seq.num_tokens().div_ceil(block_size) - prefix.num_blocks;
        if reserved > self.pool.num_free() - prefix.num_free {
            return false;
        }
        for index in 0..prefix.num_blocks {
            let hash = seq.block_hash(index, block_size);
            let cached = self
                .pool
                .find(&hash)
                .expect("sharing a block doesn't make another one unfindable");
            seq.blocks.push(self.pool.share(cached));
        }
        let cached_tokens = prefix.num_blocks * block_size;
        let num_tokens = pass.chunk(seq, cached_tokens);
        let needed = (cached_tokens + num_tokens).div_ceil(block_size) - prefix.num_blocks;
        let allocated = self.pool.allocate(needed, &mut seq.blocks);
        debug_assert!(
            allocated,
            "a chunk needs no more than the whole sequence, which fits"
        );

        self.waiting.pop_front();
        self.num_queued_tokens -= u64::from(seq.prompt_len);
        self.running.push(head);
        seq.phase = Phase::Running;
        seq.num_computed = cached_tokens;
        seq.num_written = cached_tokens;
        seq.num_published = prefix.num_blocks;
        let resumed = seq.num_preemptions > 0;
        if self.config.enable_prefix_caching && seq.reads_prefix_cache {
            self.counters
                .count_lookup(resumed, seq.num_tokens(), cached_tokens);
        }
        pass.events.push(Event::Scheduled {
            seq: head,
            cached_tokens,
            resumed,
        });
        pass.push(seq, num_tokens, 0);
        true
    }

    /// The longest run of cached blocks that leaves at least one token to compute: the cache holds KV, not the logits to sample from.
    fn find_prefix(&mut self, id: SeqId) -> Prefix {
        let seq = queued(&mut self.seqs, id);
        let mut prefix = Prefix::default();
        if !self.config.enable_prefix_caching || !seq.reads_prefix_cache {
            return prefix;
        }
        let max_blocks = (seq.num_tokens() - 1) / self.config.block_size;
        while prefix.num_blocks < max_blocks {
            let hash = seq.block_hash(prefix.num_blocks, self.config.block_size);
            let Some(cached) = self.pool.find(&hash) else {
                break;
            };
            prefix.num_blocks += 1;
            prefix.num_free += u32::from(cached.is_free);
        }
        prefix
    }
}
