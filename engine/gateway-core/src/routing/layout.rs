//! Behind which blocks a prompt can start, for models whose layers don't all keep the same positions.
//!
//! Layers that keep KV for the same positions are a group, and an engine reports the blocks of each group. A prompt starts behind the largest
//! number of blocks such that every group has what the next position reads: a group with full attention all of them, a group with a window those
//! that the window reaches into (the law of the engine's own lookup, `engine-core`'s `scheduler/lookup.rs`).

/// What the layers of a group keep.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum KvGroup {
    /// KV of all positions.
    Full,
    /// KV of the last ones: a position reads so many, itself among them.
    Window {
        /// The window's length, at least 1.
        positions: u32,
    },
}

/// The groups of a model, by number.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct CacheLayout {
    block_size: u32,
    full: Vec<u32>,
    windows: Vec<(u32, u32)>,
}

impl Default for CacheLayout {
    /// One group with full attention, as most models have.
    fn default() -> Self {
        Self::new(1, &[KvGroup::Full])
    }
}

impl CacheLayout {
    /// Groups counted from 0, of blocks of so many tokens. Without any it's as if there were one with full attention.
    pub fn new(block_size: u32, groups: &[KvGroup]) -> Self {
        let groups = if groups.is_empty() {
            &[KvGroup::Full]
        } else {
            groups
        };
        let mut layout = Self {
            block_size: block_size.max(1),
            full: Vec::new(),
            windows: Vec::new(),
        };
        for (number, group) in (0..).zip(groups) {
            match *group {
                KvGroup::Full => layout.full.push(number),
                KvGroup::Window { positions } => layout.windows.push((number, positions)),
            }
        }
        layout
    }

    /// The groups with full attention.
    pub(super) fn full(&self) -> &[u32] {
        &self.full
    }

    pub(super) fn has_windows(&self) -> bool {
        !self.windows.is_empty()
    }

    /// The most of the first `num_blocks` blocks behind which a prompt can start, as far as windows decide: `holds(group, block)` says what is
    /// there.
    ///
    /// From the end backwards: a block that is missing ends the hit in front of it, since every longer one would need it too.
    pub(super) fn behind_windows(&self, num_blocks: u32, holds: impl Fn(u32, u32) -> bool) -> u32 {
        let (mut end, mut block) = (num_blocks, num_blocks);
        while block > 0 {
            let read: Vec<u32> = self.groups_that_read(block - 1, end).collect();
            if read.is_empty() {
                break;
            }
            block -= 1;
            if !read.into_iter().all(|group| holds(group, block)) {
                end = block;
            }
        }
        end
    }

    /// Window groups that read a block when a prompt starts behind `end` blocks.
    fn groups_that_read(&self, block: u32, end: u32) -> impl Iterator<Item = u32> + '_ {
        let next = end.saturating_mul(self.block_size);
        let num_behind =
            move |positions: u32| next.saturating_add(1).saturating_sub(positions) / self.block_size;
        let reading = self
            .windows
            .iter()
            .filter(move |(_, positions)| block >= num_behind(*positions));
        reading.map(|(group, _)| *group)
    }
}

/// The name under which a group's block is filed. Hashes spread over all bits, so names of two groups meet as rarely as two hashes.
pub fn filed(group: u32, hash: u64) -> u64 {
    hash ^ u64::from(group).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}
