//! One round of the handover between authorities: what the Secrets hold, what is offered, and what each Secret gets.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use kvasir_operator_api::TlsMode;
use kvasir_operator_core::certificates::{CLOCK_SKEW, Subject};
use kvasir_operator_core::handover::{
    self as rules, AuthorityId, Candidate, Choice, Holder, InPlace, Standing, Standings,
};
use kvasir_operator_core::identity::{self, CERTIFICATE_KEY, TRUST_KEY};
use kvasir_operator_core::observed::{HandoverView, Waiting};
use kvasir_operator_core::{Settings, Validated};

use super::anchors::Anchors;
use super::held::{Data, HeldAuthority, text};
use super::issue::Made;
use super::{Secrets, bytes, given, leaf};

/// Key of what is remembered of authorities that not all pods trust yet, or that nobody needs any more, in the trust bundle.
const STANDINGS_KEY: &str = "standings";

/// What a round looks at.
#[derive(Clone, Copy)]
pub(super) struct Seen<'a> {
    pub(super) service: &'a Validated,
    pub(super) settings: &'a Settings,
    pub(super) secrets: &'a Secrets,
    /// The operator's own authorities.
    pub(super) held: &'a [HeldAuthority],
    /// Serial numbers of those that sign or have signed something that is left.
    pub(super) wanted: &'a [u64],
    /// Names of the Secrets with certificates that pods mount, or are about to.
    pub(super) mounted: &'a BTreeSet<String>,
    /// What the operator presents itself with.
    pub(super) own: Option<&'a Made>,
    pub(super) now: Timestamp,
}

impl<'a> Seen<'a> {
    fn text(&self, name: &str, key: &str) -> Option<String> {
        text(&self.secrets.get(name)?.data, key)
    }

    fn bundle(&self) -> Option<&'a Data> {
        let found = self.secrets.get(&self.service.names.trust_bundle());
        found.map(|found| &found.data)
    }

    /// The authorities of whoever is to sign now.
    fn asked(
        &self,
        internal: &[(AuthorityId, HeldAuthority)],
        anchors: &mut Anchors,
    ) -> BTreeSet<AuthorityId> {
        if self.service.spec.tls.mode == TlsMode::Internal {
            let signing = internal
                .iter()
                .filter(|(_, held)| self.wanted.contains(&held.authority.serial));
            return signing.map(|(id, _)| id.clone()).collect();
        }
        let bundles = given::bundles(self.service, self.mounted, self.secrets);
        bundles.iter().flat_map(|bundle| anchors.add(bundle)).collect()
    }

    /// The Secrets that pods mount. All authorities must be known before.
    fn holders(&self, trusts: &[Vec<AuthorityId>], anchors: &Anchors) -> Vec<Holder> {
        let pairs = self.mounted.iter().zip(trusts);
        let holder = |(name, trusts): (&String, &Vec<AuthorityId>)| Holder {
            exists: self.secrets.contains_key(name),
            trusts: trusts.iter().cloned().collect(),
            shows: self
                .text(name, CERTIFICATE_KEY)
                .map(|chain| anchors.signers(&chain))
                .unwrap_or_default(),
        };
        pairs.map(holder).collect()
    }

    /// How far each of the `known` authorities had come. Of those that nothing is remembered of, as at rest or by an earlier version, all
    /// are trusted but one of the operator's own that has signed nothing yet: that is as old as its certificate says.
    fn before(
        &self,
        known: BTreeSet<AuthorityId>,
        internal: &[(AuthorityId, HeldAuthority)],
        holders: &[Holder],
    ) -> Standings {
        let remembered = remembered(self.bundle());
        let shown = |id: &AuthorityId| holders.iter().any(|holder| holder.shows.contains(id));
        let standing = |id: &AuthorityId| {
            let own = internal.iter().find(|(internal, _)| internal == id);
            match own.filter(|_| !shown(id)) {
                Some((_, held)) => Standing::Spread(held.authority.not_before),
                None => Standing::Trusted,
            }
        };
        let all = known.into_iter().map(|id| {
            let standing = remembered.get(&id).copied().unwrap_or_else(|| standing(&id));
            (id, standing)
        });
        all.collect()
    }
}

