//! When certificates and authorities are made and renewed. What they are made of is the runtime's business.
//!
//! - A leaf is renewed when half of its life is over: the operator may be away for the other half and nothing breaks.
//!   One that names another uid of the same group id is of no use and is made anew at once:
//!   ids are used again, certificates never.
//! - An authority is rolled over in three steps with overlap. Its successor is trusted everywhere before it signs anything;
//!   the old one is trusted until the last leaf that it signed has ended. So at every moment each side trusts whatever the
//!   other side may present.
//! - An authority whose key is lost, because somebody deleted its Secret, signs nothing any more and is trusted as long as a leaf of it is
//!   left: its successor signs what is needed at once, and everything else when it is due. Whoever wants the old one to be trusted no
//!   longer deletes the certificates that it signed too.

use jiff::{SignedDuration, Timestamp};

/// Life of an authority. Far longer than a leaf's, so that a rollover always ends before the old authority does.
pub const AUTHORITY_LIFE: SignedDuration = SignedDuration::from_hours(24 * 90);
/// How long a new authority is trusted before it signs: pods read the mounted bundle again within a kubelet period (one to
/// two minutes); ten times that.
pub const TRUST_FIRST: SignedDuration = SignedDuration::from_mins(20);
/// Tolerated difference between two clocks.
pub const CLOCK_SKEW: SignedDuration = SignedDuration::from_mins(5);

/// Who a certificate is for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    /// The ranks of a group.
    Group {
        /// Id of the group.
        id: i32,
        /// Uid of its StatefulSet.
        uid: String,
    },
    /// The gateway's pods.
    Gateway,
}

/// A certificate that exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leaf {
    /// Who it is for.
    pub subject: Subject,
    /// Serial number of the authority that signed it.
    pub authority: u64,
    /// When its life began.
    pub not_before: Timestamp,
    /// When its life ends.
    pub not_after: Timestamp,
}

/// An authority that exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Authority {
    /// Its serial number; later ones are larger.
    pub serial: u64,
    /// When it was made and began to be trusted.
    pub not_before: Timestamp,
    /// When its life ends.
    pub not_after: Timestamp,
    /// Its key is there.
    pub can_sign: bool,
}

/// What to do about certificates now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CertificatePlan {
    /// Make a new authority and trust it.
    pub new_authority: bool,
    /// Authorities to trust, by serial number.
    pub trust: Vec<u64>,
    /// The authority that signs now; nothing until the first one exists.
    pub signer: Option<u64>,
    /// Certificates to make, each signed by the signer.
    pub issue: Vec<Subject>,
    /// Certificates that aren't needed any more.
    pub drop: Vec<Subject>,
    /// When to look again.
    pub look_again: Option<Timestamp>,
}

/// Decides. `wanted` are the subjects that need a certificate, `life` is a leaf's.
pub fn decide(
    wanted: &[Subject],
    leaves: &[Leaf],
    authorities: &[Authority],
    life: SignedDuration,
    now: Timestamp,
) -> CertificatePlan {
    let mut plan = CertificatePlan::default();
    let alive: Vec<&Authority> = authorities.iter().filter(|a| now < a.not_after).collect();
    let newest = alive.iter().filter(|a| a.can_sign).max_by_key(|a| a.serial);
    plan.new_authority = newest.is_none_or(|a| now >= middle(a.not_before, a.not_after));
    let signer = signer(&alive, now);
    plan.signer = signer.map(|a| a.serial);
    plan.trust = trusted(&alive, leaves, signer);
    let mut next = newest.map(|a| middle(a.not_before, a.not_after));
    for subject in wanted {
        let leaf = leaves
            .iter()
            .filter(|leaf| leaf.subject == *subject)
            .max_by_key(|leaf| leaf.not_after);
        match leaf.filter(|leaf| is_good(leaf, &alive, life, now)) {
            Some(leaf) => next = Some(earliest(next, middle(leaf.not_before, leaf.not_after))),
            None => plan.issue.push(subject.clone()),
        }
    }
    plan.issue.sort();
    plan.issue.dedup();
    plan.drop = leaves
        .iter()
        .map(|leaf| leaf.subject.clone())
        .filter(|s| !wanted.contains(s))
        .collect();
    plan.drop.sort();
    plan.drop.dedup();
    if let Some(successor) = newest.filter(|a| Some(a.serial) != plan.signer) {
        let settled = successor
            .not_before
            .saturating_add(TRUST_FIRST)
            .unwrap_or(Timestamp::MAX);
        next = Some(earliest(next, settled));
    }
    plan.look_again = next.map(|at| at.max(now));
    plan
}

