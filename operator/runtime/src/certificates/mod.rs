//! Certificates of one service: read from its Secrets, judged by the core, made and written.
//!
//! The authority's Secret holds the keys of all authorities that still sign or are about to; each certificate's Secret holds
//! the certificate, its key, and the authorities to trust; the trust bundle holds those for others. The authorities change
//! only while the version that was read is there, so that two replicas can't make two successors.
//!
//! Pods mount only these Secrets. What cert-manager or the user makes is copied into them, when every pod trusts who signed it.

mod anchors;
mod given;
mod handover;
#[cfg(test)]
mod handover_tests;
mod held;
mod issue;
mod leaf;
#[cfg(test)]
mod tests;
mod view;

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kvasir_operator_api::TlsMode;
use kvasir_operator_core::build::meta;
use kvasir_operator_core::certificates::{self as rules, CertificatePlan, Leaf, Subject};
use kvasir_operator_core::child::{Child, Kind, Live, ObjectRef};
use kvasir_operator_core::handover::InPlace;
use kvasir_operator_core::identity::{self, CERTIFICATE_KEY, Identity, PRIVATE_KEY_KEY, SALT_KEY, TRUST_KEY};
use kvasir_operator_core::{Settings, Validated, Write};
use ring::rand::{SecureRandom, SystemRandom};

use crate::apply::{Applier, ApplyError};
use handover::{Given, Handover, Seen};
pub(crate) use held::Data;
use held::HeldAuthority;
pub(crate) use issue::Made;
pub(crate) use view::{handover_view, names, read, trust, view};
use view::{leaves, mounted, trust_of_others};

/// Bytes of the seed of cache salts.
const SALT_BYTES: usize = 32;
/// Rollovers take one new authority at a time.
const MOST_STEPS: usize = 2;

/// Certificates couldn't be made or kept.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CertificateError {
    /// A key or certificate couldn't be made.
    #[error("can't make a certificate: {0}")]
    Make(#[from] rcgen::Error),
    /// The system has no random numbers.
    #[error("the system gives no random numbers")]
    Random,
    /// A Secret couldn't be written.
    #[error(transparent)]
    Write(#[from] ApplyError),
}

/// A Secret that was read.
#[derive(Clone, Default)]
pub(crate) struct Found {
    pub(crate) uid: String,
    pub(crate) version: String,
    /// It belongs to the service.
    pub(crate) ours: bool,
    /// Uid of the object that controls it.
    pub(crate) controller: Option<String>,
    /// The Certificate that cert-manager made it for.
    pub(crate) made_for: Option<String>,
    pub(crate) data: Data,
}

/// The Secrets of one service, by name.
pub(crate) type Secrets = BTreeMap<String, Found>;

/// What the operator itself presents to a service's engines and gateway, and whom it trusts there.
#[derive(Clone)]
pub(crate) struct OwnIdentity {
    pub(crate) made: Made,
    pub(crate) trust: String,
    pub(crate) until: Timestamp,
    /// An authority of the operator's own signed it.
    pub(crate) is_internal: bool,
}

/// Brings the Secrets of one service to what is wanted.
pub(crate) struct Work<'a> {
    pub(crate) applier: &'a Applier<'a>,
    pub(crate) service: &'a Validated,
    pub(crate) settings: &'a Settings,
    pub(crate) wanted: &'a [Subject],
    /// The service's children as they are now.
    pub(crate) children: &'a [Live],
    /// What the operator presented itself with so far.
    pub(crate) own: Option<OwnIdentity>,
    pub(crate) now: Timestamp,
}

/// What came of it.
pub(crate) struct Worked {
    /// Something was written: the status isn't the last word.
    pub(crate) wrote: bool,
    /// When to look again.
    pub(crate) look_again: Option<Timestamp>,
    /// What the operator presents itself with, if the service has an authority.
    pub(crate) own: Option<OwnIdentity>,
}

