//! What to do when the worker is silent. Pure: beats and elapsed time in, actions out.

use std::time::Duration;

use super::pulse::Beat;

/// What to do.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Action {
    /// Fail what is stuck.
    FailStuck,
    /// It didn't help: the engine is broken.
    GiveUp,
    /// It is broken still: answer what has come since.
    RefuseUntaken,
    /// There is progress again.
    Recover,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Stage {
    Fine,
    Stalled,
    Broken,
}

/// The watchdog's memory.
#[derive(Debug)]
pub(super) struct Watch {
    tick: Duration,
    seen: u64,
    /// Since the last beat, as far as it was watched.
    silence: Duration,
    stage: Stage,
}

impl Watch {
    pub(super) fn new(tick: Duration) -> Self {
        Self {
            tick,
            seen: 0,
            silence: Duration::ZERO,
            stage: Stage::Fine,
        }
    }

    /// Number of the last beat that was seen.
    pub(super) fn last_beat(&self) -> u64 {
        self.seen
    }

    /// How long there was no beat.
    pub(super) fn silence(&self) -> Duration {
        self.silence
    }

    /// Takes the last beat, `elapsed` after the tick before.
    pub(super) fn tick(&mut self, beat: &Beat, elapsed: Duration) -> Option<Action> {
        let Some(allowance) = beat.allowance.filter(|_| beat.count == self.seen) else {
            self.seen = beat.count;
            self.silence = Duration::ZERO;
            let recovered = std::mem::replace(&mut self.stage, Stage::Fine) != Stage::Fine;
            return recovered.then_some(Action::Recover);
        };
        // When this thread didn't run, the worker may not have run either.
        self.silence = self.silence.saturating_add(elapsed.min(2 * self.tick));
        match self.stage {
            Stage::Fine if self.silence > allowance => {
                self.stage = Stage::Stalled;
                Some(Action::FailStuck)
            }
            Stage::Stalled if self.silence > allowance.saturating_mul(2) => {
                self.stage = Stage::Broken;
                Some(Action::GiveUp)
            }
            Stage::Fine | Stage::Stalled => None,
            Stage::Broken => Some(Action::RefuseUntaken),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICK: Duration = Duration::from_secs(1);

    fn beat(count: u64, allowance_s: u64) -> Beat {
        Beat {
            count,
            allowance: Some(Duration::from_secs(allowance_s)),
        }
    }

    const IDLE: Beat = Beat {
        count: 9,
        allowance: None,
    };

    /// The actions of one tick a second, by second.
    fn actions(watch: &mut Watch, beat: &Beat, seconds: u64) -> Vec<(u64, Action)> {
        (1..=seconds)
            .filter_map(|second| Some((second, watch.tick(beat, TICK)?)))
            .collect()
    }

    #[test]
    fn silence_fails_the_stuck_first_and_health_later() {
        let mut watch = Watch::new(TICK);
        watch.tick(&beat(1, 10), TICK);
        let actions = actions(&mut watch, &beat(1, 10), 22);
        assert_eq!(
            actions,
            [
                (11, Action::FailStuck),
                (21, Action::GiveUp),
                (22, Action::RefuseUntaken)
            ]
        );
    }

    #[test]
    fn progress_heals_in_either_stage() {
        for seconds in [11, 21] {
            let mut watch = Watch::new(TICK);
            watch.tick(&beat(1, 10), TICK);
            assert!(!actions(&mut watch, &beat(1, 10), seconds).is_empty());
            assert_eq!(watch.tick(&beat(2, 10), TICK), Some(Action::Recover));
            assert_eq!(watch.tick(&beat(2, 10), TICK), None);
        }
    }

    #[test]
    fn an_engine_that_comes_back_with_nothing_to_do_is_healed() {
        let mut watch = Watch::new(TICK);
        watch.tick(&beat(1, 10), TICK);
        assert!(!actions(&mut watch, &beat(1, 10), 11).is_empty());
        assert_eq!(watch.tick(&IDLE, TICK), Some(Action::Recover));
        assert_eq!(actions(&mut watch, &IDLE, 100), []);
    }

    #[test]
    fn steps_that_take_nearly_their_time_are_no_stall() {
        let mut watch = Watch::new(TICK);
        for count in 1..100 {
            assert_eq!(actions(&mut watch, &beat(count, 10), 10), []);
        }
    }

    #[test]
    fn an_idle_engine_is_never_stuck() {
        let mut watch = Watch::new(TICK);
        assert_eq!(actions(&mut watch, &IDLE, 1000), []);
    }

    #[test]
    fn time_in_which_the_watchdog_did_not_run_is_no_silence() {
        let mut watch = Watch::new(TICK);
        watch.tick(&beat(1, 10), TICK);
        assert_eq!(watch.tick(&beat(1, 10), Duration::from_hours(1)), None);
        assert_eq!(watch.silence(), 2 * TICK);
    }
}
