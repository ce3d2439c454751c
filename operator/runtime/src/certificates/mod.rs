//! Certificates of one service: read from its Secrets, judged by the core, made and written.
//!
//! The authority's Secret holds the keys of all authorities that still sign or are about to; each certificate's Secret holds
//! the certificate, its key, and the authorities to trust; the trust bundle holds those for others. The authorities change
//! only while the version that was read is there, so that two replicas can't make two successors.

mod given;
mod held;
mod issue;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, DynamicObject};
use kvasir_operator_api::TlsMode;
use kvasir_operator_api::names::Names;
use kvasir_operator_core::build::meta;
use kvasir_operator_core::certificates::{self as rules, CertificatePlan, Leaf, Subject};
use kvasir_operator_core::child::{Child, Kind, ObjectRef};
use kvasir_operator_core::identity::{self, CERTIFICATE_KEY, Identity, PRIVATE_KEY_KEY, SALT_KEY, TRUST_KEY};
use kvasir_operator_core::observed::CertificatesView;
use kvasir_operator_core::sharing::{Host, reference};
use kvasir_operator_core::{Settings, Validated, Write};
use ring::rand::{SecureRandom, SystemRandom};

use crate::apply::{Applier, ApplyError};
use crate::cache::Snapshot;
pub(crate) use held::Data;
use held::{HeldAuthority, HeldLeaf};
pub(crate) use issue::Made;

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
}

/// Reads the Secrets that the operator fills by itself; their content stays here, the cache learns that they exist.
pub(crate) async fn read(
    applier: &Applier<'_>,
    names: &[String],
    owner: &str,
) -> Result<Secrets, ApplyError> {
    let api: Api<DynamicObject> = applier.api(Kind::Secret);
    let reads = names.iter().map(|name| api.get_opt(name));
    let mut secrets = Secrets::new();
    for (name, found) in names.iter().zip(futures::future::join_all(reads).await) {
        let kind = Kind::Secret;
        let reference = ObjectRef {
            kind,
            name: name.clone(),
        };
        let found = found.map_err(|source| ApplyError::Read {
            object: reference.clone(),
            source,
        })?;
        let Some(object) = found else {
            applier.saw_nothing(&reference);
            continue;
        };
        let data = object.data.get("data").cloned().unwrap_or_default();
        let version = object.metadata.resource_version.clone().unwrap_or_default();
        let made_for = given::made_for(&object);
        let controller = controller(&object);
        let Some(live) = applier.saw(&reference, object) else {
            continue;
        };
        let found = Found {
            ours: live.is_owned_by(owner),
            controller,
            uid: live.uid,
            version,
            made_for,
            data: serde_json::from_value(data).unwrap_or_default(),
        };
        secrets.insert(name.clone(), found);
    }
    Ok(secrets)
}

fn controller(object: &DynamicObject) -> Option<String> {
    let mut owners = object.metadata.owner_references.iter().flatten();
    let controller = owners.find(|owner| owner.controller == Some(true))?;
    Some(controller.uid.clone())
}

/// The names of Secrets that a service may have: for all its groups, those that rest included.
pub(crate) fn names(service: &Validated, groups: impl IntoIterator<Item = i32>) -> Vec<String> {
    let mut names = vec![
        service.names.gateway_secret(),
        service.names.authority(),
        service.names.trust_bundle(),
        service.names.gateway_certificate(),
    ];
    names.extend(groups.into_iter().map(|id| service.names.group_certificate(id)));
    names.extend(given::names(service));
    names.extend(bundles_of_others(service).into_iter().map(|(bundle, _)| bundle));
    names.sort();
    names.dedup();
    names
}

/// What the status says about certificates.
pub(crate) fn view(
    service: &Validated,
    seen: &Snapshot,
    wanted: &[Subject],
    secrets: &Secrets,
    settings: &Settings,
    now: Timestamp,
) -> Option<CertificatesView> {
    if service.spec.tls.mode != TlsMode::Internal {
        return given::view(service, &seen.children, wanted, secrets, settings, now);
    }
    let failed = &seen.failed;
    let leaves = leaves(service, wanted, secrets, settings);
    let missing = failed.keys().filter(|object| object.kind == Kind::Secret).count();
    let first_end = leaves.iter().map(|held| held.leaf.not_after).min();
    match first_end {
        Some(first_end) => Some(CertificatesView {
            first_end,
            missing,
            problems: Vec::new(),
        }),
        None if missing > 0 => Some(CertificatesView {
            first_end: Timestamp::MAX,
            missing,
            problems: Vec::new(),
        }),
        None => None,
    }
}

