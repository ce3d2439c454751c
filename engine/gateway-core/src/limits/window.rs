//! The sum of the last minute, by seconds.

use std::time::Duration;

use super::{Amounts, Dimension, DimensionUsage, Exhausted, Limits, Usage};
use crate::time::Micros;

/// Any 60 seconds touch at most this many whole seconds.
pub(super) const NUM_SLOTS: usize = 61;

const SLOT_MICROS: u64 = 1_000_000;

/// A second of the account's clock, counted from its beginning.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct Slot(pub(super) u64);

impl Slot {
    pub(super) fn at(now: Micros) -> Self {
        Self(now.0 / SLOT_MICROS)
    }
}

/// Amounts by slot, of the newest slot and the 60 before it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Window {
    /// The slot `s` is at `s % NUM_SLOTS`.
    slots: Box<[Amounts; NUM_SLOTS]>,
    newest: Slot,
    sum: Amounts,
}

impl Default for Window {
    fn default() -> Self {
        Self {
            slots: Box::new([Amounts::default(); NUM_SLOTS]),
            newest: Slot(0),
            sum: Amounts::default(),
        }
    }
}

impl Window {
    /// Forgets what is older than a minute. A clock that goes back changes nothing.
    pub(super) fn advance(&mut self, now: Slot) {
        let steps = now.0.saturating_sub(self.newest.0);
        for step in 1..=steps.min(NUM_SLOTS as u64) {
            let place = (self.newest.0 + step) as usize % NUM_SLOTS;
            let gone = std::mem::take(&mut self.slots[place]);
            self.sum = self.sum.zip(gone, |sum, gone| sum - gone);
        }
        self.newest = self.newest.max(now);
    }

    /// The newest slot, which [`add`](Self::add) fills by default.
    pub(super) fn newest(&self) -> Slot {
        self.newest
    }

    pub(super) fn sum(&self) -> Amounts {
        self.sum
    }

    /// Adds to a slot; without effect if the slot is no longer, or not yet, in the window.
    pub(super) fn add(&mut self, slot: Slot, amounts: Amounts) {
        if self.holds(slot) {
            let place = &mut self.slots[slot.0 as usize % NUM_SLOTS];
            *place = place.zip(amounts, u64::saturating_add);
            self.sum = self.sum.zip(amounts, u64::saturating_add);
        }
    }

    /// Takes from a slot what was added to it before.
    pub(super) fn take(&mut self, slot: Slot, amounts: Amounts) {
        if self.holds(slot) {
            let place = &mut self.slots[slot.0 as usize % NUM_SLOTS];
            let taken = place.zip(amounts, u64::min);
            *place = place.zip(taken, |held, taken| held - taken);
            self.sum = self.sum.zip(taken, |sum, taken| sum - taken);
        }
    }

    fn holds(&self, slot: Slot) -> bool {
        slot <= self.newest && self.newest.0 - slot.0 < NUM_SLOTS as u64
    }

    /// The slots that hold something, oldest first.
    pub(super) fn filled(&self) -> impl Iterator<Item = (Slot, Amounts)> + '_ {
        let first = self.newest.0.saturating_sub(NUM_SLOTS as u64 - 1);
        (first..=self.newest.0)
            .map(|slot| (Slot(slot), self.slots[slot as usize % NUM_SLOTS]))
            .filter(|(_, amounts)| *amounts != Amounts::default())
    }

    /// Whether the limits leave room for `wanted`.
    pub(super) fn check(&self, limits: &Limits, wanted: Amounts, now: Micros) -> Result<(), Exhausted> {
        let mut worst: Option<(Option<Duration>, Exhausted)> = None;
        for dimension in Dimension::ALL {
            let Some(limit) = limits.per_minute(dimension) else {
                continue;
            };
            let (used, wanted) = (self.sum.get(dimension), wanted.get(dimension));
            if used.saturating_add(wanted) <= limit {
                continue;
            }
            let retry_after = self.room_in(dimension, limit, wanted, now);
            // `None`, never, is later than any time.
            let is_later =
                |than: &Option<Duration>| than.is_some() && (retry_after.is_none() || retry_after > *than);
            if worst.as_ref().is_none_or(|(than, _)| is_later(than)) {
                let exhausted = Exhausted::PerMinute {
                    dimension,
                    limit,
                    used,
                    wanted,
                    retry_after,
                };
                worst = Some((retry_after, exhausted));
            }
        }
        worst.map_or(Ok(()), |(_, exhausted)| Err(exhausted))
    }

    pub(super) fn usage(&self, limits: &Limits, now: Micros) -> Usage {
        Usage(Dimension::ALL.map(|dimension| {
            let last = self
                .filled()
                .filter(|(_, amounts)| amounts.get(dimension) > 0)
                .last();
            Some(DimensionUsage {
                limit: limits.per_minute(dimension)?,
                used: self.sum.get(dimension),
                reset: last.map_or(Duration::ZERO, |(slot, _)| until_gone(slot, now)),
            })
        }))
    }

    /// When the oldest slots that stand in the way will be gone.
    fn room_in(&self, dimension: Dimension, limit: u64, wanted: u64, now: Micros) -> Option<Duration> {
        let room = limit.checked_sub(wanted)?;
        let mut used = self.sum.get(dimension);
        for (slot, amounts) in self.filled() {
            used -= amounts.get(dimension);
            if used <= room {
                return Some(until_gone(slot, now));
            }
        }
        None
    }
}

fn until_gone(slot: Slot, now: Micros) -> Duration {
    let gone_at = (slot.0 + NUM_SLOTS as u64).saturating_mul(SLOT_MICROS);
    Duration::from_micros(gone_at.saturating_sub(now.0))
}
