//! A service whose authority changes in every way, with Secrets in memory: at every moment the bundle that lay in each Secret a while ago
//! vouches for what every Secret holds now.

use kvasir_operator_core::certificates::CLOCK_SKEW;
use serde_json::{Value, json};

use super::tests::authority_of;
use super::*;

const LIFE: SignedDuration = SignedDuration::from_hours(24);
const SETTLE: SignedDuration = SignedDuration::from_mins(2);
const ENGINE: &str = "spiffe://kvasir.dev/ns/team/service/chat/engine";
const GATEWAY: &str = "spiffe://kvasir.dev/ns/team/service/chat/gateway";

fn begin() -> Timestamp {
    "2026-11-30T00:00:00Z".parse().unwrap()
}

struct World {
    tls: Value,
    secrets: Secrets,
    subjects: Vec<Subject>,
    own: Option<Made>,
    now: Timestamp,
    /// The bundles as they were, oldest first.
    history: Vec<(Timestamp, BTreeMap<String, String>)>,
    settings: Settings,
}

impl World {
    fn new(tls: Value) -> Self {
        let mut settings = Settings {
            trust_time: SETTLE,
            ..Settings::default()
        };
        settings.known_kinds.insert(Kind::Certificate);
        Self {
            tls,
            secrets: Secrets::new(),
            subjects: vec![Subject::Gateway, group(0)],
            own: None,
            now: begin() + CLOCK_SKEW,
            history: Vec::new(),
            settings,
        }
    }

    fn service(&self) -> Validated {
        let manifest = json!({
            "apiVersion": "kvasir.dev/v1alpha1",
            "kind": "InferenceService",
            "metadata": { "name": "chat", "namespace": "team", "uid": "u" },
            "spec": { "model": { "source": { "pvc": { "claimName": "models" } } }, "tls": self.tls },
        });
        let service = serde_json::from_value(manifest).unwrap();
        kvasir_operator_core::validate(&service, &self.settings).unwrap()
    }

    fn put(&mut self, name: &str, ours: bool, data: Data) {
        let found = Found {
            ours,
            data,
            ..Found::default()
        };
        self.secrets.insert(name.to_owned(), found);
    }

    /// Somebody fills a Secret.
    fn give(&mut self, name: &str, signer: &HeldAuthority, uris: &[&str]) {
        let names = Identity {
            dns: Vec::new(),
            uris: uris.iter().map(|uri| (*uri).to_owned()).collect(),
        };
        let end = self.now + SignedDuration::from_hours(24 * 30);
        let made = issue::leaf("other", &names, "x", signer, end, self.now - CLOCK_SKEW).unwrap();
        let data = [
            (CERTIFICATE_KEY.to_owned(), bytes(&made.certificate)),
            (PRIVATE_KEY_KEY.to_owned(), bytes(&made.key)),
            (TRUST_KEY.to_owned(), bytes(&signer.made.certificate)),
        ];
        self.put(name, false, data.into());
    }

    /// The operator's own authorities and what is to be done about what they sign.
    fn authorities(
        &mut self,
        service: &Validated,
        secrets: &Secrets,
    ) -> (Vec<HeldAuthority>, CertificatePlan) {
        let found = secrets.get(&service.names.authority());
        let mut held = found
            .map(|found| held::authorities(&found.data))
            .unwrap_or_default();
        let mut plan = CertificatePlan::default();
        if service.spec.tls.mode == TlsMode::Internal {
            let leaves = leaves(service, &self.subjects, secrets, &self.settings);
            let leaves: Vec<Leaf> = leaves
                .iter()
                .map(|leaf| held::by_authority(leaf, &held))
                .collect();
            for _ in 0..MOST_STEPS {
                let known: Vec<_> = held.iter().map(|held| held.authority).collect();
                plan = rules::decide(&self.subjects, &leaves, &known, LIFE, self.now);
                if plan.new_authority {
                    let serial = known.iter().map(|known| known.serial).max().unwrap_or(0) + 1;
                    held.push(authority_of("team/chat", serial, self.now));
                }
            }
            held.retain(|held| plan.trust.contains(&held.authority.serial));
            let keys = held.iter().flat_map(|held| {
                let serial = held.authority.serial;
                [
                    (held::certificate_key(serial), bytes(&held.made.certificate)),
                    (held::private_key_key(serial), bytes(&held.made.key)),
                ]
            });
            self.put(&service.names.authority(), true, keys.collect());
        }
        (held, plan)
    }

