//! The set that a reader of an engine's cache news holds. No I/O.

use std::collections::BTreeSet;

use crate::types::kv_cache_update::Kind;
use crate::types::{
    KvCacheBatch, KvCachePosition, KvCacheSnapshot, KvCacheSource, KvCacheStart, KvCacheUpdate,
};

/// How the set has changed.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum KvCacheChange {
    /// It is empty now and will be filled: the reader has started over, or begun.
    Reset,
    /// Contents can be found.
    Stored {
        /// The KV group: layers that need the same blocks.
        group: u32,
        /// The first 8 bytes of each hash, see `BlockHash::short` of `kvasir-cache-key`.
        hashes: Vec<u64>,
    },
    /// Contents can't be found any more.
    Removed {
        /// The KV group.
        group: u32,
        /// As of `Stored`.
        hashes: Vec<u64>,
    },
    /// The snapshot is complete: from here on the set is exact.
    Complete,
    /// The stream was lost, for this reason. The set stays what it was and is out of date until the next change.
    Lost(String),
}

/// An update that doesn't follow from those before it. The reader has to start over.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum KvCacheViewError {
    /// Nothing comes before the start.
    #[error("the engine told of its cache before it said whose it is")]
    NotStarted,
    /// A start without a source.
    #[error("the engine didn't say whose cache it tells of")]
    NoSource,
    /// It goes on from another place than the reader is at.
    #[error("the engine goes on after batch {engine}, and this reader is at {reader}")]
    WrongResume {
        /// Of the engine.
        engine: u64,
        /// Of the reader.
        reader: u64,
    },
    /// A batch is missing.
    #[error("batch {found} came where {expected} was expected")]
    Gap {
        /// The number that came.
        found: u64,
        /// The number that follows.
        expected: u64,
    },
    /// The engine tells of more contents than the reader may hold.
    #[error("the engine tells of more than {limit} contents, which is this reader's limit")]
    TooMany {
        /// Contents.
        limit: usize,
    },
}

/// What an engine's cache holds, as far as it has told.
#[derive(Clone, Debug)]
pub struct KvCacheView {
    held: BTreeSet<(u32, u64)>,
    max_held: usize,
    source: Option<KvCacheSource>,
    sequence: u64,
    block_size: u32,
    is_complete: bool,
}

impl KvCacheView {
    /// An empty view that holds at most `max_held` contents.
    pub fn new(max_held: usize) -> Self {
        Self {
            held: BTreeSet::new(),
            max_held,
            source: None,
            sequence: 0,
            block_size: 0,
            is_complete: false,
        }
    }

    /// Applies the next update.
    ///
    /// # Errors
    /// If it doesn't follow from those before. The view has forgotten everything then.
    pub fn apply(&mut self, update: KvCacheUpdate) -> Result<Vec<KvCacheChange>, KvCacheViewError> {
        let applied = match update.kind {
            Some(Kind::Start(start)) => self.start(start),
            Some(Kind::Snapshot(piece)) => self.piece(piece),
            Some(Kind::Batch(batch)) => self.batch(batch),
            // From a newer engine, about something that must not be relied on.
            None => Ok(Vec::new()),
        };
        if applied.is_err() {
            *self = Self::new(self.max_held);
        }
        applied
    }

    /// Whether a content can be found, by group and the first 8 bytes of its hash.
    pub fn contains(&self, group: u32, hash: u64) -> bool {
        self.held.contains(&(group, hash))
    }

    /// Contents of all groups.
    pub fn len(&self) -> usize {
        self.held.len()
    }

    /// Whether nothing can be found.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// All contents, by group and hash, in order.
    pub fn iter(&self) -> impl Iterator<Item = (u32, u64)> {
        self.held.iter().copied()
    }

    /// Whether a whole snapshot was applied, so that the set is exact.
    pub fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// Whose cache it is, once the engine has said so.
    pub fn source(&self) -> Option<&KvCacheSource> {
        self.source.as_ref()
    }

    /// Tokens in a block; 0 before the start.
    pub fn block_size(&self) -> u32 {
        self.block_size
    }

    /// Where to go on after a loss; none while a snapshot is incomplete.
    pub fn position(&self) -> Option<KvCachePosition> {
        self.is_complete.then(|| KvCachePosition {
            source: self.source.clone(),
            sequence: self.sequence,
        })
    }

    fn start(&mut self, start: KvCacheStart) -> Result<Vec<KvCacheChange>, KvCacheViewError> {
        let source = start.source.ok_or(KvCacheViewError::NoSource)?;
        if start.resumed {
            let is_here = self.is_complete && self.source.as_ref() == Some(&source);
            if !is_here || self.sequence != start.sequence {
                return Err(KvCacheViewError::WrongResume {
                    engine: start.sequence,
                    reader: self.sequence,
                });
            }
            return Ok(Vec::new());
        }
        *self = Self {
            source: Some(source),
            sequence: start.sequence,
            block_size: start.block_size,
            ..Self::new(self.max_held)
        };
        Ok(vec![KvCacheChange::Reset])
    }

    fn piece(&mut self, piece: KvCacheSnapshot) -> Result<Vec<KvCacheChange>, KvCacheViewError> {
        if self.source.is_none() {
            return Err(KvCacheViewError::NotStarted);
        }
        let mut changes = Vec::new();
        self.store(piece.group, piece.hashes, &mut changes)?;
        if piece.last && !self.is_complete {
            self.is_complete = true;
            changes.push(KvCacheChange::Complete);
        }
        Ok(changes)
    }

    fn batch(&mut self, batch: KvCacheBatch) -> Result<Vec<KvCacheChange>, KvCacheViewError> {
        if self.source.is_none() {
            return Err(KvCacheViewError::NotStarted);
        }
        let expected = self.sequence.saturating_add(1);
        if batch.sequence != expected {
            return Err(KvCacheViewError::Gap {
                found: batch.sequence,
                expected,
            });
        }
        self.sequence = expected;
        let mut changes = Vec::new();
        if batch.all_cleared {
            self.clear(&mut changes);
        }
        let mut hashes = batch.removed;
        hashes.retain(|&hash| self.held.remove(&(batch.group, hash)));
        if !hashes.is_empty() {
            changes.push(KvCacheChange::Removed {
                group: batch.group,
                hashes,
            });
        }
        self.store(batch.group, batch.stored, &mut changes)?;
        Ok(changes)
    }

    fn store(
        &mut self,
        group: u32,
        mut hashes: Vec<u64>,
        changes: &mut Vec<KvCacheChange>,
    ) -> Result<(), KvCacheViewError> {
        hashes.retain(|&hash| self.held.insert((group, hash)));
        if self.held.len() > self.max_held {
            return Err(KvCacheViewError::TooMany { limit: self.max_held });
        }
        if !hashes.is_empty() {
            changes.push(KvCacheChange::Stored { group, hashes });
        }
        Ok(())
    }

    /// Takes everything out, one change per group.
    fn clear(&mut self, changes: &mut Vec<KvCacheChange>) {
        for (group, hash) in std::mem::take(&mut self.held) {
            match changes.last_mut() {
                Some(KvCacheChange::Removed { group: last, hashes }) if *last == group => hashes.push(hash),
                _ => changes.push(KvCacheChange::Removed {
                    group,
                    hashes: vec![hash],
                }),
            }
        }
    }
}

#[cfg(test)]
#[path = "view_tests.rs"]
mod tests;
