use super::*;
use crate::types::RankAddress;

fn source(log_id: u64) -> KvCacheSource {
    KvCacheSource {
        address: Some(RankAddress::default()),
        log_id,
    }
}

fn update(kind: Kind) -> KvCacheUpdate {
    KvCacheUpdate { kind: Some(kind) }
}

fn start(log_id: u64, sequence: u64, resumed: bool) -> KvCacheUpdate {
    update(Kind::Start(KvCacheStart {
        source: Some(source(log_id)),
        resumed,
        sequence,
        block_size: 16,
    }))
}

fn piece(hashes: &[u64], last: bool) -> KvCacheUpdate {
    update(Kind::Snapshot(KvCacheSnapshot {
        hashes: hashes.to_vec(),
        last,
        group: 0,
    }))
}

fn batch(sequence: u64, stored: &[u64], removed: &[u64]) -> KvCacheUpdate {
    update(Kind::Batch(KvCacheBatch {
        sequence,
        stored: stored.to_vec(),
        removed: removed.to_vec(),
        ..KvCacheBatch::default()
    }))
}

fn begun() -> KvCacheView {
    let mut view = KvCacheView::new(4);
    view.apply(start(1, 5, false)).unwrap();
    view.apply(piece(&[1, 2], true)).unwrap();
    view
}

#[test]
fn changes_are_what_really_changed() {
    let mut view = begun();
    let changes = view.apply(batch(6, &[2, 3], &[1, 9])).unwrap();
    let group = 0;
    let removed = KvCacheChange::Removed {
        group,
        hashes: vec![1],
    };
    let stored = KvCacheChange::Stored {
        group,
        hashes: vec![3],
    };
    assert_eq!(changes, [removed, stored]);
    assert_eq!(view.iter().collect::<Vec<_>>(), [(0, 2), (0, 3)]);
}

#[test]
fn a_batch_in_the_middle_of_a_snapshot_counts() {
    let mut view = KvCacheView::new(10);
    view.apply(start(1, 5, false)).unwrap();
    view.apply(piece(&[1, 2], false)).unwrap();
    assert_eq!(view.position(), None);
    view.apply(batch(6, &[], &[1])).unwrap();
    let changes = view.apply(piece(&[7], true)).unwrap();
    assert_eq!(changes.last(), Some(&KvCacheChange::Complete));
    assert_eq!(view.iter().collect::<Vec<_>>(), [(0, 2), (0, 7)]);
    assert_eq!(view.position().unwrap().sequence, 6);
}

#[test]
fn all_cleared_removes_what_was_held_and_keeps_what_is_stored_with_it() {
    let mut view = begun();
    let cleared = KvCacheBatch {
        sequence: 6,
        all_cleared: true,
        stored: vec![2],
        ..KvCacheBatch::default()
    };
    let changes = view.apply(update(Kind::Batch(cleared))).unwrap();
    let group = 0;
    let removed = KvCacheChange::Removed {
        group,
        hashes: vec![1, 2],
    };
    let stored = KvCacheChange::Stored {
        group,
        hashes: vec![2],
    };
    assert_eq!(changes, [removed, stored]);
}

#[test]
fn a_gap_is_noticed_and_nothing_is_believed_after_it() {
    let mut view = begun();
    let gap = KvCacheViewError::Gap {
        found: 7,
        expected: 6,
    };
    assert_eq!(view.apply(batch(7, &[3], &[])), Err(gap));
    assert!(view.is_empty() && view.position().is_none());
    assert_eq!(view.apply(batch(8, &[3], &[])), Err(KvCacheViewError::NotStarted));
}

#[test]
fn going_on_is_believed_only_where_the_view_is() {
    assert_eq!(begun().apply(start(1, 5, true)), Ok(vec![]));
    for wrong in [start(1, 6, true), start(2, 5, true)] {
        assert!(matches!(
            begun().apply(wrong),
            Err(KvCacheViewError::WrongResume { .. })
        ));
    }
    let nobodys = update(Kind::Start(KvCacheStart::default()));
    assert_eq!(begun().apply(nobodys), Err(KvCacheViewError::NoSource));
}

#[test]
fn an_engine_that_tells_of_too_much_is_not_listened_to() {
    let mut view = begun();
    let refused = view.apply(batch(6, &[3, 4, 5], &[]));
    assert_eq!(refused, Err(KvCacheViewError::TooMany { limit: 4 }));
    assert!(view.is_empty());
}

#[test]
fn an_update_of_an_unknown_kind_changes_nothing() {
    let mut view = begun();
    assert_eq!(view.apply(KvCacheUpdate { kind: None }), Ok(vec![]));
    assert_eq!(view.len(), 2);
}
