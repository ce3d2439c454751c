//! Services that share a gateway: whose gateway serves whom, and what each must know of the other.
//!
//! A service that names another one in `spec.gateway.gatewayRef` is a guest of that one, its host. The host's gateway lists the guest's model
//! beside its own, may reach the guest's engines, and carries the guest's gateway name in its certificate, so that nothing about a guest's
//! engines depends on whose gateway serves them: a change of `gatewayRef` replaces no group.
//!
//! Whether a service may be a guest depends on others, which come and go. What it can put right itself (a name that is taken, certificates
//! that the other side wouldn't trust) refuses its spec; a host that isn't there leaves its engines running and waits.
//!
//! Both sides come to the same answer, because they ask the same function: `seats`.

use std::collections::BTreeMap;

use jiff::Timestamp;
use kvasir_config::gateway::MAX_MODELS;
use kvasir_operator_api::{InferenceService, InferenceServiceSpec, Reason, TlsMode};

use crate::field_error::FieldError;
use crate::groups::{self, Decisions};
use crate::settings::Settings;
use crate::validate::{Validated, validate};

/// Most guests of one host: as many models as a gateway's file takes beside the first one.
pub const MOST_GUESTS: usize = MAX_MODELS;

/// How a service shares gateways with others.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sharing {
    /// Services that this one's gateway serves too, by name.
    pub guests: Vec<Guest>,
    /// The service whose gateway serves this one, where it names one.
    pub host: Option<Host>,
}

/// A service behind another one's gateway.
#[derive(Clone, Debug, PartialEq)]
pub struct Guest {
    /// The service.
    pub service: Validated,
    /// What its status says was decided about its groups, as far as its gateway must know.
    pub decisions: Decisions,
}

/// The service that another one names.
#[derive(Clone, Debug, PartialEq)]
pub enum Host {
    /// Its gateway serves the other one.
    Serves(Box<Validated>),
    /// It has no gateway that could, or takes no change at present.
    Unfit {
        /// Why, and what to do.
        why: String,
        /// Its uid, where there is such a service: a gateway that runs goes on, and is trusted as before.
        uid: Option<String>,
    },
}

impl Sharing {
    /// The service whose gateway serves this one.
    pub fn serving_host(&self) -> Option<&Validated> {
        match &self.host {
            Some(Host::Serves(host)) => Some(host),
            Some(Host::Unfit { .. }) | None => None,
        }
    }
}

/// The name of the service whose gateway a spec asks for.
pub fn reference(spec: &InferenceServiceSpec) -> Option<&str> {
    spec.gateway
        .gateway_ref
        .as_ref()
        .map(|reference| reference.name.as_str())
}

/// The service with what it shares. `others` are services of its namespace; those that matter are the one that it names and all that name the
/// same one or this one.
///
/// # Errors
/// It can't be a guest, for a reason that its own spec can end.
pub fn join<'a>(
    service: &InferenceService,
    mut own: Validated,
    others: impl IntoIterator<Item = &'a InferenceService>,
    settings: &Settings,
) -> Result<Validated, Vec<FieldError>> {
    let is_other = |other: &&InferenceService| other.metadata.name != service.metadata.name;
    let others: Vec<&InferenceService> = others.into_iter().filter(is_other).collect();
    let Some(name) = reference(&own.spec) else {
        if own.spec.gateway.enabled {
            let seats = seats(&own, &others, settings);
            own.sharing.guests = seats.into_iter().filter_map(Seat::taken).collect();
            own.sharing
                .guests
                .sort_by(|a, b| a.service.name.cmp(&b.service.name));
        }
        return Ok(own);
    };
    let host = match host(name, &others, settings) {
        Ok(host) => host,
        Err(why) => {
            let named = others
                .iter()
                .find(|other| other.metadata.name.as_deref() == Some(name));
            let uid = named.and_then(|host| host.metadata.uid.clone());
            own.sharing.host = Some(Host::Unfit { why, uid });
            return Ok(own);
        }
    };
    let candidates: Vec<&InferenceService> = others.into_iter().chain([service]).collect();
    let mut seats = seats(&host, &candidates, settings).into_iter();
    let refusal = seats
        .find(|seat| seat.guest.name == own.name)
        .and_then(|seat| seat.refusal);
    if let Some(refusal) = refusal {
        return Err(vec![refusal]);
    }
    own.sharing.host = Some(Host::Serves(Box::new(host)));
    Ok(own)
}

/// The same for a service whose spec was refused, as far as its certificates go: its pods and those that they meet run on, and are trusted as
/// before.
pub fn keep(
    service: &InferenceService,
    own: Validated,
    others: &[&InferenceService],
    settings: &Settings,
) -> Validated {
    let kept = join(service, own.clone(), others.iter().copied(), settings);
    kept.unwrap_or_else(|_| {
        let mut own = own;
        let name = reference(&service.spec);
        let host = others.iter().find(|other| other.metadata.name.as_deref() == name);
        own.sharing.host = host.map(|host| Host::Unfit {
            why: String::new(),
            uid: host.metadata.uid.clone(),
        });
        own
    })
}