/// The authorities that vouch for the gateway's certificate. Beside it lie, in mode Internal, those of other services' engines too.
pub(crate) fn trust(service: &Validated, secrets: &Secrets) -> Option<String> {
    let tls = &service.spec.tls;
    let own = match tls.mode {
        TlsMode::Internal => service.names.trust_bundle(),
        TlsMode::CertManager | TlsMode::Provided | TlsMode::Off => service.names.gateway_certificate(),
    };
    let given = tls.secret_name.as_ref().filter(|_| tls.mode == TlsMode::Provided);
    let found = secrets.get(given.unwrap_or(&own))?;
    held::text(&found.data, TRUST_KEY)
}

/// Trust bundles of the services on the other side of a shared gateway, each with the uid of its owner: in mode Internal each service has an
/// authority of its own.
fn bundles_of_others(service: &Validated) -> Vec<(String, String)> {
    if service.spec.tls.mode != TlsMode::Internal {
        return Vec::new();
    }
    let guests = service.sharing.guests.iter().map(|guest| &guest.service);
    let guests = guests.map(|guest| (guest.names.trust_bundle(), guest.uid.clone()));
    let host = reference(&service.spec).map(Names::new);
    let uid = service.sharing.host.as_ref().and_then(|host| match host {
        Host::Serves(host) => Some(host.uid.clone()),
        Host::Unfit { uid, .. } => uid.clone(),
    });
    guests
        .chain(host.zip(uid).map(|(host, uid)| (host.trust_bundle(), uid)))
        .collect()
}

/// What those services' pods trust, as far as it is there. A Secret of that name that isn't theirs vouches for nothing.
fn trust_of_others(service: &Validated, secrets: &Secrets) -> String {
    let bundles = bundles_of_others(service)
        .into_iter()
        .filter_map(|(bundle, uid)| {
            let found = secrets.get(&bundle)?;
            let is_theirs = found.controller.as_ref() == Some(&uid);
            is_theirs.then(|| held::text(&found.data, TRUST_KEY)).flatten()
        });
    bundles.collect()
}

fn leaves(service: &Validated, wanted: &[Subject], secrets: &Secrets, settings: &Settings) -> Vec<HeldLeaf> {
    let held = |subject: &Subject| {
        let found = secrets.get(&identity::secret(&service.names, subject))?;
        let names = identity::names(service, subject, &settings.cluster_domain);
        held::leaf(&found.data, service, subject, &names)
    };
    wanted.iter().filter_map(held).collect()
}

