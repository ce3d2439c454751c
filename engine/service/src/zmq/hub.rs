//! What was published: kept for replays, and passed to the subscribers. No I/O.

use std::collections::VecDeque;

use bytes::Bytes;
use tokio::sync::mpsc;

/// Bytes of the batches that are kept for replays, beside their number.
const MAX_KEPT_BYTES: usize = 256 << 20;

/// One batch with its number.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Numbered {
    pub(super) sequence: u64,
    pub(super) payload: Bytes,
}

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Hub {
    max_kept: usize,
    kept: VecDeque<Numbered>,
    num_bytes: usize,
    subscribers: Vec<mpsc::Sender<Numbered>>,
}

impl Hub {
    pub(super) fn new(max_kept: usize) -> Self {
        Self {
            max_kept,
            kept: VecDeque::new(),
            num_bytes: 0,
            subscribers: Vec::new(),
        }
    }

    /// A queue of a new subscriber for `limit` batches; what doesn't fit is dropped for it, as a PUB socket does.
    pub(super) fn subscribe(&mut self, limit: usize) -> mpsc::Receiver<Numbered> {
        let (sender, receiver) = mpsc::channel(limit);
        // An idle engine publishes nothing: those that left would pile up.
        self.subscribers.retain(|queue| !queue.is_closed());
        self.subscribers.push(sender);
        receiver
    }

    pub(super) fn publish(&mut self, batch: Numbered) {
        self.subscribers.retain(|queue| {
            !matches!(
                queue.try_send(batch.clone()),
                Err(mpsc::error::TrySendError::Closed(_))
            )
        });
        self.num_bytes += batch.payload.len();
        self.kept.push_back(batch);
        while self.kept.len() > self.max_kept || self.num_bytes > MAX_KEPT_BYTES {
            let Some(oldest) = self.kept.pop_front() else {
                break;
            };
            self.num_bytes -= oldest.payload.len();
        }
    }

    /// The first batch kept whose number is at least `sequence`.
    pub(super) fn from(&self, sequence: u64) -> Option<Numbered> {
        let index = self.kept.partition_point(|batch| batch.sequence < sequence);
        self.kept.get(index).cloned()
    }

    /// The last number kept.
    pub(super) fn last(&self) -> Option<u64> {
        self.kept.back().map(|batch| batch.sequence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(sequence: u64) -> Numbered {
        Numbered {
            sequence,
            payload: Bytes::from_static(b"x"),
        }
    }

    #[test]
    fn the_last_batches_are_kept_and_found_by_number() {
        let mut hub = Hub::new(3);
        // A batch that was lost on its way here has left a gap.
        for sequence in [0, 1, 2, 5, 6] {
            hub.publish(batch(sequence));
        }
        assert_eq!(hub.from(0), Some(batch(2)));
        assert_eq!(hub.from(3), Some(batch(5)));
        assert_eq!((hub.from(7), hub.last()), (None, Some(6)));
    }

    #[test]
    fn a_subscriber_that_doesnt_read_loses_what_doesnt_fit() {
        let mut hub = Hub::new(0);
        let mut slow = hub.subscribe(2);
        for sequence in 0..5 {
            hub.publish(batch(sequence));
        }
        let mut read = Vec::new();
        while let Ok(batch) = slow.try_recv() {
            read.push(batch.sequence);
        }
        assert_eq!(read, [0, 1]);
        assert!(hub.kept.is_empty());
    }

    #[test]
    fn a_subscriber_that_left_is_forgotten() {
        let mut hub = Hub::new(0);
        drop(hub.subscribe(2));
        hub.publish(batch(0));
        assert!(hub.subscribers.is_empty());
        for _ in 0..10 {
            drop(hub.subscribe(2));
        }
        assert_eq!(hub.subscribers.len(), 1, "also while nothing is published");
    }
}
