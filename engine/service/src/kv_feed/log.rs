//! The published contents, the last batches, and how far each reader is.

use std::collections::{BTreeSet, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use kvasir_cache_key::BlockHash;
use kvasir_client::types::kv_cache_update::Kind;
use kvasir_client::types::{
    KvCacheBatch, KvCachePosition, KvCacheSnapshot, KvCacheSource, KvCacheStart, KvCacheUpdate,
};
use kvasir_engine_core::{CachedBlock, GroupId};

use super::pending::{Change, Pending};

/// Largest sizes of messages and of the past that is kept for readers that come back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FeedLimits {
    /// Hashes in one message.
    pub(crate) message_hashes: usize,
    /// Batches that are kept.
    pub(crate) batches: usize,
    /// Hashes in all of them.
    pub(crate) ring_hashes: usize,
}

impl Default for FeedLimits {
    fn default() -> Self {
        // Half a mebibyte in a message; seven minutes of batches, eight mebibytes.
        Self {
            message_hashes: 1 << 16,
            batches: 4096,
            ring_hashes: 1 << 20,
        }
    }
}

/// One life of the sequence numbers. It begins with what can be found at its start, as number 0.
#[derive(Debug)]
pub(crate) struct KvLog {
    source: KvCacheSource,
    block_size: u32,
    limits: FeedLimits,
    contents: BTreeSet<CachedBlock>,
    /// Of the last batch.
    sequence: u64,
    ring: VecDeque<Arc<KvCacheBatch>>,
    /// In the ring.
    num_hashes: usize,
}

/// A reader's place.
#[derive(Debug)]
pub(crate) struct Cursor {
    /// Where the reader wants to go on, until it has started.
    resume_after: Option<KvCachePosition>,
    /// The life it reads; none before its start.
    source: Option<KvCacheSource>,
    /// The batch that it needs next.
    next: u64,
    stage: Stage,
}

#[derive(Clone, Copy, Debug)]
enum Stage {
    /// The snapshot's pieces up to here are told; none yet.
    Snapshot(Option<Short>),
    Live,
}

/// What of a content is told: its group and the first 8 bytes of its hash. In the order of the contents themselves.
type Short = (GroupId, u64);

impl Cursor {
    pub(crate) fn new(resume_after: Option<KvCachePosition>) -> Self {
        Self {
            resume_after,
            source: None,
            next: 0,
            stage: Stage::Live,
        }
    }
}

impl KvLog {
    pub(crate) fn new(
        source: KvCacheSource,
        block_size: u32,
        limits: FeedLimits,
        contents: BTreeSet<CachedBlock>,
    ) -> Self {
        Self {
            source,
            block_size,
            limits,
            contents,
            sequence: 0,
            ring: VecDeque::new(),
            num_hashes: 0,
        }
    }

    /// Makes batches of what has changed: one, or several if it is much or concerns several groups. None if nothing has.
    pub(crate) fn publish(&mut self, pending: Pending) {
        let all_cleared = pending.all_cleared && !self.contents.is_empty();
        if pending.all_cleared {
            self.contents.clear();
        }
        let mut batch = KvCacheBatch {
            all_cleared,
            ..KvCacheBatch::default()
        };
        let mut changes = pending.changes.into_iter().peekable();
        while let Some((content, change)) = changes.next() {
            // Contents that agree in 8 bytes are one to the readers; they lie side by side.
            let short = short(&content);
            let before = self.holds(short);
            self.change(content, change);
            while let Some((content, change)) = changes.next_if(|(content, _)| self::short(content) == short)
            {
                self.change(content, change);
            }
            let after = self.holds(short);
            if before == after {
                continue;
            }
            let group = u32::from(short.0.0);
            if len(&batch) == self.limits.message_hashes || (len(&batch) > 0 && batch.group != group) {
                self.push(std::mem::take(&mut batch));
            }
            batch.group = group;
            let hashes = if after {
                &mut batch.stored
            } else {
                &mut batch.removed
            };
            hashes.push(short.1);
        }
        if batch.all_cleared || len(&batch) > 0 {
            self.push(batch);
        }
    }