fn earliest(a: Option<Timestamp>, b: Timestamp) -> Timestamp {
    a.map_or(b, |a| a.min(b))
}

/// The newest authority that has been trusted long enough. The very first signs at once: nobody trusts anything else yet, or nobody else
/// can sign.
fn signer<'a>(alive: &[&'a Authority], now: Timestamp) -> Option<&'a Authority> {
    let able = || alive.iter().filter(|a| a.can_sign);
    let settled = |a: &&&Authority| now.duration_since(a.not_before) >= TRUST_FIRST;
    let newest_settled = able().filter(settled).max_by_key(|a| a.serial);
    newest_settled
        .or_else(|| able().min_by_key(|a| a.serial))
        .copied()
}

/// The signer, its successors, and every authority that signed a leaf that is left.
fn trusted(alive: &[&Authority], leaves: &[Leaf], signer: Option<&Authority>) -> Vec<u64> {
    let signing = signer.map_or(0, |a| a.serial);
    let mut all: Vec<u64> = alive
        .iter()
        .filter(|a| {
            (a.can_sign && a.serial >= signing) || leaves.iter().any(|leaf| leaf.authority == a.serial)
        })
        .map(|a| a.serial)
        .collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// Not yet half over, not longer than wanted, and signed by an authority that outlives it.
fn is_good(leaf: &Leaf, alive: &[&Authority], life: SignedDuration, now: Timestamp) -> bool {
    let signed = alive
        .iter()
        .any(|a| a.serial == leaf.authority && a.not_after >= leaf.not_after);
    let length = leaf.not_after.duration_since(leaf.not_before);
    signed
        && now < middle(leaf.not_before, leaf.not_after)
        && leaf.not_before.duration_since(now) <= CLOCK_SKEW
        && length <= life.saturating_add(CLOCK_SKEW)
}

fn middle(from: Timestamp, to: Timestamp) -> Timestamp {
    from.saturating_add(to.duration_since(from) / 2)
        .unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIFE: SignedDuration = SignedDuration::from_hours(24);

    fn at(minutes: i64) -> Timestamp {
        Timestamp::from_second(1_790_000_000 + minutes * 60).unwrap()
    }

    fn authority(serial: u64, from: i64) -> Authority {
        Authority {
            serial,
            not_before: at(from),
            not_after: at(from) + AUTHORITY_LIFE,
            can_sign: true,
        }
    }

    fn group(uid: &str) -> Subject {
        Subject::Group {
            id: 0,
            uid: uid.to_owned(),
        }
    }

    fn leaf(subject: Subject, serial: u64, from: i64) -> Leaf {
        Leaf {
            subject,
            authority: serial,
            not_before: at(from),
            not_after: at(from) + LIFE,
        }
    }

    #[test]
    fn the_first_authority_is_made_and_signs_at_once() {
        let plan = decide(&[Subject::Gateway], &[], &[], LIFE, at(0));
        assert!(plan.new_authority);
        assert_eq!(plan.signer, None);
        let plan = decide(&[Subject::Gateway], &[], &[authority(1, 0)], LIFE, at(0));
        assert_eq!((plan.signer, plan.trust.as_slice()), (Some(1), [1].as_slice()));
        assert_eq!(plan.issue, [Subject::Gateway]);
    }

    #[test]
    fn a_leaf_is_renewed_when_half_of_its_life_is_over() {
        let leaves = [leaf(Subject::Gateway, 1, 0)];
        let ask = |minute: i64| decide(&[Subject::Gateway], &leaves, &[authority(1, 0)], LIFE, at(minute));
        let before = ask(12 * 60 - 1);
        assert!(before.issue.is_empty());
        assert_eq!(before.look_again, Some(at(12 * 60)));
        assert_eq!(ask(12 * 60).issue, [Subject::Gateway]);
    }

    #[test]
    fn a_reused_id_gets_a_certificate_of_its_own() {
        let leaves = [leaf(group("old"), 1, 0)];
        let plan = decide(&[group("new")], &leaves, &[authority(1, 0)], LIFE, at(1));
        assert_eq!(plan.issue, [group("new")]);
        assert_eq!(plan.drop, [group("old")]);
    }

    #[test]
    fn a_new_authority_is_trusted_before_it_signs_and_the_old_one_until_its_last_leaf_ends() {
        let middle = AUTHORITY_LIFE.as_mins() / 2;
        let old = authority(1, 0);
        assert!(decide(&[], &[], &[old], LIFE, at(middle)).new_authority);
        let both = [old, authority(2, middle)];
        let leaves = [leaf(Subject::Gateway, 1, middle - 60)];
        let early = decide(&[Subject::Gateway], &leaves, &both, LIFE, at(middle + 1));
        assert_eq!((early.signer, early.trust), (Some(1), vec![1, 2]));
        let later = decide(&[Subject::Gateway], &leaves, &both, LIFE, at(middle + 20));
        assert_eq!((later.signer, later.trust), (Some(2), vec![1, 2]));
        let renewed = [leaf(Subject::Gateway, 2, middle + 700)];
        let after = decide(&[Subject::Gateway], &renewed, &both, LIFE, at(middle + 701));
        assert_eq!(after.trust, [2]);
    }

    #[test]
    fn a_lost_key_renews_nothing_and_its_authority_is_trusted_until_its_last_leaf_ends() {
        let lost = Authority {
            can_sign: false,
            ..authority(1, 0)
        };
        let leaves = [leaf(Subject::Gateway, 1, 0)];
        assert!(decide(&[Subject::Gateway], &leaves, &[lost], LIFE, at(60)).new_authority);
        let both = [lost, authority(2, 60)];
        let wanted = [Subject::Gateway, group("new")];
        let plan = decide(&wanted, &leaves, &both, LIFE, at(60));
        assert_eq!((plan.signer, plan.trust), (Some(2), vec![1, 2]));
        assert_eq!(plan.issue, [group("new")], "nothing else can wait");
        assert!(!plan.new_authority);
        let renewed = [leaf(Subject::Gateway, 2, 720), leaf(group("new"), 2, 60)];
        assert_eq!(decide(&wanted, &renewed, &both, LIFE, at(720)).trust, [2]);
    }

    #[test]
    fn a_shorter_validity_takes_effect_at_once() {
        let leaves = [leaf(Subject::Gateway, 1, 0)];
        let plan = decide(
            &[Subject::Gateway],
            &leaves,
            &[authority(1, 0)],
            SignedDuration::from_hours(1),
            at(1),
        );
        assert_eq!(plan.issue, [Subject::Gateway]);
    }

    proptest! {
        /// Half a year in steps of irregular length, in which keys of authorities are lost: what is presented is always trusted and never over.
        #[test]
        fn at_every_moment_every_leaf_is_valid_and_trusted(
            steps in prop::collection::vec((1..600i64, prop::bool::weighted(0.02)), 100..400),
        ) {
            let wanted = [Subject::Gateway, group("a")];
            let (mut authorities, mut leaves, mut minute) = (Vec::<Authority>::new(), Vec::<Leaf>::new(), 0);
            for (step, loses_keys) in steps {
                for authority in authorities.iter_mut().filter(|_| loses_keys) {
                    authority.can_sign = false;
                }
                // A step of the operator, repeated until it has nothing more to do now.
                for _ in 0..3 {
                    let now = at(minute);
                    let plan = decide(&wanted, &leaves, &authorities, LIFE, now);
                    if plan.new_authority {
                        let serial = authorities.iter().map(|a| a.serial).max().unwrap_or(0) + 1;
                        authorities.push(authority(serial, minute));
                        continue;
                    }
                    for subject in plan.issue {
                        leaves.retain(|leaf| leaf.subject != subject);
                        leaves.push(leaf(subject, plan.signer.unwrap(), minute));
                    }
                    authorities.retain(|a| plan.trust.contains(&a.serial));
                }
                let plan = decide(&wanted, &leaves, &authorities, LIFE, at(minute));
                prop_assert!(plan.issue.is_empty() && !plan.new_authority);
                for leaf in &leaves {
                    prop_assert!(plan.trust.contains(&leaf.authority));
                    prop_assert!(at(minute) < leaf.not_after);
                }
                prop_assert!(plan.look_again.is_some_and(|next| next > at(minute)));
                minute += step;
            }
        }
    }
}
