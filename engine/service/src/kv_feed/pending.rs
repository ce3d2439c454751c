//! What has changed since the last batch.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use kvasir_engine_core::{BlockEvent, CachedBlock};

/// A change of one content.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Change {
    Stored,
    Removed,
}

/// Net changes. The events of one content alternate (it is stored only if it can't be found, and removed only if it can), so each pair of
/// them cancels, and there are never more entries than contents before and after.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    /// Everything before was forgotten.
    pub(super) all_cleared: bool,
    pub(super) changes: BTreeMap<CachedBlock, Change>,
}

impl Pending {
    pub(crate) fn is_empty(&self) -> bool {
        !self.all_cleared && self.changes.is_empty()
    }

    pub(crate) fn apply(&mut self, event: &BlockEvent) {
        match *event {
            BlockEvent::Stored { group, hash, .. } => {
                self.note(CachedBlock { group, hash }, Change::Stored);
            }
            BlockEvent::Removed { group, hash, .. } => {
                self.note(CachedBlock { group, hash }, Change::Removed);
            }
            BlockEvent::AllCleared => {
                self.changes.clear();
                self.all_cleared = true;
            }
        }
    }

    fn note(&mut self, content: CachedBlock, change: Change) {
        match self.changes.entry(content) {
            Entry::Occupied(before) if *before.get() != change => {
                before.remove();
            }
            Entry::Occupied(_) => {}
            Entry::Vacant(place) => {
                place.insert(change);
            }
        }
    }
}
