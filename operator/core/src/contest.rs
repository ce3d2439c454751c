//! How soon an object is set back that somebody else changed.
//!
//! At once, the first times. Two controllers that both want the last word would write for ever, as fast as they can, so whoever
//! changes the same object again and again is answered ever more slowly, and people are told. What the spec asks for is written
//! at once all the same.

use jiff::{SignedDuration, Timestamp};
use kvasir_operator_api::Reason;

use crate::child::ObjectRef;
use crate::groups::Decisions;
use crate::observed::Observed;

/// Changes that are set back at once.
const AT_ONCE: u32 = 3;
/// Longest pause.
const LONGEST: SignedDuration = SignedDuration::from_mins(5);
/// After so much longer than the pause without a change, the next one is the first.
const FORGIVEN: SignedDuration = SignedDuration::from_mins(1);

/// How often an object was set back, and when last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Undone {
    /// How often in a row.
    pub times: u32,
    /// When last.
    pub last: Timestamp,
}

impl Undone {
    /// After one more time, at `now`.
    #[must_use]
    pub fn once_more(before: Option<Self>, now: Timestamp) -> Self {
        let times = before
            .filter(|before| !before.is_forgiven(now))
            .map_or(0, |before| before.times);
        Self {
            times: times.saturating_add(1),
            last: now,
        }
    }

    /// How long the next change stays.
    fn pause(self) -> SignedDuration {
        match self.times.checked_sub(AT_ONCE) {
            None => SignedDuration::ZERO,
            Some(doublings) => SignedDuration::from_secs(1 << doublings.min(30)).min(LONGEST),
        }
    }

    fn due(self) -> Timestamp {
        self.last.saturating_add(self.pause()).unwrap_or(Timestamp::MAX)
    }

    fn is_forgiven(self, now: Timestamp) -> bool {
        now.duration_since(self.due()) >= FORGIVEN
    }
}

/// Whether an object that somebody changed is set back now. Otherwise a look is asked for when it is due. Tells people either way.
pub(crate) fn may_undo(
    object: &ObjectRef,
    observed: &Observed,
    now: Timestamp,
    decisions: &mut Decisions,
) -> bool {
    let undone = observed
        .undone
        .get(object)
        .copied()
        .filter(|undone| !undone.is_forgiven(now));
    let Some(undone) = undone.filter(|undone| undone.times >= AT_ONCE) else {
        let text =
            format!("{object} was changed by somebody and is set back: change the InferenceService instead");
        decisions.tell(false, Reason::EditUndone, text);
        return true;
    };
    let text = format!(
        "{object} is changed again and again by somebody and is set back with growing pauses: see who with kubectl get --show-managed-fields, and stop it"
    );
    decisions.tell(true, Reason::EditUndone, text);
    let due = undone.due();
    if now >= due {
        return true;
    }
    decisions.look_at(due);
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_790_000_000 + seconds).unwrap()
    }

    #[test]
    fn pauses_begin_after_some_times_and_double_up_to_a_limit() {
        let mut undone = None;
        let pauses: Vec<i64> = (0..14)
            .map(|_| {
                let next = Undone::once_more(undone, undone.map_or(at(0), Undone::due));
                undone = Some(next);
                next.pause().as_secs()
            })
            .collect();
        assert_eq!(pauses, [0, 0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300]);
    }

    #[test]
    fn whoever_stops_for_a_while_is_answered_at_once_again() {
        let many = Undone {
            times: 9,
            last: at(0),
        };
        assert_eq!(Undone::once_more(Some(many), at(64 + 59)).times, 10);
        assert_eq!(Undone::once_more(Some(many), at(64 + 60)).times, 1);
    }
}
