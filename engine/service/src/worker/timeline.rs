//! When things happened to one sequence.

use std::time::Instant;

use kvasir_client::types::{Timeline, TimelineEntry, TimelineKind};

/// Entries of one sequence; the .proto says so too. Tens of thousands of chunks or preemptions must not make a finish large.
const MAX_ENTRIES: usize = 256;

/// The stages of every sequence, and the list of entries of one whose request asked for it.
#[derive(Debug)]
pub(super) struct Clock {
    received: Instant,
    lists_entries: bool,
    timeline: Timeline,
}

impl Clock {
    /// A clock of a sequence whose request was received then, and is in the scheduler's queue now.
    pub(super) fn new(received: Instant, lists_entries: bool, now: Instant) -> Self {
        let mut clock = Self {
            received,
            lists_entries,
            timeline: Timeline::default(),
        };
        clock.list(TimelineKind::Queued, now, 0, None);
        clock
    }

    pub(super) fn num_preemptions(&self) -> u32 {
        self.timeline.num_preemptions
    }

    /// Whether it was scheduled at all.
    pub(super) fn has_started(&self) -> bool {
        self.timeline.scheduled_us.is_some()
    }

    pub(super) fn scheduled(&mut self, now: Instant, cached_tokens: u32, resumed: bool) {
        if resumed {
            self.list(TimelineKind::Resumed, now, cached_tokens, None);
        } else {
            self.timeline.scheduled_us = Some(self.micros(now));
            self.list(TimelineKind::Scheduled, now, cached_tokens, None);
        }
    }

    /// A step computed a piece that is more than the next token.
    pub(super) fn chunk(&mut self, now: Instant, tokens: u32, step: u64) {
        self.list(TimelineKind::Chunk, now, tokens, Some(step));
    }

    pub(super) fn preempted(&mut self, now: Instant) {
        self.timeline.num_preemptions += 1;
        self.list(TimelineKind::Preempted, now, 0, None);
    }

    pub(super) fn token(&mut self, now: Instant) {
        let at = self.micros(now);
        if self.timeline.first_token_us.is_none() {
            self.timeline.first_token_us = Some(at);
            self.list(TimelineKind::FirstToken, now, 0, None);
        }
        self.timeline.last_token_us = Some(at);
    }

    /// The whole timeline. The last entry has its place whatever came before.
    pub(super) fn finish(
        &mut self,
        now: Instant,
        output_tokens: u32,
        computed_prompt_tokens: u32,
    ) -> Timeline {
        self.timeline.computed_prompt_tokens = computed_prompt_tokens;
        if self.lists_entries {
            let end = self.entry(TimelineKind::Finished, now, output_tokens, None);
            self.timeline.entries.push(end);
        }
        std::mem::take(&mut self.timeline)
    }

    fn list(&mut self, kind: TimelineKind, now: Instant, tokens: u32, step: Option<u64>) {
        if !self.lists_entries {
            return;
        }
        if self.timeline.entries.len() + 1 >= MAX_ENTRIES {
            self.timeline.num_entries_left_out += 1;
            return;
        }
        let entry = self.entry(kind, now, tokens, step);
        self.timeline.entries.push(entry);
    }

    fn entry(&self, kind: TimelineKind, now: Instant, tokens: u32, step: Option<u64>) -> TimelineEntry {
        TimelineEntry {
            kind: kind.into(),
            at_us: self.micros(now),
            step,
            tokens,
        }
    }

    /// Since the request was received.
    pub(super) fn micros(&self, now: Instant) -> u64 {
        u64::try_from(now.saturating_duration_since(self.received).as_micros()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn entries_are_listed_in_order_with_their_times() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut clock = Clock::new(start, true, at(1));
        clock.scheduled(at(2), 16, false);
        clock.chunk(at(3), 8, 5);
        clock.preempted(at(4));
        clock.scheduled(at(5), 0, true);
        clock.token(at(6));
        clock.token(at(7));
        let timeline = clock.finish(at(8), 2, 8);
        let listed: Vec<_> = timeline
            .entries
            .iter()
            .map(|entry| (entry.kind(), entry.at_us, entry.tokens, entry.step))
            .collect();
        assert_eq!(
            listed,
            [
                (TimelineKind::Queued, 1000, 0, None),
                (TimelineKind::Scheduled, 2000, 16, None),
                (TimelineKind::Chunk, 3000, 8, Some(5)),
                (TimelineKind::Preempted, 4000, 0, None),
                (TimelineKind::Resumed, 5000, 0, None),
                (TimelineKind::FirstToken, 6000, 0, None),
                (TimelineKind::Finished, 8000, 2, None),
            ]
        );
        assert_eq!(
            (timeline.last_token_us, timeline.num_preemptions),
            (Some(7000), 1)
        );
    }

    #[test]
    fn a_long_life_is_cut_and_its_end_is_listed() {
        let now = Instant::now();
        let mut clock = Clock::new(now, true, now);
        for step in 0..1000 {
            clock.chunk(now, 1, step);
        }
        let timeline = clock.finish(now, 0, 0);
        assert_eq!(timeline.entries.len(), MAX_ENTRIES);
        assert_eq!(timeline.num_entries_left_out, 1001 - 255);
        assert_eq!(timeline.entries[255].kind(), TimelineKind::Finished);
    }

    #[test]
    fn nothing_is_listed_unless_asked_for() {
        let now = Instant::now();
        let mut clock = Clock::new(now, false, now);
        clock.scheduled(now, 0, false);
        clock.token(now);
        let timeline = clock.finish(now, 1, 1);
        assert!(timeline.entries.is_empty());
        assert_eq!(timeline.num_entries_left_out, 0);
        assert!(timeline.first_token_us.is_some());
    }
}
