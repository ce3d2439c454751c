//! What happens to cached content, for those who route requests to it (rule B9).
//!
//! A set: content is *stored* when the first block holds it and *removed* when the last one is overwritten, so that a reader who applies
//! the events in order always has exactly the contents that can be found.

use kvasir_cache_key::BlockHash;

use crate::ids::SeqId;

/// A change of what can be found in the prefix cache.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum BlockEvent {
    /// Content can be found now.
    Stored {
        /// The sequence that computed it.
        seq: SeqId,
        /// Its identity, which stands for all tokens up to its end.
        hash: BlockHash,
    },
    /// Content can't be found any more: its last block is overwritten.
    Removed {
        /// The sequence that needed the block.
        seq: SeqId,
        /// Its identity.
        hash: BlockHash,
    },
    /// Nothing can be found any more.
    AllCleared,
}

/// A buffer of events that records only if it is told to.
#[derive(Debug)]
#[cfg_attr(feature = "model", derive(Clone))]
pub(crate) struct BlockLog {
    is_on: bool,
    /// On whose behalf blocks are taken and content is stored.
    actor: SeqId,
    events: Vec<BlockEvent>,
}

impl Default for BlockLog {
    fn default() -> Self {
        Self {
            is_on: false,
            actor: SeqId(0),
            events: Vec::new(),
        }
    }
}

impl BlockLog {
    pub(crate) fn turn_on(&mut self) {
        self.is_on = true;
    }

    /// What follows is done for this sequence.
    pub(crate) fn act_for(&mut self, seq: SeqId) {
        self.actor = seq;
    }

    /// Moves all events so far to the end of `into`.
    pub(crate) fn take(&mut self, into: &mut Vec<BlockEvent>) {
        into.append(&mut self.events);
    }

    pub(super) fn stored(&mut self, hash: BlockHash) {
        let seq = self.actor;
        self.push(BlockEvent::Stored { seq, hash });
    }

    pub(super) fn removed(&mut self, hash: BlockHash) {
        let seq = self.actor;
        self.push(BlockEvent::Removed { seq, hash });
    }

    pub(super) fn cleared(&mut self) {
        self.push(BlockEvent::AllCleared);
    }

    fn push(&mut self, event: BlockEvent) {
        if self.is_on {
            self.events.push(event);
        }
    }
}
