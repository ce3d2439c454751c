//! What happens to cached content, for those who route requests to it (rule B9).
//!
//! A set: content is *stored* when the first block holds it and *removed* when the last one is overwritten. Laws: a reader who applies the
//! events in order to an empty set, from the beginning on, always has exactly the contents that can be found. So has one who begins later
//! with all of [`Scheduler::cached_blocks`](crate::Scheduler::cached_blocks) and applies the events that are taken after that, even if some
//! of them are older than what it began with.

use std::ops::Range;

use kvasir_cache_key::BlockHash;

use crate::ids::{GroupId, SeqId, TokenId};

/// A change of what can be found in the prefix cache.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum BlockEvent {
    /// Content can be found now.
    Stored {
        /// The sequence that computed it.
        seq: SeqId,
        /// The KV group whose layers' KV it is.
        group: GroupId,
        /// Its identity, which stands for all tokens up to its end.
        hash: BlockHash,
        /// The identity of the block in front of it in the sequence; none for a sequence's first block.
        parent: Option<BlockHash>,
        /// Which block of the sequence it is, from 0: it holds the positions from `index * block_size` on.
        index: u32,
        /// Its `block_size` tokens, a range of [`BlockEvents::tokens`]; empty unless [`BlockEventDetail::Tokens`] was asked for.
        tokens: Range<usize>,
    },
    /// Content can't be found any more: its last block is overwritten.
    Removed {
        /// The sequence that needed the block.
        seq: SeqId,
        /// The KV group.
        group: GroupId,
        /// Its identity.
        hash: BlockHash,
    },
    /// Nothing can be found any more, in any group.
    AllCleared,
}

/// What [`Scheduler::take_block_events`](crate::Scheduler::take_block_events) fills: flat buffers that are used again and again.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct BlockEvents {
    /// In the order in which they happened.
    pub events: Vec<BlockEvent>,
    /// Tokens of the stored blocks, addressed by [`BlockEvent::Stored`].
    pub tokens: Vec<TokenId>,
}

/// How much is recorded of each change.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum BlockEventDetail {
    /// Nothing.
    #[default]
    Off,
    /// Identities: enough to know who has what.
    Hashes,
    /// The tokens of each stored block too.
    Tokens,
}

/// Content that can be found.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct CachedBlock {
    /// The KV group whose layers' KV it is.
    pub group: GroupId,
    /// Its identity.
    pub hash: BlockHash,
}

/// A full block of a sequence on its way into the index.
#[derive(Clone, Copy)]
pub(crate) struct Content<'a> {
    pub(crate) group: GroupId,
    pub(crate) hash: BlockHash,
    pub(crate) parent: Option<BlockHash>,
    pub(crate) index: u32,
    pub(crate) tokens: &'a [TokenId],
}

#[cfg(test)]
impl Content<'_> {
    pub(crate) fn key(&self) -> CachedBlock {
        CachedBlock {
            group: self.group,
            hash: self.hash,
        }
    }
}

impl BlockEvents {
    /// Buffers without events.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes all events out and keeps the buffers.
    fn clear(&mut self) {
        self.events.clear();
        self.tokens.clear();
    }
}

/// A buffer of events that records only what it is told to.
#[derive(Debug)]
#[cfg_attr(feature = "model", derive(Clone))]
pub(crate) struct BlockLog {
    detail: BlockEventDetail,
    /// On whose behalf blocks are taken and content is stored.
    actor: SeqId,
    recorded: BlockEvents,
}

impl BlockLog {
    pub(super) fn new() -> Self {
        Self {
            detail: BlockEventDetail::Off,
            actor: SeqId(0),
            recorded: BlockEvents::new(),
        }
    }

    /// From now on this much is recorded. What was recorded stays, but for turning it off.
    pub(crate) fn set_detail(&mut self, detail: BlockEventDetail) {
        self.detail = detail;
        if detail == BlockEventDetail::Off {
            self.recorded.clear();
        }
    }

    /// What follows is done for this sequence.
    pub(crate) fn act_for(&mut self, seq: SeqId) {
        self.actor = seq;
    }

    /// Exchanges the events so far for the emptied buffers of the caller.
    pub(crate) fn take(&mut self, into: &mut BlockEvents) {
        into.clear();
        std::mem::swap(&mut self.recorded, into);
    }

    /// Whether anything is recorded.
    pub(super) fn is_on(&self) -> bool {
        self.detail != BlockEventDetail::Off
    }

    /// To be called only if it is on.
    pub(super) fn stored(&mut self, content: &Content<'_>) {
        let start = self.recorded.tokens.len();
        if self.detail == BlockEventDetail::Tokens {
            self.recorded.tokens.extend_from_slice(content.tokens);
        }
        self.recorded.events.push(BlockEvent::Stored {
            seq: self.actor,
            group: content.group,
            hash: content.hash,
            parent: content.parent,
            index: content.index,
            tokens: start..self.recorded.tokens.len(),
        });
    }

    pub(super) fn removed(&mut self, CachedBlock { group, hash }: CachedBlock) {
        let seq = self.actor;
        self.push(BlockEvent::Removed { seq, group, hash });
    }

    pub(super) fn cleared(&mut self) {
        self.push(BlockEvent::AllCleared);
    }

    fn push(&mut self, event: BlockEvent) {
        if self.is_on() {
            self.recorded.events.push(event);
        }
    }
}