    /// A round of the operator, but for reading and writing.
    fn round(&mut self) {
        let (service, secrets, settings) = (self.service(), self.secrets.clone(), self.settings.clone());
        let own = self.own.clone();
        let (held, plan) = self.authorities(&service, &secrets);
        let mounted = mounted(&service, &self.subjects, &[]);
        let handover = Handover::new(Seen {
            service: &service,
            settings: &settings,
            secrets: &secrets,
            held: &held,
            wanted: &plan.trust,
            mounted: &mounted,
            own: own.as_ref(),
            now: self.now,
        });
        if service.spec.tls.mode != TlsMode::Internal && !handover.view(&self.subjects).needs_authority {
            self.secrets.remove(&service.names.authority());
        }
        let bundle = handover.bundle();
        if !bundle.is_empty() {
            self.put(&service.names.trust_bundle(), true, handover.bundle_data());
        }
        let signer = held
            .iter()
            .find(|held| Some(held.authority.serial) == plan.signer);
        for subject in &self.subjects.clone() {
            let signer = signer.filter(|_| plan.issue.contains(subject));
            let made = match handover.give(subject, signer) {
                None => continue,
                Some(Given::InPlace(made) | Given::Other(made)) => made,
                Some(Given::SignedBy(signer)) => {
                    let names = identity::names(&service, subject, "cluster.local");
                    issue::leaf("team/chat", &names, "x", signer, self.now + LIFE, self.now).unwrap()
                }
            };
            let data = [
                (CERTIFICATE_KEY.to_owned(), bytes(&made.certificate)),
                (PRIVATE_KEY_KEY.to_owned(), bytes(&made.key)),
                (TRUST_KEY.to_owned(), bytes(&bundle)),
            ];
            self.put(&identity::secret(&service.names, subject), true, data.into());
        }
    }

    fn leaf(&self, subject: &Subject, key: &str) -> Option<String> {
        let found = self
            .secrets
            .get(&identity::secret(&self.service().names, subject))?;
        held::text(&found.data, key)
    }

    fn is_signed_by(&self, subject: &Subject, signer: &HeldAuthority) -> bool {
        let mut anchors = anchors::Anchors::default();
        anchors.add(&signer.made.certificate);
        let leaf = self.leaf(subject, CERTIFICATE_KEY).unwrap_or_default();
        !anchors.signers(&leaf).is_empty()
    }

    fn all_signed_by(&self, signer: &HeldAuthority) -> bool {
        let mut subjects = self.subjects.iter();
        subjects.all(|subject| self.is_signed_by(subject, signer))
    }

    fn authorities_of(&self, subject: &Subject) -> usize {
        let bundle = self.leaf(subject, TRUST_KEY).unwrap_or_default();
        bundle.matches("BEGIN CERTIFICATE").count()
    }

    /// Time passes in steps of half a minute, with a look in each at whether pods that are as far behind as they may be believe each other.
    fn pass(&mut self, minutes: i64) {
        for _ in 0..minutes * 2 {
            for _ in 0..3 {
                self.round();
            }
            self.note();
            self.now += SignedDuration::from_secs(30);
        }
    }

    fn note(&mut self) {
        let names: Vec<(String, Subject)> = self
            .subjects
            .iter()
            .map(|subject| (identity::secret(&self.service().names, subject), subject.clone()))
            .collect();
        let bundles = names
            .iter()
            .filter_map(|(name, subject)| Some((name.clone(), self.leaf(subject, TRUST_KEY)?)));
        self.history.push((self.now, bundles.collect()));
        let behind = SETTLE - SignedDuration::from_secs(30);
        for (_, shown) in &names {
            let Some(chain) = self.leaf(shown, CERTIFICATE_KEY) else {
                continue;
            };
            for (trusting, _) in &names {
                let old = self
                    .history
                    .iter()
                    .filter(|(at, _)| self.now.duration_since(*at) <= behind);
                for (at, bundle) in old.filter_map(|(at, bundles)| Some((at, bundles.get(trusting)?))) {
                    let mut anchors = anchors::Anchors::default();
                    anchors.add(bundle);
                    assert!(
                        !anchors.signers(&chain).is_empty(),
                        "{shown:?} of {} before {trusting} of {at}",
                        self.now
                    );
                }
            }
        }
    }
}

fn group(id: i32) -> Subject {
    Subject::Group {
        id,
        uid: format!("uid-{id}"),
    }
}

fn provided(secret: &str) -> Value {
    json!({ "mode": "Provided", "secretName": secret })
}

