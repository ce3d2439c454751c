//! From what an engine's cache news says to what a router is told. No I/O.

use std::collections::BTreeSet;

use kvasir_client::KvCacheChange;
use kvasir_gateway_core::routing::{EngineAddress, Followed, KvBatch, Router};

/// The group whose contents count: blocks of full attention, which a hit needs in any case.
const GROUP: u32 = 0;

/// Passes the changes of one engine on. [`KvCacheFollower`](kvasir_client::KvCacheFollower) has put them in order and left no gap, so numbers
/// are made here.
#[derive(Debug, Default)]
pub(super) struct Feed {
    /// The last batch that the router was told.
    seq: u64,
    /// Removed while a snapshot is incomplete, whose pieces may come before or after.
    removed: Option<BTreeSet<u64>>,
}

impl Feed {
    pub(super) fn apply(&mut self, router: &mut Router, address: &EngineAddress, change: &KvCacheChange) {
        match change {
            KvCacheChange::Reset => {
                self.removed = Some(BTreeSet::new());
                self.tell(router.begin_snapshot(address, self.seq), address);
            }
            KvCacheChange::Stored { group, hashes } if *group == GROUP => match &mut self.removed {
                Some(removed) => {
                    for hash in hashes {
                        removed.remove(hash);
                    }
                    let followed = router.extend_snapshot(address, hashes);
                    self.tell(followed, address);
                }
                None => self.batch(router, address, (hashes, &[])),
            },
            KvCacheChange::Removed { group, hashes } if *group == GROUP => match &mut self.removed {
                Some(removed) => removed.extend(hashes),
                None => self.batch(router, address, (&[], hashes)),
            },
            KvCacheChange::Complete => {
                let removed: Vec<u64> = self.removed.take().into_iter().flatten().collect();
                self.tell(router.finish_snapshot(address), address);
                if !removed.is_empty() {
                    self.batch(router, address, (&[], &removed));
                }
            }
            // Another group's, or a loss after which more changes or a reset come.
            KvCacheChange::Stored { .. } | KvCacheChange::Removed { .. } | KvCacheChange::Lost(_) => {}
        }
    }

    fn batch(&mut self, router: &mut Router, address: &EngineAddress, (stored, removed): (&[u64], &[u64])) {
        self.seq += 1;
        let batch = KvBatch {
            seq: self.seq,
            is_cleared: false,
            stored,
            removed,
        };
        let followed = router.apply(address, &batch);
        self.tell(followed, address);
    }

    fn tell(&self, followed: Followed, address: &EngineAddress) {
        if followed != Followed::Applied {
            tracing::debug!(engine = %address, seq = self.seq, ?followed, "cache news wasn't taken in");
        }
    }
}
