//! One round of the handover between authorities: what the Secrets hold, what is offered, and what each Secret gets.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use kvasir_operator_api::TlsMode;
use kvasir_operator_core::certificates::{CLOCK_SKEW, Subject};
use kvasir_operator_core::handover::{
    self as rules, AuthorityId, Candidate, Choice, Holder, InPlace, Standing, Standings,
};
use kvasir_operator_core::identity::{self, CERTIFICATE_KEY, PRIVATE_KEY_KEY, TRUST_KEY};
use kvasir_operator_core::observed::{HandoverView, Waiting};
use kvasir_operator_core::{Settings, Validated};
use x509_parser::pem::parse_x509_pem;

use super::anchors::Anchors;
use super::given;
use super::held::{Data, HeldAuthority, names_of, text, validity};
use super::issue::Made;
use super::{Secrets, bytes};

/// Key of what is remembered of authorities that not all pods trust yet, or that nobody needs any more, in the trust bundle.
const STANDINGS_KEY: &str = "standings";

/// What a round knows about authorities and who shows what.
pub(super) struct Handover<'a> {
    service: &'a Validated,
    settings: &'a Settings,
    now: Timestamp,
    secrets: &'a Secrets,
    anchors: Anchors,
    /// The operator's own authorities, oldest first.
    internal: Vec<(AuthorityId, HeldAuthority)>,
    /// How far each authority of the bundle has come.
    pub(super) standings: Standings,
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
    /// `held` are the operator's own authorities, `wanted` the serial numbers of those that are to be trusted because they sign or have
    /// signed, `pods` the subjects and further Secrets that pods mount, `own` is what the operator presents.
    pub(super) fn new(
        service: &'a Validated,
        settings: &'a Settings,
        secrets: &'a Secrets,
        held: &[HeldAuthority],
        wanted: &[u64],
        mounted: &BTreeSet<String>,
        own: Option<&Made>,
        now: Timestamp,
    ) -> Self {
        let mut anchors = Anchors::default();
        let mut internal = Vec::new();
        for authority in held {
            let ids = anchors.add(&authority.made.certificate);
            internal.extend(ids.into_iter().map(|id| (id, authority.clone())));
        }
        let read = |name: &String| secrets.get(name).map(|found| &found.data);
        let bundle = read(&service.names.trust_bundle());
        let known = anchors.add(&bundle.and_then(|data| text(data, TRUST_KEY)).unwrap_or_default());
        let trusts: Vec<Vec<AuthorityId>> = mounted
            .iter()
            .map(|name| {
                anchors.add(
                    &read(name)
                        .and_then(|data| text(data, TRUST_KEY))
                        .unwrap_or_default(),
                )
            })
            .collect();
        let mut asked: BTreeSet<AuthorityId> = BTreeSet::new();
        if service.spec.tls.mode == TlsMode::Internal {
            let signing = internal
                .iter()
                .filter(|(_, held)| wanted.contains(&held.authority.serial));
            asked.extend(signing.map(|(id, _)| id.clone()));
        } else {
            for bundle in given::bundles(service, mounted, secrets) {
                asked.extend(anchors.add(&bundle));
            }
        }
        let holders: Vec<Holder> = mounted
            .iter()
            .zip(&trusts)
            .map(|(name, trusts)| {
                let chain = read(name).and_then(|data| text(data, CERTIFICATE_KEY));
                Holder {
                    exists: read(name).is_some(),
                    trusts: trusts.iter().cloned().collect(),
                    shows: chain.map(|chain| anchors.signers(&chain)).unwrap_or_default(),
                }
            })
            .collect();
        let own = own
            .map(|own| anchors.signers(&own.certificate))
            .unwrap_or_default();
        let mut known: BTreeSet<AuthorityId> = known.into_iter().collect();
        if bundle.is_none() {
            // Nobody wrote it, or it is lost: what lies beside the certificates was trusted.
            known.extend(trusts.into_iter().flatten());
        }
        let shown: BTreeSet<&AuthorityId> = holders.iter().flat_map(|holder| &holder.shows).collect();
        let remembered = remembered(bundle);
        let before = known
            .into_iter()
            .map(|id| {
                let young = internal.iter().find(|(internal, _)| *internal == id);
                let young = young.filter(|_| !shown.contains(&id));
                let standing = remembered.get(&id).copied().unwrap_or_else(|| {
                    young.map_or(Standing::Trusted, |(_, held)| {
                        Standing::Spread(held.authority.not_before)
                    })
                });
                (id, standing)
            })
            .collect();
        let standings = rules::stand(&before, &asked, &holders, &own, settings.trust_time, now);
        Self {
            service,
            settings,
            now,
            secrets,
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
        let made = given::offered(self.service, subject, self.secrets, self.settings, self.now)?;
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
                && self.now < held.authority.not_after
                && rules::is_believed(&[id.clone()].into(), &self.standings)
        })?;
        Some((&found.0, &found.1))
    }

    /// What the Secret of a subject gets. `signer` is the authority that is to sign where a new certificate is due, in mode Internal.
    pub(super) fn give(&self, subject: &Subject, signer: Option<&'a HeldAuthority>) -> Option<Given<'_>> {
        let there = self.in_place(subject);
        let given = self.offered(subject);
        let signing = signer.and_then(|signer| {
            let (id, held) = self
                .internal
                .iter()
                .find(|(_, held)| held.authority.serial == signer.authority.serial)?;
            Some((BTreeSet::from([id.clone()]), held))
        });
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
        let signing = signer.and_then(|signer| {
            self.internal
                .iter()
                .find(|(_, held)| held.authority.serial == signer.authority.serial)
        });
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
            .secrets
            .get(&identity::secret(&self.service.names, subject))?
            .data;
        let found = leaf(data)?;
        if !names_subject(self.service, subject, &found.uris) {
            return None;
        }
        let middle = found
            .begin
            .saturating_add(found.end.duration_since(found.begin) / 2);
        let in_place = InPlace {
            is_valid: found
                .begin
                .saturating_sub(CLOCK_SKEW)
                .is_ok_and(|begin| begin <= self.now)
                && self.now < found.end,
            is_due: middle.is_ok_and(|middle| middle <= self.now),
        };
        Some((in_place, found.made))
    }

    /// A certificate that lies in another Secret of the service and speaks for all its pods: one that somebody provided.
    fn shared(&self, subject: &Subject) -> Option<Offer> {
        let names = &self.service.names;
        let mut found = self
            .secrets
            .iter()
            .filter(|(name, found)| {
                found.ours
                    && (**name == names.gateway_certificate() || names.group_of_certificate(name).is_some())
            })
            .filter_map(|(_, found)| leaf(&found.data))
            .filter(|leaf| self.now < leaf.end && leaf.begin <= self.now);
        let shared = found.find(|leaf| {
            let others = leaf.uris.iter().any(|uri| uri.contains(identity::GROUP_PART));
            !others
                && leaf.uris.contains(&identity::engine(self.service))
                && names_subject(self.service, subject, &leaf.uris)
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
        let settle = self.settings.trust_time;
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
                let latest = self.now.saturating_add(settle).unwrap_or(Timestamp::MAX);
                view.joins.insert(*id, known.unwrap_or(latest));
            }
        }
        view
    }

    /// When the next step is due.
    pub(super) fn look_again(&self) -> Option<Timestamp> {
        rules::next_change(&self.standings, self.settings.trust_time)
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

struct FoundLeaf {
    made: Made,
    uris: Vec<String>,
    begin: Timestamp,
    end: Timestamp,
}

/// The certificate in a Secret, whoever signed it.
fn leaf(data: &Data) -> Option<FoundLeaf> {
    let made = Made {
        certificate: text(data, CERTIFICATE_KEY)?,
        key: text(data, PRIVATE_KEY_KEY)?,
    };
    let (_, pem) = parse_x509_pem(made.certificate.as_bytes()).ok()?;
    let certificate = pem.parse_x509().ok()?;
    let (begin, end) = validity(&certificate)?;
    Some(FoundLeaf {
        uris: names_of(&certificate).uris,
        begin,
        end,
        made,
    })
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
