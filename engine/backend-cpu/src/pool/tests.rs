use std::sync::atomic::{AtomicUsize, Ordering};

use kvasir_backend::BackendError;

use super::Pool;

#[test]
fn every_piece_runs_exactly_once_for_any_number_of_threads() {
    for threads in 1..=4 {
        let mut pool = Pool::new(threads).unwrap();
        for num_pieces in [0, 1, 2, 7, 100] {
            for _ in 0..50 {
                let runs: Vec<_> = (0..num_pieces).map(|_| AtomicUsize::new(0)).collect();
                pool.run("test", num_pieces, &|_, piece| {
                    runs[piece].fetch_add(1, Ordering::Relaxed);
                })
                .unwrap();
                assert!(runs.iter().all(|runs| runs.load(Ordering::Relaxed) == 1));
            }
        }
    }
}

#[test]
fn a_worker_number_is_never_used_twice_at_the_same_time() {
    let mut pool = Pool::new(3).unwrap();
    let busy: Vec<_> = (0..3).map(|_| AtomicUsize::new(0)).collect();
    for _ in 0..200 {
        pool.run("test", 20, &|worker, _| {
            assert_eq!(busy[worker].fetch_add(1, Ordering::SeqCst), 0);
            busy[worker].fetch_sub(1, Ordering::SeqCst);
        })
        .unwrap();
    }
}

#[test]
fn a_panic_becomes_an_error_and_the_pool_goes_on() {
    let mut pool = Pool::new(2).unwrap();
    for num_pieces in [1, 10] {
        let result = pool.run("broken", num_pieces, &|_, piece| {
            assert_ne!(piece, num_pieces - 1, "piece {piece} broke");
        });
        let Err(BackendError::Fault { operation, reason }) = result else {
            panic!("no fault: {result:?}")
        };
        assert_eq!(operation, "broken");
        assert!(reason.contains("broke"), "{reason}");
        let runs = AtomicUsize::new(0);
        pool.run("test", 10, &|_, _| {
            runs.fetch_add(1, Ordering::Relaxed);
        })
        .unwrap();
        assert_eq!(runs.into_inner(), 10);
    }
}

#[test]
fn sleeping_workers_are_woken_and_a_dropped_pool_ends_them() {
    for _ in 0..20 {
        let mut pool = Pool::new(4).unwrap();
        let runs = AtomicUsize::new(0);
        // Pieces that wait for each other: they end only if several threads came.
        let barrier = std::sync::Barrier::new(4);
        pool.run("test", 4, &|_, _| {
            barrier.wait();
            runs.fetch_add(1, Ordering::Relaxed);
        })
        .unwrap();
        assert_eq!(runs.into_inner(), 4);
    }
}