/// What a round knows about authorities and who shows what.
pub(super) struct Handover<'a> {
    seen: Seen<'a>,
    anchors: Anchors,
    /// The operator's own authorities, oldest first.
    internal: Vec<(AuthorityId, HeldAuthority)>,
    /// How far each authority of the bundle has come.
    standings: Standings,
}

/// A certificate with what vouches for it.
pub(super) struct Offer {
    pub(super) made: Made,
    pub(super) signed_by: BTreeSet<AuthorityId>,
}

/// What a Secret is given.
pub(super) enum Given<'a> {
    /// The certificate that is in it.
    InPlace(Made),
    /// Another one.
    Other(Made),
    /// One that this authority is to sign.
    SignedBy(&'a HeldAuthority),
}

impl<'a> Handover<'a> {
    /// Looks at all Secrets.
    pub(super) fn new(seen: Seen<'a>) -> Self {
        let mut anchors = Anchors::default();
        let mut internal = Vec::new();
        for held in seen.held {
            let ids = anchors.add(&held.made.certificate);
            internal.extend(ids.into_iter().map(|id| (id, held.clone())));
        }
        let bundle = seen.bundle().and_then(|data| text(data, TRUST_KEY));
        let mut known: BTreeSet<AuthorityId> = anchors
            .add(bundle.as_deref().unwrap_or_default())
            .into_iter()
            .collect();
        let trusts: Vec<Vec<AuthorityId>> = seen
            .mounted
            .iter()
            .map(|name| anchors.add(&seen.text(name, TRUST_KEY).unwrap_or_default()))
            .collect();
        if bundle.is_none() {
            // Nobody wrote it, or it is lost: what lies beside the certificates was trusted.
            known.extend(trusts.iter().flatten().cloned());
        }
        let asked = seen.asked(&internal, &mut anchors);
        let holders = seen.holders(&trusts, &anchors);
        let own = seen
            .own
            .map(|own| anchors.signers(&own.certificate))
            .unwrap_or_default();
        let before = seen.before(known, &internal, &holders);
        let standings = rules::stand(
            &before,
            &asked,
            &holders,
            &own,
            seen.settings.trust_time,
            seen.now,
        );
        Self {
            seen,
            anchors,
            internal,
            standings,
        }
    }

    /// The certificates that all pods of the service trust.
    pub(super) fn bundle(&self) -> String {
        let internal: Vec<&AuthorityId> = self.internal.iter().map(|(id, _)| id).collect();
        let first = internal
            .iter()
            .copied()
            .filter(|id| self.standings.contains_key(*id));
        let others = self.standings.keys().filter(|id| !internal.contains(id));
        first
            .chain(others)
            .filter_map(|id| self.anchors.pem(id))
            .collect()
    }

    /// What the Secret of the trust bundle holds.
    pub(super) fn bundle_data(&self) -> Data {
        let mut data: Data = [(TRUST_KEY.to_owned(), bytes(&self.bundle()))].into();
        let lines: String = self
            .standings
            .iter()
            .filter_map(|(id, standing)| {
                Some(match standing {
                    Standing::Trusted => return None,
                    Standing::Announced => format!("{id} announced\n"),
                    Standing::Spread(since) => format!("{id} spread {since}\n"),
                    Standing::Unused(since) => format!("{id} unused {since}\n"),
                })
            })
            .collect();
        if !lines.is_empty() {
            data.insert(STANDINGS_KEY.to_owned(), bytes(&lines));
        }
        data
    }

    /// What somebody else offers for a subject, if it can be used.
    pub(super) fn offered(&self, subject: &Subject) -> Option<Offer> {
        let made = given::offered(
            self.seen.service,
            subject,
            self.seen.secrets,
            self.seen.settings,
            self.seen.now,
        )?;
        Some(self.offer(made)).filter(|offer| !offer.signed_by.is_empty())
    }

    fn offer(&self, made: Made) -> Offer {
        let signed_by = self.anchors.signers(&made.certificate);
        Offer { made, signed_by }
    }

    /// The newest authority of the operator's own that every pod believes.
    fn former_signer(&self) -> Option<(&AuthorityId, &HeldAuthority)> {
        let mut able = self.internal.iter().rev();
        let found = able.find(|(id, held)| {
            held.authority.can_sign
                && self.seen.now < held.authority.not_after
                && rules::is_believed(&[id.clone()].into(), &self.standings)
        })?;
        Some((&found.0, &found.1))
    }