impl Work<'_> {
    /// Makes and renews what is due.
    pub(crate) async fn carry_out(&self, mut secrets: Secrets) -> Result<Worked, CertificateError> {
        let mut wrote = false;
        if self.service.spec.gateway.enabled {
            wrote |= self.salt(&mut secrets).await?;
        }
        wrote |= self.adopt(&secrets).await?;
        if self.service.spec.tls.mode == TlsMode::Off {
            return Ok(Worked {
                wrote,
                look_again: None,
                own: None,
            });
        }
        let (held, plan, made) = if self.service.spec.tls.mode == TlsMode::Internal {
            self.authorities(&mut secrets).await?
        } else {
            let held = held::authorities_of(&secrets, &self.service.names.authority());
            (held, CertificatePlan::default(), false)
        };
        wrote |= made;
        let mounted = mounted(self.service, self.wanted, self.children);
        let handover = Handover::new(Seen {
            service: self.service,
            settings: self.settings,
            secrets: &secrets,
            held: &held,
            wanted: &plan.trust,
            mounted: &mounted,
            own: self.presented().map(|own| &own.made),
            now: self.now,
        });
        let signer = held
            .iter()
            .find(|held| Some(held.authority.serial) == plan.signer);
        let trust = handover.bundle();
        if !trust.is_empty() {
            wrote |= self.trust_bundle(&secrets, handover.bundle_data()).await?;
        }
        for subject in self.wanted {
            let due = plan.issue.contains(subject);
            if let Some(given) = handover.give(subject, signer.filter(|_| due)) {
                wrote |= self.leaf(&secrets, subject, given, &trust).await?;
            }
        }
        for name in mounted.iter().filter(|_| !trust.is_empty()) {
            wrote |= self.leftover(&secrets, name, &trust).await?;
        }
        let next = [plan.look_again, handover.look_again(), self.given_again(&secrets)];
        Ok(Worked {
            wrote,
            look_again: next.into_iter().flatten().min(),
            own: self.own(&handover, signer, &secrets, trust)?,
        })
    }

    /// Secrets that cert-manager made for the service become the service's, so that they go with it and with their groups.
    async fn adopt(&self, secrets: &Secrets) -> Result<bool, CertificateError> {
        let mut wrote = false;
        for (name, found) in secrets {
            if !found.ours && given::is_made_for(self.service, name, found) {
                let metadata = match self.service.names.group_of_issued(name) {
                    Some(id) => meta::of_group(self.service, id, name),
                    None => meta::of_service(self.service, name),
                };
                self.applier.own(Kind::Secret, metadata, &found.uid).await?;
                wrote = true;
            }
        }
        Ok(wrote)
    }

    /// No watch shows Secrets: one that lacks something is looked at often.
    fn given_again(&self, secrets: &Secrets) -> Option<Timestamp> {
        let view = given::view(self.service, &[], self.wanted, secrets, self.settings, self.now)?;
        let soon = self.now.saturating_add(given::PAUSE).unwrap_or(Timestamp::MAX);
        (!view.problems.is_empty()).then_some(soon)
    }

    fn owner(&self) -> String {
        format!("{}/{}", self.service.namespace, self.service.name)
    }

    fn life(&self) -> SignedDuration {
        SignedDuration::from_hours(self.service.spec.tls.validity_hours.into())
    }

    fn end(&self) -> Timestamp {
        self.now.saturating_add(self.life()).unwrap_or(Timestamp::MAX)
    }

    /// The authorities after what was due, and the plan that they lead to.
    async fn authorities(
        &self,
        secrets: &mut Secrets,
    ) -> Result<(Vec<HeldAuthority>, CertificatePlan, bool), CertificateError> {
        let name = self.service.names.authority();
        let mut held = held::authorities_of(secrets, &name);
        let leaves = leaves(self.service, self.wanted, secrets, self.settings);
        held.extend(held::lost(&leaves, &held));
        held.sort_by_key(|held| held.authority.serial);
        let leaves: Vec<Leaf> = leaves
            .iter()
            .map(|leaf| held::by_authority(leaf, &held))
            .collect();
        let mut plan = CertificatePlan::default();
        for _ in 0..MOST_STEPS {
            let known: Vec<_> = held.iter().map(|held| held.authority).collect();
            plan = rules::decide(self.wanted, &leaves, &known, self.life(), self.now);
            if !plan.new_authority {
                break;
            }
            let serial = known.iter().map(|authority| authority.serial).max().unwrap_or(0) + 1;
            let made = issue::authority(&self.owner(), serial, self.now)?;
            let data = [
                (held::certificate_key(serial), bytes(&made.certificate)),
                (held::private_key_key(serial), bytes(&made.key)),
            ];
            held.extend(held::authorities(&data.into()));
        }
        held.retain(|held| {
            plan.trust.contains(&held.authority.serial) || Some(held.authority.serial) == plan.signer
        });
        let able = held.iter().filter(|held| held.authority.can_sign);
        let data: Data = able
            .flat_map(|held| {
                let serial = held.authority.serial;
                [
                    (held::certificate_key(serial), bytes(&held.made.certificate)),
                    (held::private_key_key(serial), bytes(&held.made.key)),
                ]
            })
            .collect();
        let metadata = meta::of_service(self.service, &name);
        let changed = self.write(secrets, &name, metadata, "Opaque", data).await?;
        Ok((held, plan, changed))
    }

    async fn trust_bundle(&self, secrets: &Secrets, data: Data) -> Result<bool, CertificateError> {
        let name = self.service.names.trust_bundle();
        let metadata = meta::of_service(self.service, &name);
        self.write(secrets, &name, metadata, "Opaque", data).await
    }

    async fn leaf(
        &self,
        secrets: &Secrets,
        subject: &Subject,
        given: Given<'_>,
        trust: &str,
    ) -> Result<bool, CertificateError> {
        let made = match given {
            Given::InPlace(made) | Given::Other(made) => made,
            Given::SignedBy(signer) => {
                let names = identity::names(self.service, subject, &self.settings.cluster_domain);
                let title = match subject {
                    Subject::Group { id, .. } => self.service.names.group(*id),
                    Subject::Gateway => self.service.names.gateway(),
                };
                issue::leaf(&self.owner(), &names, &title, signer, self.end(), self.now)?
            }
        };
        let name = identity::secret(&self.service.names, subject);
        self.certificate(secrets, &name, &made, trust).await
    }

    /// Pods of groups and gateways that are ending go on meeting others.
    async fn leftover(&self, secrets: &Secrets, name: &str, trust: &str) -> Result<bool, CertificateError> {
        let is_wanted = |subject| identity::secret(&self.service.names, subject) == name;
        let found = secrets.get(name).filter(|found| found.ours);
        let found = found.filter(|_| !self.wanted.iter().any(is_wanted));
        let made = found.and_then(|found| {
            Some(Made {
                certificate: held::text(&found.data, CERTIFICATE_KEY)?,
                key: held::text(&found.data, PRIVATE_KEY_KEY)?,
            })
        });
        match made {
            Some(made) => self.certificate(secrets, name, &made, trust).await,
            None => Ok(false),
        }
    }

    async fn certificate(
        &self,
        secrets: &Secrets,
        name: &str,
        made: &Made,
        trust: &str,
    ) -> Result<bool, CertificateError> {
        let metadata = match self.service.names.group_of_certificate(name) {
            Some(id) => meta::of_group(self.service, id, name),
            None => meta::of_service(self.service, name),
        };
        // A gateway knows the engines of its guests, and a guest's engines the gateway of their host.
        let is_guest = self.service.sharing.host.is_some();
        let is_gateways = name == self.service.names.gateway_certificate();
        let others = if is_guest == is_gateways {
            String::new()
        } else {
            trust_of_others(self.service, secrets)
        };
        let data: Data = [
            (CERTIFICATE_KEY.to_owned(), bytes(&made.certificate)),
            (PRIVATE_KEY_KEY.to_owned(), bytes(&made.key)),
            (TRUST_KEY.to_owned(), bytes(&format!("{trust}{others}"))),
        ]
        .into();
        self.write(secrets, name, metadata, "kubernetes.io/tls", data)
            .await
    }

    /// The seed is made once: with another one, no tenant would find its cached prefixes again.
    async fn salt(&self, secrets: &mut Secrets) -> Result<bool, CertificateError> {
        let name = self.service.names.gateway_secret();
        let there = secrets.get(&name).and_then(|found| found.data.get(SALT_KEY));
        let salt = if let Some(there) = there.filter(|there| there.0.len() >= SALT_BYTES) {
            there.clone()
        } else {
            let mut salt = vec![0; SALT_BYTES];
            SystemRandom::new()
                .fill(&mut salt)
                .map_err(|_| CertificateError::Random)?;
            ByteString(salt)
        };
        let data: Data = [(SALT_KEY.to_owned(), salt)].into();
        let metadata = meta::of_service(self.service, &name);
        self.write(secrets, &name, metadata, "Opaque", data).await
    }

    /// What the operator presented so far; nothing where it is to present nothing any more.
    fn presented(&self) -> Option<&OwnIdentity> {
        self.own.as_ref().filter(|_| given::is_presented(self.service))
    }

    /// What the operator presents. One of its own making lives in memory only, and is renewed like the others.
    fn own(
        &self,
        handover: &Handover<'_>,
        signer: Option<&HeldAuthority>,
        secrets: &Secrets,
        trust: String,
    ) -> Result<Option<OwnIdentity>, CertificateError> {
        let half = self.now.saturating_add(self.life() / 2).unwrap_or(Timestamp::MAX);
        let before = self.presented().map(|own| {
            let in_place = InPlace {
                is_valid: own.until > self.now,
                is_due: own.until <= half,
            };
            (own, in_place)
        });
        let offered = given::own(self.service, secrets, self.now);
        if before.is_none() && !given::is_presented(self.service) {
            return Ok(None);
        }
        let due = before.is_none_or(|(own, in_place)| in_place.is_due || !own.is_internal);
        let given = handover.give_own(
            before.map(|(own, in_place)| (&own.made, in_place)),
            offered.as_ref().map(|own| &own.made),
            signer.filter(|_| due),
        );
        Ok(match given {
            None => None,
            Some(Given::InPlace(_)) => self.presented().cloned().map(|own| OwnIdentity { trust, ..own }),
            Some(Given::Other(_)) => offered.map(|own| OwnIdentity { trust, ..own }),
            Some(Given::SignedBy(signer)) => {
                let names = Identity {
                    dns: Vec::new(),
                    uris: vec![identity::OPERATOR.to_owned()],
                };
                let until = self.end().min(signer.authority.not_after);
                let made = issue::leaf(&self.owner(), &names, "kvasir operator", signer, until, self.now)?;
                Some(OwnIdentity {
                    made,
                    trust,
                    until,
                    is_internal: true,
                })
            }
        })
    }

    /// Only over what was read and if it says something else. What belongs to somebody else is never written over and never used, whatever it
    /// says. Whether anything was written.
    async fn write(
        &self,
        secrets: &Secrets,
        name: &str,
        metadata: ObjectMeta,
        kind: &str,
        data: Data,
    ) -> Result<bool, CertificateError> {
        let reference = ObjectRef {
            kind: Kind::Secret,
            name: name.to_owned(),
        };
        let found = secrets.get(name);
        if found.is_some_and(|found| !found.ours) {
            let error = ApplyError::Foreign(reference.clone());
            let cache = self.applier.cache;
            cache.failed(self.applier.key, &reference, error.as_seen());
            return Err(error.into());
        }
        if found.is_some_and(|found| found.data == data) {
            return Ok(false);
        }
        let object = Secret {
            metadata,
            type_: Some(kind.to_owned()),
            data: Some(data),
            ..Secret::default()
        };
        let mut child = Child::new(Kind::Secret, name, &object);
        if let Some(found) = found {
            child.object["metadata"]["resourceVersion"] = found.version.clone().into();
        }
        let uid = found.map(|found| found.uid.clone());
        self.applier
            .write(&Write {
                child,
                uid,
                undoes: false,
            })
            .await?;
        Ok(true)
    }
}

fn bytes(text: &str) -> ByteString {
    ByteString(text.as_bytes().to_vec())
}