#[test]
fn every_switch_is_believed_at_every_moment() {
    let (first, second) = (
        authority_of("other", 1, begin()),
        authority_of("other", 1, begin()),
    );
    let mut world = World::new(json!({ "mode": "Internal" }));
    world.pass(5);
    let internal = world.leaf(&group(0), CERTIFICATE_KEY);
    world.give("first", &first, &[ENGINE, GATEWAY]);
    world.give("second", &second, &[ENGINE, GATEWAY]);
    world.tls = provided("first");
    world.pass(1);
    assert_eq!(
        world.leaf(&group(0), CERTIFICATE_KEY),
        internal,
        "its time hasn't come"
    );
    assert_eq!(world.authorities_of(&group(0)), 2);
    world.pass(9);
    for subject in &world.subjects {
        assert!(world.is_signed_by(subject, &first));
        assert_eq!(world.authorities_of(subject), 1, "the old authority is gone");
    }
    assert!(!world.secrets.contains_key("chat-authority"));
    world.tls = provided("second");
    world.pass(10);
    assert!(world.all_signed_by(&second));
    // Another content of the same Secret.
    world.give("second", &first, &[ENGINE, GATEWAY]);
    world.pass(10);
    assert!(world.all_signed_by(&first));
}

#[test]
fn what_cert_manager_makes_is_shown_when_it_is_believed_and_no_longer_than_its_mode_says() {
    let (first, second) = (
        authority_of("other", 1, begin()),
        authority_of("other", 1, begin()),
    );
    let mut world = World::new(provided("first"));
    world.give("first", &first, &[ENGINE, GATEWAY]);
    world.pass(5);
    world.tls = json!({ "mode": "CertManager", "issuerRef": { "name": "x" } });
    world.pass(3);
    assert!(world.is_signed_by(&group(0), &first), "nothing is issued yet");
    world.give("chat-gateway-issued", &second, &[GATEWAY]);
    world.give(
        "chat-g0-issued",
        &second,
        &[
            ENGINE,
            &format!("{}group/0/uid-0", ENGINE.trim_end_matches("engine")),
        ],
    );
    world.pass(10);
    assert!(world.all_signed_by(&second));
    world.tls = json!({ "mode": "Internal" });
    world.pass(10);
    assert!(
        !world
            .subjects
            .iter()
            .any(|subject| world.is_signed_by(subject, &second))
    );
    assert_eq!(world.authorities_of(&group(0)), 1);
    assert!(
        !world.secrets["chat-trust"].data.contains_key("standings"),
        "nothing is remembered at rest"
    );
}

#[test]
fn a_group_that_is_born_during_a_switch_shows_what_everybody_believes() {
    let first = authority_of("other", 1, begin());
    let mut world = World::new(json!({ "mode": "Internal" }));
    world.pass(5);
    world.give("first", &first, &[ENGINE, GATEWAY]);
    world.tls = provided("first");
    world.pass(1);
    world.subjects.push(group(1));
    world.pass(1);
    assert!(world.leaf(&group(1), CERTIFICATE_KEY).is_some());
    world.pass(8);
    world.tls = json!({ "mode": "Internal" });
    world.pass(1);
    world.subjects.push(group(2));
    world.pass(1);
    assert!(
        world.is_signed_by(&group(2), &first),
        "the provided one speaks for every pod"
    );
    world.pass(8);
    assert!(!world.is_signed_by(&group(2), &first));
}

#[test]
fn a_change_that_is_taken_back_in_time_leaves_nothing() {
    let first = authority_of("other", 1, begin());
    let mut world = World::new(json!({ "mode": "Internal" }));
    world.pass(5);
    let before = world.leaf(&Subject::Gateway, CERTIFICATE_KEY);
    world.give("first", &first, &[ENGINE, GATEWAY]);
    world.tls = provided("first");
    world.pass(1);
    world.tls = json!({ "mode": "Internal" });
    world.pass(5);
    assert_eq!(world.leaf(&Subject::Gateway, CERTIFICATE_KEY), before);
    assert_eq!(world.authorities_of(&Subject::Gateway), 1);
}

#[test]
fn a_switch_to_a_secret_that_is_not_there_changes_nothing_and_renews_what_is_due() {
    let mut world = World::new(json!({ "mode": "Internal" }));
    world.pass(2);
    world.tls = provided("nowhere");
    world.pass(2);
    let before = world.leaf(&group(0), CERTIFICATE_KEY);
    world.now += SignedDuration::from_hours(13);
    world.pass(2);
    let after = world.leaf(&group(0), CERTIFICATE_KEY);
    assert!(after.is_some() && after != before);
    assert!(world.secrets.contains_key("chat-authority"));
}

#[test]
fn half_a_year_of_rollovers_is_believed_at_every_moment() {
    let mut world = World::new(json!({ "mode": "Internal" }));
    for _ in 0..180 * 3 {
        world.pass(1);
        world.now += SignedDuration::from_hours(8);
    }
    // Rollovers are looked at closely where they happen: at each of them a few minutes pass in small steps.
    let serial = world.secrets["chat-authority"].data.keys().next().cloned();
    assert_ne!(serial.as_deref(), Some("1.crt"));
}
