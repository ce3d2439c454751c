//! Groups of layers whose KV is kept for different positions.
//!
//! A model's layers are divided into groups; each group has a block table per sequence, and all groups draw blocks from one pool. A block
//! holds the KV of `block_size` tokens for all layers of one group, so a group must need as many bytes per token as any other:
//! whoever divides the layers makes the groups equally large, if need be with layers of padding.

/// Which positions the layers of a group attend to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum KvGroup {
    /// All of them.
    Full,
    /// The last ones: position `p` reads `p - positions + 1` to `p`, itself among them.
    Window {
        /// The window's length, at least 1.
        positions: u32,
    },
}

impl KvGroup {
    /// Blocks at the start of a sequence that lie wholly behind the window of position `next`, so that neither it nor any later one reads them.
    ///
    /// What an executor's table has there may belong to another sequence already.
    pub fn num_behind(self, next: u32, block_size: u32) -> u32 {
        match self {
            Self::Full => 0,
            Self::Window { positions } => next.saturating_add(1).saturating_sub(positions) / block_size,
        }
    }

    /// The most blocks that a step touches for a sequence of which it computes `chunk` positions, wherever they are; for full attention there is
    /// no bound but the sequence's length.
    ///
    /// The step reads and writes `window - 1 + chunk` positions that follow each other. Wherever they begin, that are at
    /// most `ceil((window - 1 + chunk - 1) / block_size) + 1` blocks.
    pub(crate) fn max_touched(self, chunk: u32, block_size: u32) -> u32 {
        match self {
            Self::Full => u32::MAX,
            Self::Window { positions } => {
                let num_positions = u64::from(positions) + u64::from(chunk);
                let most = num_positions.saturating_sub(2).div_ceil(u64::from(block_size)) + 1;
                u32::try_from(most).unwrap_or(u32::MAX)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::KvGroup;

    /// The bound is reached, and never exceeded, wherever a step begins.
    #[test]
    fn a_window_group_holds_what_a_step_can_touch_and_no_less_would_do() {
        for (window, chunk, block_size) in every(1..7, 1..7, 1..5) {
            let group = KvGroup::Window { positions: window };
            for len in 1..40 {
                let held =
                    |first: u32, end: u32| end.div_ceil(block_size) - group.num_behind(first, block_size);
                let chunks = (0..len)
                    .flat_map(|first| (first + 1..=len.min(first + chunk)).map(move |end| (first, end)));
                let most = chunks.map(|(first, end)| held(first, end)).max();
                let bound = len
                    .div_ceil(block_size)
                    .min(group.max_touched(chunk.min(len), block_size));
                assert!(
                    most <= Some(bound),
                    "{group:?} chunk {chunk} block {block_size} len {len}"
                );
                if len > window + chunk + 2 * block_size {
                    assert_eq!(
                        most,
                        Some(bound),
                        "{group:?} chunk {chunk} block {block_size} len {len}"
                    );
                }
            }
        }
    }

    fn every(
        a: std::ops::Range<u32>,
        b: std::ops::Range<u32>,
        c: std::ops::Range<u32>,
    ) -> impl Iterator<Item = (u32, u32, u32)> {
        a.flat_map(move |a| {
            let c = c.clone();
            b.clone().flat_map(move |b| c.clone().map(move |c| (a, b, c)))
        })
    }

    #[test]
    fn blocks_are_behind_the_window_only_when_no_later_position_reads_them() {
        for (window, block_size) in [(1, 1), (1, 4), (3, 2), (4, 4), (5, 4), (9, 4)] {
            let group = KvGroup::Window { positions: window };
            for next in 0..40_u32 {
                let first_read = (next + 1).saturating_sub(window);
                let behind = (0..next + 2)
                    .filter(|block| (block + 1) * block_size <= first_read)
                    .count();
                assert_eq!(group.num_behind(next, block_size) as usize, behind);
                assert_eq!(KvGroup::Full.num_behind(next, block_size), 0);
            }
        }
    }
}
