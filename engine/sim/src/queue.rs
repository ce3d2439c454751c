//! What happens next in virtual time. Knows nothing of engines or requests.
//!
//! Laws: time never runs backwards, and events of the same moment come out in the order they went in, so that a simulation depends on
//! nothing but its inputs.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use crate::time::SimTime;

/// Events in the order of their time.
#[derive(Clone, Debug)]
pub struct EventQueue<E> {
    heap: BinaryHeap<Reverse<Entry<E>>>,
    num_pushed: u64,
    now: SimTime,
}

#[derive(Clone, Debug)]
struct Entry<E> {
    at: SimTime,
    number: u64,
    event: E,
}

impl<E> EventQueue<E> {
    /// Empty, at the start of time.
    pub fn new() -> Self {
        Self {
            heap: BinaryHeap::new(),
            num_pushed: 0,
            now: SimTime(0),
        }
    }

    /// The time of the event that came out last.
    pub fn now(&self) -> SimTime {
        self.now
    }

    /// Plans an event. One in the past happens now.
    pub fn push(&mut self, at: SimTime, event: E) {
        let number = self.num_pushed;
        self.num_pushed += 1;
        self.heap.push(Reverse(Entry {
            at: at.max(self.now),
            number,
            event,
        }));
    }

    /// When the next event happens.
    pub fn next_at(&self) -> Option<SimTime> {
        self.heap.peek().map(|Reverse(entry)| entry.at)
    }

    /// Takes the next event out, and moves the time to it.
    pub fn pop(&mut self) -> Option<(SimTime, E)> {
        let Reverse(Entry { at, event, .. }) = self.heap.pop()?;
        self.now = at;
        Some((at, event))
    }
}

impl<E> Default for EventQueue<E> {
    fn default() -> Self {
        Self::new()
    }
}

impl<E> Ord for Entry<E> {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<E> Eq for Entry<E> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_out_by_time_and_then_in_the_order_they_went_in() {
        let mut queue = EventQueue::new();
        for (at, event) in [(5, 'c'), (1, 'a'), (5, 'd'), (2, 'b'), (5, 'e')] {
            queue.push(SimTime(at), event);
        }
        let order: String = std::iter::from_fn(|| queue.pop().map(|(_, event)| event)).collect();
        assert_eq!(order, "abcde");
    }

    #[test]
    fn an_event_planned_for_the_past_happens_now() {
        let mut queue = EventQueue::new();
        queue.push(SimTime(10), 'a');
        queue.pop();
        queue.push(SimTime(3), 'b');
        assert_eq!(queue.next_at(), Some(SimTime(10)));
        assert_eq!(queue.pop(), Some((SimTime(10), 'b')));
        assert_eq!(queue.now(), SimTime(10));
    }
}