    /// An authority of the operator's own, with its id.
    fn own(&self, signer: Option<&HeldAuthority>) -> Option<&(AuthorityId, HeldAuthority)> {
        let serial = signer?.authority.serial;
        self.internal
            .iter()
            .find(|(_, held)| held.authority.serial == serial)
    }

    /// What the Secret of a subject gets. `signer` is the authority that is to sign where a new certificate is due, in mode Internal.
    pub(super) fn give(&self, subject: &Subject, signer: Option<&'a HeldAuthority>) -> Option<Given<'_>> {
        let there = self.in_place(subject);
        let given = self.offered(subject);
        let signing = self.own(signer);
        let signing = signing.map(|(id, held)| (BTreeSet::from([id.clone()]), held));
        let offered = signing
            .as_ref()
            .map(|(id, _)| id)
            .or(given.as_ref().map(|offer| &offer.signed_by));
        let former = self.former_signer();
        let former_id = former.map(|(id, _)| BTreeSet::from([id.clone()]));
        let shared = self.shared(subject);
        let former_id = former_id
            .as_ref()
            .or(shared.as_ref().map(|offer| &offer.signed_by));
        let candidate = |signed_by| Candidate { signed_by };
        let choice = rules::choose(
            there.as_ref().map(|(in_place, _)| *in_place),
            offered.map(candidate),
            former_id.map(candidate),
            &self.standings,
        );
        match choice {
            Choice::Keep => Some(Given::InPlace(there?.1)),
            Choice::Offered => match (signing, given) {
                (Some((_, held)), _) => Some(Given::SignedBy(held)),
                (None, given) => Some(Given::Other(given?.made)),
            },
            Choice::Former => match (former, shared) {
                (Some((_, held)), _) => Some(Given::SignedBy(held)),
                (None, shared) => Some(Given::Other(shared?.made)),
            },
        }
    }

    /// The same for what the operator itself presents.
    pub(super) fn give_own(
        &self,
        before: Option<(&Made, InPlace)>,
        offered: Option<&Made>,
        signer: Option<&'a HeldAuthority>,
    ) -> Option<Given<'_>> {
        let given = offered.map(|made| self.offer(made.clone()));
        let signing = self.own(signer);
        let signing_id = signing.map(|(id, _)| BTreeSet::from([id.clone()]));
        let offered = signing_id
            .as_ref()
            .or(given.as_ref().map(|offer| &offer.signed_by));
        let former = self.former_signer();
        let former_id = former.map(|(id, _)| BTreeSet::from([id.clone()]));
        let candidate = |signed_by| Candidate { signed_by };
        let choice = rules::choose(
            before.map(|(_, in_place)| in_place),
            offered.map(candidate),
            former_id.as_ref().map(candidate),
            &self.standings,
        );
        match choice {
            Choice::Keep => before.map(|(made, _)| Given::InPlace(made.clone())),
            Choice::Offered => match signing {
                Some((_, held)) => Some(Given::SignedBy(held)),
                None => Some(Given::Other(given?.made)),
            },
            Choice::Former => former.map(|(_, held)| Given::SignedBy(held)),
        }
    }

    /// The certificate in the Secret of a subject, if it names whom it must.
    fn in_place(&self, subject: &Subject) -> Option<(InPlace, Made)> {
        let data = &self
            .seen
            .secrets
            .get(&identity::secret(&self.seen.service.names, subject))?
            .data;
        let found = leaf::read(data).ok()?;
        if !names_subject(self.seen.service, subject, &found.names.uris) {
            return None;
        }
        let middle = found
            .begin
            .saturating_add(found.end.duration_since(found.begin) / 2);
        let in_place = InPlace {
            is_valid: found
                .begin
                .saturating_sub(CLOCK_SKEW)
                .is_ok_and(|begin| begin <= self.seen.now)
                && self.seen.now < found.end,
            is_due: middle.is_ok_and(|middle| middle <= self.seen.now),
        };
        Some((in_place, found.made))
    }