/// The service of that name, if its gateway can serve others.
fn host(name: &str, others: &[&InferenceService], settings: &Settings) -> Result<Validated, String> {
    let is_named = |other: &&&InferenceService| other.metadata.name.as_deref() == Some(name);
    let Some(host) = others.iter().find(is_named) else {
        return Err(format!(
            "there is no InferenceService {name} in this namespace: create it, or name another one in spec.gateway.gatewayRef"
        ));
    };
    if host.metadata.deletion_timestamp.is_some() {
        return Err(format!(
            "InferenceService {name} is being deleted: name another one in spec.gateway.gatewayRef"
        ));
    }
    if let Some(next) = reference(&host.spec) {
        return Err(format!(
            "InferenceService {name} has no gateway of its own, it uses that of {next}: name {next} in spec.gateway.gatewayRef"
        ));
    }
    if !host.spec.gateway.enabled {
        return Err(format!(
            "InferenceService {name} has no gateway: set its spec.gateway.enabled to true, or name another one in spec.gateway.gatewayRef"
        ));
    }
    validate(host, settings).map_err(|errors| {
        let first = errors.first().map(ToString::to_string).unwrap_or_default();
        format!(
            "the spec of InferenceService {name} isn't accepted ({first}): until it is, its gateway goes on as it was and hears of no change"
        )
    })
}

/// A service that asks for a host's gateway, and why it doesn't get it.
struct Seat {
    guest: Validated,
    decisions: Decisions,
    refusal: Option<FieldError>,
}

impl Seat {
    fn taken(self) -> Option<Guest> {
        self.refusal.is_none().then_some(Guest {
            service: self.guest,
            decisions: self.decisions,
        })
    }
}

/// All services that ask for the host's gateway and have something to serve, the oldest first, and by name where they are equally old. A model
/// name belongs to the host first, and then to the first one that has it.
fn seats(host: &Validated, candidates: &[&InferenceService], settings: &Settings) -> Vec<Seat> {
    let mut asking: Vec<(&InferenceService, Validated)> = candidates
        .iter()
        .filter(|other| other.metadata.deletion_timestamp.is_none())
        .filter(|other| reference(&other.spec) == Some(host.name.as_str()))
        .filter_map(|other| Some((*other, candidate(other, settings)?)))
        .collect();
    let born = |service: &InferenceService| {
        let born = service.metadata.creation_timestamp.as_ref();
        born.map_or(Timestamp::MIN, |time| time.0)
    };
    asking.sort_by(|(a, x), (b, y)| (born(a), &x.name).cmp(&(born(b), &y.name)));
    let names = host.model_names().into_iter();
    let mut taken: BTreeMap<String, String> = names
        .map(|(_, name)| (name.to_owned(), host.name.clone()))
        .collect();
    let mut room = MOST_GUESTS;
    let mut seats = Vec::new();
    for (service, guest) in asking {
        let refusal = other_certificates(host, &guest)
            .or_else(|| collision(&taken, &guest))
            .or_else(|| (room == 0).then(|| full(host)));
        if refusal.is_none() {
            room -= 1;
            for (_, name) in guest.model_names() {
                taken.insert(name.to_owned(), guest.name.clone());
            }
        }
        let status = service.status.clone().unwrap_or_default();
        seats.push(Seat {
            decisions: groups::remembered(&guest, &status),
            guest,
            refusal,
        });
    }
    seats
}

/// A service whose spec is accepted; or one that an edit broke, whose groups go on serving: it isn't taken from its gateway for that.
fn candidate(service: &InferenceService, settings: &Settings) -> Option<Validated> {
    let serves = service
        .status
        .as_ref()
        .is_some_and(|status| !status.groups.is_empty());
    let accepted = validate(service, settings).ok();
    accepted.or_else(|| serves.then(|| Validated::unjudged(service)))
}

/// A gateway answers a name for one model.
fn collision(taken: &BTreeMap<String, String>, guest: &Validated) -> Option<FieldError> {
    let mut names = guest.model_names().into_iter();
    let (path, name, other) = names.find_map(|(path, name)| Some((path, name, taken.get(name)?)))?;
    let message = format!(
        "the gateway that spec.gateway.gatewayRef names serves {name:?} for InferenceService {other} already: give the model another name"
    );
    Some(FieldError::new(path, Reason::NameCollision, message))
}

/// Gateway and engines must trust each other's authority.
fn other_certificates(host: &Validated, guest: &Validated) -> Option<FieldError> {
    let (theirs, own) = (&host.spec.tls, &guest.spec.tls);
    let refuse = |path: &str, what: String| {
        let message = format!(
            "the gateway of InferenceService {} {what}, and would trust these engines as little as they trust it: set the same here and there, \
             or give this service a gateway of its own",
            host.name
        );
        Some(FieldError::new(path, Reason::InvalidSpec, message))
    };
    if theirs.mode != own.mode {
        return refuse(
            "spec.tls.mode",
            format!("has certificates of mode {:?}", theirs.mode),
        );
    }
    if own.mode == TlsMode::CertManager && theirs.issuer_ref != own.issuer_ref {
        let issuer = theirs.issuer_ref.as_ref();
        let issuer = issuer.map(|issuer| issuer.name.as_str()).unwrap_or_default();
        return refuse(
            "spec.tls.issuerRef",
            format!("has certificates of issuer {issuer}"),
        );
    }
    None
}

fn full(host: &Validated) -> FieldError {
    FieldError::new(
        "spec.gateway.gatewayRef",
        Reason::Unsupported,
        format!(
            "the gateway of InferenceService {} serves {MOST_GUESTS} others already: name another one",
            host.name
        ),
    )
}
