//! What sequences need of the pool, over all KV groups.
//!
//! Laws. A sequence that is alone never holds more blocks than [`KvLayout::max_held`] says for its length, however it is cut into steps. That
//! number grows with the length, so there is a longest sequence that the pool can hold. The output of every sequence is
//! clipped to it, so that whoever is first in the running set can always go on.

use crate::config::{MAX_POSITIONS, SchedulerConfig};
use crate::kv_group::KvGroup;
use crate::policy::Policies;

/// The KV groups and what follows from them.
#[derive(Debug)]
#[cfg_attr(feature = "model", derive(Clone))]
pub(crate) struct KvLayout {
    groups: Vec<KvGroup>,
    /// Which of them attend to everything.
    full: Vec<usize>,
    /// The others.
    windows: Vec<(usize, KvGroup)>,
    block_size: u32,
    /// The most positions of one sequence in a step.
    max_chunk: u32,
    max_positions: u32,
}

impl KvLayout {
    /// For limits and policies that were validated.
    pub(super) fn new(config: &SchedulerConfig, policies: &Policies) -> Self {
        let indexed = || config.groups.iter().copied().enumerate();
        let is_full = |&(_, group): &(usize, KvGroup)| group == KvGroup::Full;
        let scheduled = policies.max_num_scheduled_tokens.unwrap_or(u32::MAX);
        let mut layout = Self {
            groups: config.groups.clone(),
            full: indexed().filter(is_full).map(|(at, _)| at).collect(),
            windows: indexed().filter(|group| !is_full(group)).collect(),
            block_size: config.block_size,
            max_chunk: scheduled.min(config.max_num_batched_tokens - policies.draft_slots),
            max_positions: 0,
        };
        layout.max_positions = layout.longest(config.num_blocks - 1);
        layout
    }

    /// The most positions of a sequence that the pool can hold.
    pub(crate) fn max_positions(&self) -> u32 {
        self.max_positions
    }

    pub(crate) fn block_size(&self) -> u32 {
        self.block_size
    }

    pub(crate) fn num_groups(&self) -> u32 {
        self.groups.len() as u32
    }

    pub(crate) fn groups(&self) -> &[KvGroup] {
        &self.groups
    }

    /// The indices of the groups that attend to everything.
    pub(super) fn full(&self) -> &[usize] {
        &self.full
    }

    /// The groups that attend to a window, with their indices.
    pub(crate) fn windows(&self) -> &[(usize, KvGroup)] {
        &self.windows
    }

    /// The most blocks that a sequence of `len` positions holds in one group at one time, if it is alone.
    pub(crate) fn max_held_in(&self, group: KvGroup, len: u32) -> u32 {
        let whole = len.div_ceil(self.block_size);
        whole.min(self.max_touched(group, len))
    }

    /// The most blocks of one group that a step touches for a sequence with `len` positions left.
    pub(super) fn max_touched(&self, group: KvGroup, len: u32) -> u32 {
        group.max_touched(len.min(self.max_chunk), self.block_size)
    }

    /// The same over all groups.
    pub(super) fn max_held(&self, len: u32) -> u32 {
        let each = self.groups.iter().map(|&group| self.max_held_in(group, len));
        each.fold(0, u32::saturating_add)
    }

    /// The longest sequence for this many blocks, which are enough for one position.
    fn longest(&self, num_blocks: u32) -> u32 {
        let (mut fits, mut limit) = (1, MAX_POSITIONS);
        while fits < limit {
            let middle = fits + (limit - fits).div_ceil(2);
            if self.max_held(middle) <= num_blocks {
                fits = middle;
            } else {
                limit = middle - 1;
            }
        }
        fits
    }
}
