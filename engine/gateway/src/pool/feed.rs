//! From what an engine's cache news says to what a router is told. No I/O.

use std::borrow::Cow;
use std::collections::BTreeSet;

use kvasir_client::KvCacheChange;
use kvasir_gateway_core::routing::{EngineAddress, Followed, KvBatch, Router, filed};

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
            KvCacheChange::Stored { group, hashes } => {
                let hashes = all_filed(*group, hashes);
                match &mut self.removed {
                    Some(removed) => {
                        for hash in &*hashes {
                            removed.remove(hash);
                        }
                        let followed = router.extend_snapshot(address, &hashes);
                        self.tell(followed, address);
                    }
                    None => self.batch(router, address, (&hashes, &[])),
                }
            }
            KvCacheChange::Removed { group, hashes } => {
                let hashes = all_filed(*group, hashes);
                match &mut self.removed {
                    Some(removed) => removed.extend(&*hashes),
                    None => self.batch(router, address, (&[], &hashes)),
                }
            }
            KvCacheChange::Complete => {
                let removed: Vec<u64> = self.removed.take().into_iter().flatten().collect();
                self.tell(router.finish_snapshot(address), address);
                if !removed.is_empty() {
                    self.batch(router, address, (&[], &removed));
                }
            }
            // More changes or a reset come after it.
            KvCacheChange::Lost(_) => {}
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

/// The names under which a group's blocks are filed; the first group's are their hashes.
fn all_filed(group: u32, hashes: &[u64]) -> Cow<'_, [u64]> {
    match group {
        0 => Cow::Borrowed(hashes),
        _ => hashes.iter().map(|hash| filed(group, *hash)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use kvasir_gateway_core::routing::{Capacity, Revision, RouteRequest, RouterConfig};
    use kvasir_gateway_core::time::Micros;

    use super::*;

    const NOW: Micros = Micros(0);

    fn address() -> EngineAddress {
        EngineAddress {
            pod_uid: "a".into(),
            epoch: 0,
            dp_rank: 0,
        }
    }

    fn router() -> Router {
        let mut router = Router::new(RouterConfig::default());
        let capacity = Capacity {
            num_blocks: 100,
            block_size: 16,
        };
        router
            .join(address(), &Revision("r".into()), capacity, NOW)
            .unwrap();
        router
    }

    fn stored(hashes: &[u64]) -> KvCacheChange {
        KvCacheChange::Stored {
            group: 0,
            hashes: hashes.to_vec(),
        }
    }

    fn removed(hashes: &[u64]) -> KvCacheChange {
        KvCacheChange::Removed {
            group: 0,
            hashes: hashes.to_vec(),
        }
    }

    /// Which of these the router thinks the engine holds.
    fn held(router: &mut Router, hashes: &[u64]) -> Vec<u64> {
        let holds = |hash: &&u64| {
            let request = RouteRequest {
                revision: &Revision("r".into()),
                prompt_tokens: 16,
                num_sequences: 1,
                hashes: std::slice::from_ref(*hash),
                session: None,
                excluded: &[],
                random: 0,
            };
            router.choose(&request, NOW).unwrap().overlap_blocks == 1
        };
        hashes.iter().filter(holds).copied().collect()
    }

    fn after(changes: &[KvCacheChange]) -> Vec<u64> {
        let (mut router, mut feed) = (router(), Feed::default());
        for change in changes {
            feed.apply(&mut router, &address(), change);
        }
        held(&mut router, &[1, 2, 3, 4, 5])
    }

    #[test]
    fn changes_between_pieces_of_a_snapshot_count_whatever_comes_first() {
        use KvCacheChange::{Complete, Reset};
        assert_eq!(after(&[Reset, stored(&[1, 2]), Complete]), [1, 2]);
        assert_eq!(
            after(&[Reset, stored(&[1, 2]), removed(&[1]), stored(&[3]), Complete]),
            [2, 3]
        );
        assert_eq!(after(&[Reset, removed(&[3]), stored(&[3]), Complete]), [3]);
    }

    #[test]
    fn batches_follow_a_snapshot_and_another_snapshot_replaces_all() {
        use KvCacheChange::{Complete, Lost, Reset};
        let first = [Reset, stored(&[1, 2]), Complete, removed(&[1]), stored(&[3])];
        assert_eq!(after(&first), [2, 3]);
        let lost = [Lost("gone".to_owned()), stored(&[4])];
        assert_eq!(after(&[&first[..], &lost].concat()), [2, 3, 4]);
        let again = [Reset, stored(&[5]), Complete, stored(&[1]), removed(&[5])];
        assert_eq!(after(&[&first[..], &again].concat()), [1]);
    }

    #[test]
    fn what_a_snapshot_replaces_answers_until_it_is_complete() {
        use KvCacheChange::{Complete, Reset};
        assert_eq!(after(&[Reset, stored(&[1]), Complete, Reset, stored(&[2])]), [1]);
    }

    #[test]
    fn groups_are_told_apart() {
        use KvCacheChange::{Complete, Reset};
        let other = KvCacheChange::Stored {
            group: 1,
            hashes: vec![2],
        };
        let gone = KvCacheChange::Removed {
            group: 1,
            hashes: vec![1],
        };
        assert_eq!(after(&[Reset, stored(&[1]), Complete, other, gone]), [1]);
        assert_eq!(all_filed(1, &[2])[..], [filed(1, 2)]);
    }
}
