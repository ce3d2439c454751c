//! How a router follows what engines say about their blocks.

use super::address::EngineAddress;
use super::feed::{Followed, KvBatch};
use super::index::Holder;
use super::router::Router;

impl Router {
    /// Takes in a batch.
    pub fn apply(&mut self, address: &EngineAddress, batch: &KvBatch<'_>) -> Followed {
        let Some(engine) = self.find(address).and_then(|id| self.engine_mut(id)) else {
            return Followed::UnknownEngine;
        };
        let followed = engine.apart.feed.batch(batch.seq);
        let holder = engine.holder;
        if followed != Followed::Applied {
            return followed;
        }
        let Some(mut holder) = holder else {
            return followed;
        };
        if batch.is_cleared {
            match self.move_to_new_holder(address) {
                Some(new) => holder = new,
                None => return followed,
            }
        }
        self.index.remove(holder, batch.removed);
        self.index.store(holder, batch.stored);
        self.index.sweep(super::SHARDS_PER_BATCH);
        followed
    }

    /// A snapshot begins that includes the batches up to `seq`. What was known before answers until it's complete.
    pub fn begin_snapshot(&mut self, address: &EngineAddress, seq: u64) -> Followed {
        let Some(id) = self.find(address) else {
            return Followed::UnknownEngine;
        };
        let new = self.index.attach();
        let Some(engine) = self.engine_mut(id) else {
            return Followed::UnknownEngine;
        };
        let unfinished = engine.apart.snapshot.take();
        engine.apart.snapshot = new.map(|holder| (holder, seq));
        if let Some((holder, _)) = unfinished {
            self.index.retire(holder);
        }
        Followed::Applied
    }

    /// A part of a snapshot.
    pub fn extend_snapshot(&mut self, address: &EngineAddress, hashes: &[u64]) -> Followed {
        let Some(engine) = self.find(address).and_then(|id| self.engine_mut(id)) else {
            return Followed::UnknownEngine;
        };
        let Some((holder, _)) = engine.apart.snapshot else {
            return Followed::Ignored;
        };
        self.index.store(holder, hashes);
        Followed::Applied
    }

    /// The snapshot is complete and takes the place of what was known, unless that is newer.
    pub fn finish_snapshot(&mut self, address: &EngineAddress) -> Followed {
        let Some(engine) = self.find(address).and_then(|id| self.engine_mut(id)) else {
            return Followed::UnknownEngine;
        };
        let Some((new, seq)) = engine.apart.snapshot.take() else {
            return Followed::Ignored;
        };
        let followed = engine.apart.feed.snapshot(seq);
        let outdated = if followed == Followed::Applied {
            engine.holder.replace(new)
        } else {
            Some(new)
        };
        if let Some(outdated) = outdated {
            self.index.retire(outdated);
        }
        followed
    }

    fn move_to_new_holder(&mut self, address: &EngineAddress) -> Option<Holder> {
        let id = self.find(address)?;
        let new = self.index.attach();
        let engine = self.engine_mut(id)?;
        let old = std::mem::replace(&mut engine.holder, new);
        if let Some(old) = old {
            self.index.retire(old);
        }
        new
    }
}
