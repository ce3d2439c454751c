//! From one authority to another without a moment at which two pods of a service don't believe each other.
//!
//! Certificates reach pods through Secrets that the operator writes, whoever signed them; beside each lies the same bundle of authorities.
//! Kubelets bring a Secret to a pod when they get to it, so two pods may see two versions of them for a while. Hence the order:
//!
//! 1. A new authority is put into the bundle and shown by nobody ([`Standing::Announced`]).
//! 2. When it lies in every Secret, the time that kubelets take begins ([`Standing::Spread`]).
//! 3. After that time every pod trusts it ([`Standing::Trusted`]), and certificates that it signed may be shown.
//! 4. When no Secret holds such a certificate any more, and nobody wants it, pods may still show one for that time
//!    ([`Standing::Unused`]). Then it leaves the bundle.
//!
//! It doesn't matter why the authority changes: a rollover of the operator's own, another mode or Secret in the spec, or another content
//! of a Secret that somebody else fills.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

#[cfg(test)]
mod tests;

/// Which certificate of an authority: the SHA-256 of its DER, in hexadecimal digits.
pub type AuthorityId = String;

/// How far an authority of the bundle has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Standing {
    /// It isn't yet in every Secret.
    Announced,
    /// It has been in every Secret since then.
    Spread(Timestamp),
    /// Every pod trusts it.
    Trusted,
    /// Every pod trusts it, and since then no Secret holds a certificate of it.
    Unused(Timestamp),
}

/// The authorities of a service's bundle.
pub type Standings = BTreeMap<AuthorityId, Standing>;

/// A Secret with a certificate that pods mount, or are about to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holder {
    /// It is there.
    pub exists: bool,
    /// The authorities that lie in it.
    pub trusts: BTreeSet<AuthorityId>,
    /// Those that signed the certificate in it; none without a certificate.
    pub shows: BTreeSet<AuthorityId>,
}

/// The standings after a look at all Secrets.
///
/// `wanted` are the authorities of whoever is to sign now, `own` those that signed what the operator itself presents, `settle` is how long
/// Secrets take to reach pods. What nobody trusts yet and nobody wants any more is forgotten at once.
pub fn stand(
    before: &Standings,
    wanted: &BTreeSet<AuthorityId>,
    holders: &[Holder],
    own: &BTreeSet<AuthorityId>,
    settle: SignedDuration,
    now: Timestamp,
) -> Standings {
    // Pods that are born with an authority needn't hear of it.
    let is_first = before.is_empty() && holders.iter().all(|holder| holder.shows.is_empty());
    let everywhere = |id: &AuthorityId| holders.iter().all(|h| !h.exists || h.trusts.contains(id));
    let all: BTreeSet<&AuthorityId> = before.keys().chain(wanted).collect();
    let mut after = Standings::new();
    for id in all {
        let used = holders.iter().any(|holder| holder.shows.contains(id)) || own.contains(id);
        let needed = used || wanted.contains(id);
        let standing = match before.get(id) {
            None if is_first => Some(Standing::Trusted),
            None => Some(Standing::Announced),
            Some(Standing::Announced | Standing::Spread(_)) if !needed => None,
            Some(Standing::Announced | Standing::Spread(_)) if !everywhere(id) => Some(Standing::Announced),
            Some(Standing::Announced) => Some(Standing::Spread(now)),
            Some(Standing::Spread(since)) => Some(if now.duration_since(*since) >= settle {
                Standing::Trusted
            } else {
                // A clock that was set back doesn't make anybody wait for it.
                Standing::Spread((*since).min(now))
            }),
            Some(Standing::Trusted | Standing::Unused(_)) if needed => Some(Standing::Trusted),
            Some(Standing::Trusted) => Some(Standing::Unused(now)),
            Some(Standing::Unused(since)) => {
                (now.duration_since(*since) < settle).then_some(Standing::Unused((*since).min(now)))
            }
        };
        after.extend(standing.map(|standing| (id.clone(), standing)));
    }
    after
}

/// When the next standing changes by time alone.
pub fn next_change(standings: &Standings, settle: SignedDuration) -> Option<Timestamp> {
    let due = standings.values().filter_map(|standing| match standing {
        Standing::Spread(since) | Standing::Unused(since) => {
            Some(since.saturating_add(settle).unwrap_or(Timestamp::MAX))
        }
        Standing::Announced | Standing::Trusted => None,
    });
    due.min()
}

/// Whether every pod believes a certificate that these authorities signed.
pub fn is_believed(signed_by: &BTreeSet<AuthorityId>, standings: &Standings) -> bool {
    let believed = |id| matches!(standings.get(id), Some(Standing::Trusted | Standing::Unused(_)));
    signed_by.iter().any(believed)
}

/// When every pod will believe such a certificate; nothing where that is so by now, or where it isn't known yet.
pub fn believed_from(
    signed_by: &BTreeSet<AuthorityId>,
    standings: &Standings,
    settle: SignedDuration,
) -> Option<Timestamp> {
    if is_believed(signed_by, standings) {
        return None;
    }
    let since = signed_by.iter().filter_map(|id| match standings.get(id) {
        Some(Standing::Spread(since)) => Some(since.saturating_add(settle).unwrap_or(Timestamp::MAX)),
        _ => None,
    });
    since.min()
}

/// A certificate that could be put into a Secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate<'a> {
    /// The authorities that signed it.
    pub signed_by: &'a BTreeSet<AuthorityId>,
}

/// The certificate that lies in a Secret and names whom it should.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InPlace {
    /// Its life isn't over.
    pub is_valid: bool,
    /// It should be renewed by whoever signed it, if that can be.
    pub is_due: bool,
}

/// Which certificate a Secret gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// What is in it, if anything.
    Keep,
    /// What is offered now, as the spec says.
    Offered,
    /// One of whoever signed before.
    Former,
}

/// Chooses for one Secret. What is offered waits until every pod believes it, as long as there is anything else that they believe.
pub fn choose(
    in_place: Option<InPlace>,
    offered: Option<Candidate<'_>>,
    former: Option<Candidate<'_>>,
    standings: &Standings,
) -> Choice {
    let believed = |candidate: Option<Candidate<'_>>| {
        candidate.is_some_and(|candidate| is_believed(candidate.signed_by, standings))
    };
    let valid = in_place.filter(|certificate| certificate.is_valid);
    if believed(offered) {
        Choice::Offered
    } else if valid.is_some_and(|certificate| !certificate.is_due) {
        Choice::Keep
    } else if believed(former) {
        Choice::Former
    } else if valid.is_none() && offered.is_some() {
        // Nobody would believe anything else either: some do sooner, the last one when Secrets have reached them.
        Choice::Offered
    } else {
        Choice::Keep
    }
}