    /// A certificate that lies in another Secret of the service and speaks for all its pods: one that somebody provided.
    fn shared(&self, subject: &Subject) -> Option<Offer> {
        let names = &self.seen.service.names;
        let mut found = self
            .seen
            .secrets
            .iter()
            .filter(|(name, found)| {
                found.ours
                    && (**name == names.gateway_certificate() || names.group_of_certificate(name).is_some())
            })
            .filter_map(|(_, found)| leaf::read(&found.data).ok())
            .filter(|leaf| self.seen.now < leaf.end && leaf.begin <= self.seen.now);
        let shared = found.find(|leaf| {
            let others = leaf
                .names
                .uris
                .iter()
                .any(|uri| uri.contains(identity::GROUP_PART));
            !others
                && leaf.names.uris.contains(&identity::engine(self.seen.service))
                && names_subject(self.seen.service, subject, &leaf.names.uris)
        })?;
        Some(self.offer(shared.made))
    }

    /// An authority of the operator's own signed something that is left.
    pub(super) fn needs_internal(&self) -> bool {
        let signed = |(id, held): &(AuthorityId, HeldAuthority)| {
            held.authority.can_sign && matches!(self.standings.get(id), Some(Standing::Trusted))
        };
        self.internal.iter().any(signed)
    }

    /// What the status says.
    pub(super) fn view(&self, wanted: &[Subject]) -> HandoverView {
        let settle = self.seen.settings.trust_time;
        let mut view = HandoverView {
            needs_authority: self.needs_internal(),
            ..HandoverView::default()
        };
        view.waiting = self
            .standings
            .values()
            .filter_map(|standing| match standing {
                Standing::Announced => Some(Waiting::Secrets),
                Standing::Spread(since) => Some(Waiting::Until(
                    since.saturating_add(settle).unwrap_or(Timestamp::MAX),
                )),
                Standing::Trusted | Standing::Unused(_) => None,
            })
            .max();
        for subject in wanted {
            let Subject::Group { id, .. } = subject else {
                continue;
            };
            let Some((_, made)) = self.in_place(subject) else {
                continue;
            };
            let signed_by = self.anchors.signers(&made.certificate);
            if !rules::is_believed(&signed_by, &self.standings) {
                let known = rules::believed_from(&signed_by, &self.standings, settle);
                let latest = self.seen.now.saturating_add(settle).unwrap_or(Timestamp::MAX);
                view.joins.insert(*id, known.unwrap_or(latest));
            }
        }
        view
    }

    /// When the next step is due.
    pub(super) fn look_again(&self) -> Option<Timestamp> {
        rules::next_change(&self.standings, self.seen.settings.trust_time)
    }
}

/// What is remembered; what can't be read isn't.
fn remembered(bundle: Option<&Data>) -> BTreeMap<AuthorityId, Standing> {
    let lines = bundle
        .and_then(|data| text(data, STANDINGS_KEY))
        .unwrap_or_default();
    let read = |line: &str| {
        let mut words = line.split_whitespace();
        let id = words.next()?.to_owned();
        let (standing, since) = (words.next()?, words.next().and_then(|since| since.parse().ok()));
        Some((
            id,
            match standing {
                "announced" => Standing::Announced,
                "spread" => Standing::Spread(since?),
                "unused" => Standing::Unused(since?),
                _ => return None,
            },
        ))
    };
    lines.lines().filter_map(read).collect()
}

/// When the certificate in a Secret ends, whoever signed it, if it can speak for the subject.
pub(super) fn end_of(service: &Validated, subject: &Subject, data: &Data) -> Option<Timestamp> {
    let found = leaf::read(data).ok()?;
    names_subject(service, subject, &found.names.uris).then_some(found.end)
}

/// Whether a certificate with these names can speak for a subject. One of a group speaks for no other group.
fn names_subject(service: &Validated, subject: &Subject, uris: &[String]) -> bool {
    match subject {
        Subject::Gateway => uris.contains(&identity::gateway(service)),
        Subject::Group { id, uid } => {
            let own = identity::group(service, *id, uid);
            let mut groups = uris.iter().filter(|uri| uri.contains(identity::GROUP_PART));
            uris.contains(&identity::engine(service)) && groups.all(|uri| *uri == own)
        }
    }
}
