//! How much of a sequence is cached.
//!
//! Law: a sequence starts behind the largest number of whole blocks, leaving at least one token to compute, such that every group has cached what
//! the next position reads: a group with full attention all of the blocks, a group with a window those that the window reaches
//! into. Blocks of a window group in front of that may be gone.
//!
//! That is the greatest fixed point of shortening the hit to what each group allows, and one pass from each side finds it. What the full groups have
//! in common is a run from the start, and any shorter run will do for them. From its end a pass goes backwards through the window groups
//! together: a block that is missing ends the hit in front of it, since every longer hit that the pass has left would need the same block. No
//! block is looked for twice.

use kvasir_cache_key::BlockHash;

use super::Scheduler;
use super::admit::Prefix;
use super::layout::KvLayout;
use crate::arena::Slot;
use crate::block::{BlockPool, Cached, CachedBlock};
use crate::ids::GroupId;
use crate::kv_group::KvGroup;
use crate::sequence::Sequence;

/// The cached blocks that the sequence under consideration can start behind. Scratch memory.
#[derive(Debug, Default)]
#[cfg_attr(feature = "model", derive(Clone))]
pub(super) struct Hits {
    /// Of the groups with full attention: from the first block on, one of each group.
    runs: Vec<Cached>,
    /// Of the groups with a window, with the group: from the last block backwards.
    tails: Vec<(usize, Cached)>,
}

impl Hits {
    pub(super) fn clear(&mut self) {
        self.runs.clear();
        self.tails.clear();
    }

    /// How many of the full groups' blocks nobody holds: sharing them uses up free blocks.
    pub(super) fn num_free_in_runs(&self) -> u32 {
        self.runs.iter().filter(|cached| cached.is_free).count() as u32
    }

    /// How many of a window group's blocks nobody holds.
    pub(super) fn num_free_in_tail(&self, group: usize) -> u32 {
        let tail = self.tails.iter().filter(|(of, _)| *of == group);
        tail.filter(|(_, cached)| cached.is_free).count() as u32
    }

    /// Finds the run that all full groups have, of at most `max_blocks`, and gives its length.
    fn find_runs(&mut self, seq: &mut Sequence, pool: &BlockPool, layout: &KvLayout, max_blocks: u32) -> u32 {
        if layout.full().is_empty() {
            return max_blocks;
        }
        for index in 0..max_blocks {
            let hash = seq.block_hash(index, layout.block_size());
            for &group in layout.full() {
                let Some(cached) = pool.find(&content(group, hash)) else {
                    self.cut_runs(index, layout);
                    return index;
                };
                self.runs.push(cached);
            }
        }
        max_blocks
    }

    fn cut_runs(&mut self, num_blocks: u32, layout: &KvLayout) {
        self.runs.truncate(num_blocks as usize * layout.full().len());
    }

    /// Shortens a hit until every window that ends with it is cached, and gives its length.
    fn find_tails(
        &mut self,
        seq: &mut Sequence,
        pool: &BlockPool,
        layout: &KvLayout,
        num_blocks: u32,
    ) -> u32 {
        let size = layout.block_size();
        let (mut end, mut index) = (num_blocks, num_blocks);
        let behind = |group: KvGroup, end: u32| group.num_behind(end * size, size);
        // The window that reaches farthest back.
        let start = |end: u32| {
            layout
                .windows()
                .iter()
                .map(|&(_, group)| behind(group, end))
                .min()
        };
        while start(end).is_some_and(|start| index > start) {
            index -= 1;
            let hash = seq.block_hash(index, size);
            for &(at, group) in layout.windows() {
                if index < behind(group, end) {
                    continue;
                }
                let Some(cached) = pool.find(&content(at, hash)) else {
                    end = index;
                    self.tails.clear();
                    break;
                };
                self.tails.push((at, cached));
            }
        }
        end
    }
}

fn content(group: usize, hash: BlockHash) -> CachedBlock {
    CachedBlock {
        group: GroupId(group as u8),
        hash,
    }
}

impl Scheduler {
    /// Looks for what is cached of a sequence; the blocks are in [`Scheduler::hits`] then, which were empty.
    pub(super) fn find_cached(&mut self, slot: Slot) -> Prefix {
        let seq = &mut self.seqs[slot];
        if !self.config.enable_prefix_caching || !seq.reads_prefix_cache {
            return Prefix::default();
        }
        // At least one token is computed: the cache holds KV, not the logits to sample from.
        let max_blocks = (seq.num_tokens() - 1) / self.config.block_size;
        let run = self.hits.find_runs(seq, &self.pool, &self.layout, max_blocks);
        let num_blocks = self.hits.find_tails(seq, &self.pool, &self.layout, run);
        self.hits.cut_runs(num_blocks, &self.layout);
        Prefix {
            num_blocks,
            num_tokens: num_blocks * self.config.block_size,
            leader: None,
        }
    }

    /// Blocks that a sequence of `num_tokens` needs beside those that it finds, if it starts behind `prefix`: those to be computed, and those of
    /// the found ones that nobody holds. A group with a window needs no more than a step touches.
    pub(super) fn num_needed(&self, num_tokens: u32, prefix: &Prefix) -> u32 {
        let num_new = num_tokens.div_ceil(self.config.block_size) - prefix.num_blocks;
        let full = num_new * self.layout.full().len() as u32 + self.hits.num_free_in_runs();
        let windows = self.layout.windows().iter().map(|&(at, group)| {
            // If a step computes all that is left, it touches no more than this.
            let whole = num_new + self.hits.num_free_in_tail(at);
            whole.min(self.layout.max_touched(group, num_tokens))
        });
        full + windows.sum::<u32>()
    }

    /// Begins the tables of a sequence with the cached blocks that were found for it, or, in window groups, with null blocks for what the
    /// position behind them doesn't read.
    pub(super) fn take_hits(&mut self, slot: Slot, num_tokens: u32) {
        let seq = &mut self.seqs[slot];
        seq.skip_to(num_tokens, &self.layout);
        let full = self.layout.full();
        for row in self.hits.runs.chunks(full.len().max(1)) {
            for (&group, &cached) in full.iter().zip(row) {
                seq.tables.get_mut(group).push(self.pool.share(cached));
            }
        }
        for &(group, cached) in self.hits.tails.iter().rev() {
            seq.tables.get_mut(group).push(self.pool.share(cached));
        }
        self.hits.clear();
    }
}

#[cfg(test)]
mod tests;
