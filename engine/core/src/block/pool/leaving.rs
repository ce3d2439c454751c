//! Tables that are given back, at once or in slices.
//!
//! Law: giving back the table of a very long sequence makes no step long, and its blocks count as free from the beginning. Until the slice that
//! frees them they keep their references, and the tables that are leaving are the only ones to hold them.

use std::collections::VecDeque;

use super::{BlockPool, BlockRef};
use crate::ids::BlockId;

/// Giving back this many blocks takes well below a millisecond.
pub(super) const SLICE: usize = 4096;

/// Long tables on their way back.
#[derive(Debug)]
#[cfg_attr(feature = "model", derive(Clone))]
pub(super) struct Leaving {
    /// The next one first, each from its end.
    pub(super) tables: VecDeque<Vec<BlockRef>>,
    /// How many references of each block are in `tables`.
    pub(super) num_refs: Vec<u32>,
    /// Blocks all of whose references are in `tables`, one or more.
    pub(super) num_blocks: u32,
    /// Blocks of a table that are given back at once.
    slice: usize,
}

impl Leaving {
    pub(super) fn new(num_blocks: u32, slice: usize) -> Self {
        Self {
            tables: VecDeque::new(),
            num_refs: super::touched_zeros(num_blocks),
            num_blocks: 0,
            slice,
        }
    }
}

impl BlockPool {
    /// Gives a whole table back, last block first: the end of a sequence is less likely to be asked for again than its start.
    pub(crate) fn release_all(&mut self, table: &mut Vec<BlockRef>) {
        if table.len() > self.leaving.slice {
            self.release_later(std::mem::take(table));
        }
        while let Some(block) = table.pop() {
            self.release(block);
        }
    }

    pub(super) fn release_later(&mut self, table: Vec<BlockRef>) {
        for block in &table {
            self.leaving.num_refs[block.0.0 as usize] += 1;
            self.leaving.num_blocks += u32::from(self.is_as_good_as_free(block.0));
        }
        self.leaving.tables.push_back(table);
    }

    /// Gives back the next slice of what is leaving. To be called once a step.
    pub(crate) fn settle_slice(&mut self) {
        self.settle(self.leaving.slice);
    }

    pub(super) fn settle(&mut self, num_blocks: usize) {
        for _ in 0..num_blocks {
            let Some(table) = self.leaving.tables.front_mut() else {
                return;
            };
            let Some(block) = table.pop() else {
                self.leaving.tables.pop_front();
                continue;
            };
            self.leaving.num_blocks -= u32::from(self.is_as_good_as_free(block.0));
            self.leaving.num_refs[block.0.0 as usize] -= 1;
            self.release(block);
        }
    }

    /// Gives back everything that is leaving.
    pub(super) fn settle_all(&mut self) {
        while !self.leaving.tables.is_empty() {
            self.settle(1);
        }
    }

    /// Whether nobody holds a block but tables that are leaving.
    pub(super) fn is_as_good_as_free(&self, id: BlockId) -> bool {
        self.num_refs[id.0 as usize] == self.leaving.num_refs[id.0 as usize]
    }
}