    /// What a reader has to be told next; `None` if it knows everything.
    pub(crate) fn next(&self, cursor: &mut Cursor) -> Option<KvCacheUpdate> {
        if cursor.source.as_ref() != Some(&self.source) {
            return Some(self.start(cursor));
        }
        if cursor.next <= self.sequence {
            return Some(match self.batch(cursor.next) {
                Some(batch) => {
                    cursor.next += 1;
                    update(Kind::Batch(batch.clone()))
                }
                // It was too slow.
                None => self.start(cursor),
            });
        }
        match cursor.stage {
            Stage::Live => None,
            Stage::Snapshot(after) => Some(self.piece(after, cursor)),
        }
    }

    fn start(&self, cursor: &mut Cursor) -> KvCacheUpdate {
        let from = cursor.resume_after.take().filter(|position| {
            position.source.as_ref() == Some(&self.source)
                && (position.sequence == self.sequence
                    || (position.sequence < self.sequence && self.batch(position.sequence + 1).is_some()))
        });
        let sequence = from.as_ref().map_or(self.sequence, |position| position.sequence);
        cursor.source = Some(self.source.clone());
        cursor.next = sequence + 1;
        cursor.stage = if from.is_some() {
            Stage::Live
        } else {
            Stage::Snapshot(None)
        };
        update(Kind::Start(KvCacheStart {
            source: Some(self.source.clone()),
            resumed: from.is_some(),
            sequence,
            block_size: self.block_size,
        }))
    }

    /// The contents behind `after`, as many as fit into a message. They are those after the last batch, all of which the reader has: so
    /// what it holds of the pieces so far stays right.
    fn piece(&self, after: Option<Short>, cursor: &mut Cursor) -> KvCacheUpdate {
        let behind = after.map_or(Bound::Unbounded, |(group, short)| {
            Bound::Excluded(greatest(group, short))
        });
        let mut contents = self
            .contents
            .range((behind, Bound::Unbounded))
            .map(short)
            .peekable();
        let mut piece = KvCacheSnapshot {
            group: contents.peek().map_or(0, |(group, _)| u32::from(group.0)),
            ..KvCacheSnapshot::default()
        };
        let mut last = after;
        while let Some(next) = contents.peek().copied() {
            if piece.hashes.len() == self.limits.message_hashes || u32::from(next.0.0) != piece.group {
                break;
            }
            piece.hashes.push(next.1);
            last = Some(next);
            while contents.next_if_eq(&next).is_some() {}
        }
        piece.last = contents.peek().is_none();
        cursor.stage = if piece.last {
            Stage::Live
        } else {
            Stage::Snapshot(last)
        };
        update(Kind::Snapshot(piece))
    }

    fn batch(&self, sequence: u64) -> Option<&KvCacheBatch> {
        let first = self.ring.front()?.sequence;
        let index = usize::try_from(sequence.checked_sub(first)?).ok()?;
        self.ring.get(index).map(|batch| &**batch)
    }

    fn push(&mut self, mut batch: KvCacheBatch) {
        self.sequence += 1;
        batch.sequence = self.sequence;
        self.num_hashes += len(&batch);
        self.ring.push_back(Arc::new(batch));
        while self.ring.len() > self.limits.batches || self.num_hashes > self.limits.ring_hashes {
            let Some(oldest) = self.ring.pop_front() else {
                break;
            };
            self.num_hashes -= len(&oldest);
        }
    }

    fn change(&mut self, content: CachedBlock, change: Change) {
        match change {
            Change::Stored => self.contents.insert(content),
            Change::Removed => self.contents.remove(&content),
        };
    }

    fn holds(&self, (group, short): Short) -> bool {
        let range = least(group, short)..=greatest(group, short);
        self.contents.range(range).next().is_some()
    }
}

fn update(kind: Kind) -> KvCacheUpdate {
    KvCacheUpdate { kind: Some(kind) }
}

fn len(batch: &KvCacheBatch) -> usize {
    batch.stored.len() + batch.removed.len()
}

fn short(content: &CachedBlock) -> Short {
    (content.group, content.hash.short())
}

/// The first content that could have this short form.
fn least(group: GroupId, short: u64) -> CachedBlock {
    filled(group, short, 0)
}

/// The last one.
fn greatest(group: GroupId, short: u64) -> CachedBlock {
    filled(group, short, u8::MAX)
}

fn filled(group: GroupId, short: u64, rest: u8) -> CachedBlock {
    let mut hash = [rest; 32];
    hash[..8].copy_from_slice(&short.to_be_bytes());
    CachedBlock {
        group,
        hash: BlockHash(hash),
    }
}
