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

    /// The groups with windows, in the order in which [`behind_windows`](Self::behind_windows) asks for them.
    pub(super) fn windows(&self) -> impl Iterator<Item = u32> + '_ {
        self.windows.iter().map(|(group, _)| *group)
    }

    /// The most of the first `num_blocks` blocks behind which a prompt can start, as far as windows decide. `run(window, block)` says whether the
    /// block of that window's group is there, and where the run of blocks begins that are all there, or all missing.
    ///
    /// From the end backwards: a block that is missing ends the hit in front of its run, since every longer one would read one of the run.
    pub(super) fn behind_windows(&self, num_blocks: u32, run: impl Fn(usize, u32) -> (bool, u32)) -> u32 {
        let mut end = num_blocks;
        let shortened = |end: u32| {
            let mut windows = self.windows.iter().enumerate();
            windows.find_map(|(window, (_, positions))| {
                let first_read = self.first_read(end, *positions);
                let mut block = end;
                while block > first_read {
                    let (is_held, start) = run(window, block - 1);
                    if !is_held {
                        return Some(start);
                    }
                    block = start;
                }
                None
            })
        };
        while let Some(shorter) = shortened(end) {
            end = shorter;
        }
        end
    }

    /// The first block that the position behind `end` blocks reads through a window; `end` if it reads none.
    fn first_read(&self, end: u32, positions: u32) -> u32 {
        let next = end.saturating_mul(self.block_size);
        next.saturating_add(1).saturating_sub(positions) / self.block_size
    }
}

/// The name under which a group's block is filed. Hashes spread over all bits, so names of two groups meet as rarely as two hashes.
pub fn filed(group: u32, hash: u64) -> u64 {
    hash ^ u64::from(group).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}
