//! Whose turn it is, decided from a Lease and how long it has been seen unchanged.
//!
//! Another replica's clock is never read: what counts is how long this one has seen no renewal, on its own clock
//! (kubernetes-sigs/controller-runtime and client-go do the same). So clocks may differ by any amount; only their speed
//! matters.

use std::time::Duration;

/// What a Lease says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Record {
    /// Who holds it; nobody if it was given back.
    pub(crate) holder: Option<String>,
    /// How long it holds without renewal.
    pub(crate) duration: Duration,
    /// Version of the object, by which a renewal is noticed.
    pub(crate) version: String,
}

/// What a replica does about the Lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Nobody ever held it.
    Create,
    /// It is free or has run out.
    Take,
    /// It is ours.
    Renew,
    /// Somebody else holds it.
    Wait,
}

/// Since when which version has been seen.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sighting {
    version: String,
    since: Duration,
}

impl Sighting {
    /// Notes what is seen at `now` and decides.
    pub(crate) fn turn(&mut self, record: Option<&Record>, identity: &str, now: Duration) -> Turn {
        let Some(record) = record else {
            return Turn::Create;
        };
        if record.version != self.version {
            self.version.clone_from(&record.version);
            self.since = now;
        }
        match record.holder.as_deref() {
            None | Some("") => Turn::Take,
            Some(holder) if holder == identity => Turn::Renew,
            Some(_) if now.saturating_sub(self.since) >= record.duration => Turn::Take,
            Some(_) => Turn::Wait,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn record(holder: Option<&str>, version: &str) -> Record {
        Record {
            holder: holder.map(str::to_owned),
            duration: SECOND * 15,
            version: version.to_owned(),
        }
    }

    #[test]
    fn a_missing_lease_is_created_and_a_free_one_taken_at_once() {
        let mut sighting = Sighting::default();
        assert_eq!(sighting.turn(None, "a", SECOND), Turn::Create);
        assert_eq!(sighting.turn(Some(&record(None, "1")), "a", SECOND), Turn::Take);
        assert_eq!(
            sighting.turn(Some(&record(Some(""), "1")), "a", SECOND),
            Turn::Take
        );
    }

    #[test]
    fn a_lease_of_somebody_else_is_taken_only_after_it_was_seen_unchanged_for_its_duration() {
        let mut sighting = Sighting::default();
        let held = record(Some("b"), "1");
        assert_eq!(sighting.turn(Some(&held), "a", SECOND * 100), Turn::Wait);
        assert_eq!(sighting.turn(Some(&held), "a", SECOND * 114), Turn::Wait);
        let renewed = record(Some("b"), "2");
        assert_eq!(sighting.turn(Some(&renewed), "a", SECOND * 114), Turn::Wait);
        assert_eq!(sighting.turn(Some(&renewed), "a", SECOND * 128), Turn::Wait);
        assert_eq!(sighting.turn(Some(&renewed), "a", SECOND * 129), Turn::Take);
    }

    #[test]
    fn the_holder_renews() {
        let mut sighting = Sighting::default();
        let held = record(Some("a"), "1");
        assert_eq!(sighting.turn(Some(&held), "a", SECOND), Turn::Renew);
    }
}