/// Brings the Secrets of one service to what is wanted.
pub(crate) struct Work<'a> {
    pub(crate) applier: &'a Applier<'a>,
    pub(crate) service: &'a Validated,
    pub(crate) settings: &'a Settings,
    pub(crate) wanted: &'a [Subject],
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
        if self.service.spec.tls.mode != TlsMode::Internal {
            wrote |= self.adopt(&secrets).await?;
            return Ok(Worked {
                wrote,
                look_again: self.given_again(&secrets),
                own: given::own(self.service, &secrets, self.now),
            });
        }
        let (authorities, plan, made) = self.authorities(&mut secrets).await?;
        wrote |= made;
        let trust: String = authorities
            .iter()
            .filter(|held| plan.trust.contains(&held.authority.serial))
            .map(|held| held.made.certificate.as_str())
            .collect();
        let signer = authorities
            .iter()
            .find(|held| Some(held.authority.serial) == plan.signer);
        let Some(signer) = signer else {
            return Ok(Worked {
                wrote,
                look_again: plan.look_again,
                own: None,
            });
        };
        wrote |= self.trust_bundle(&mut secrets, &trust).await?;
        let held = leaves(self.service, self.wanted, &secrets, self.settings);
        // A gateway knows the engines of its guests, and a guest's engines the gateway of their host.
        let others = trust_of_others(self.service, &secrets);
        let is_guest = self.service.sharing.host.is_some();
        for subject in self.wanted {
            let held = held.iter().find(|held| held.leaf.subject == *subject);
            let meets_others = is_guest != (*subject == Subject::Gateway);
            let trust = if meets_others {
                format!("{trust}{others}")
            } else {
                trust.clone()
            };
            wrote |= self.leaf(&secrets, subject, held, &plan, signer, &trust).await?;
        }
        Ok(Worked {
            wrote,
            look_again: plan.look_again,
            own: Some(self.own(signer, trust)?),
        })
    }

    /// Secrets that cert-manager made for the service become the service's, so that they go with it and with their groups.
    async fn adopt(&self, secrets: &Secrets) -> Result<bool, CertificateError> {
        let mut wrote = false;
        for (name, found) in secrets {
            if !found.ours && given::is_made_for(self.service, name, found) {
                let metadata = match self.service.names.group_of_certificate(name) {
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
        let mut held = secrets
            .get(&name)
            .map(|found| held::authorities(&found.data))
            .unwrap_or_default();
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
        let changed = secrets.get(&name).is_none_or(|found| found.data != data);
        if changed {
            let metadata = meta::of_service(self.service, &name);
            self.write(secrets, &name, metadata, "Opaque", data).await?;
        }
        Ok((held, plan, changed))
    }

    async fn trust_bundle(&self, secrets: &mut Secrets, trust: &str) -> Result<bool, CertificateError> {
        let name = self.service.names.trust_bundle();
        let data: Data = [(TRUST_KEY.to_owned(), bytes(trust))].into();
        if secrets.get(&name).is_some_and(|found| found.data == data) {
            return Ok(false);
        }
        let metadata = meta::of_service(self.service, &name);
        self.write(secrets, &name, metadata, "Opaque", data).await?;
        Ok(true)
    }

    async fn leaf(
        &self,
        secrets: &Secrets,
        subject: &Subject,
        held: Option<&HeldLeaf>,
        plan: &CertificatePlan,
        signer: &HeldAuthority,
        trust: &str,
    ) -> Result<bool, CertificateError> {
        let due = plan.issue.contains(subject);
        let made = match held {
            Some(held) if !due => held.made.clone(),
            _ => {
                let names = identity::names(self.service, subject, &self.settings.cluster_domain);
                let title = match subject {
                    Subject::Group { id, .. } => self.service.names.group(*id),
                    Subject::Gateway => self.service.names.gateway(),
                };
                issue::leaf(&self.owner(), &names, &title, signer, self.end(), self.now)?
            }
        };
        let name = identity::secret(&self.service.names, subject);
        let metadata = match subject {
            Subject::Group { id, .. } => meta::of_group(self.service, *id, &name),
            Subject::Gateway => meta::of_service(self.service, &name),
        };
        let data: Data = [
            (CERTIFICATE_KEY.to_owned(), bytes(&made.certificate)),
            (PRIVATE_KEY_KEY.to_owned(), bytes(&made.key)),
            (TRUST_KEY.to_owned(), bytes(trust)),
        ]
        .into();
        if secrets.get(&name).is_some_and(|found| found.data == data) {
            return Ok(false);
        }
        self.write(secrets, &name, metadata, "kubernetes.io/tls", data)
            .await?;
        Ok(true)
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
        if secrets.get(&name).is_some_and(|found| found.data == data) {
            return Ok(false);
        }
        let metadata = meta::of_service(self.service, &name);
        self.write(secrets, &name, metadata, "Opaque", data).await?;
        Ok(true)
    }

    /// The operator's own certificate lives in memory only, and is renewed like the others.
    fn own(&self, signer: &HeldAuthority, trust: String) -> Result<OwnIdentity, CertificateError> {
        let half = self.now.saturating_add(self.life() / 2).unwrap_or(Timestamp::MAX);
        let before = self.own.as_ref();
        if let Some(own) = before.filter(|own| own.trust == trust && own.until > half) {
            return Ok(own.clone());
        }
        let names = Identity {
            dns: Vec::new(),
            uris: vec![identity::OPERATOR.to_owned()],
        };
        let until = self.end().min(signer.authority.not_after);
        let made = issue::leaf(&self.owner(), &names, "kvasir operator", signer, until, self.now)?;
        Ok(OwnIdentity { made, trust, until })
    }

    /// Only over what was read, and never over what belongs to somebody else.
    async fn write(
        &self,
        secrets: &Secrets,
        name: &str,
        metadata: ObjectMeta,
        kind: &str,
        data: Data,
    ) -> Result<(), CertificateError> {
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
        Ok(())
    }
}

fn bytes(text: &str) -> ByteString {
    ByteString(text.as_bytes().to_vec())
}
