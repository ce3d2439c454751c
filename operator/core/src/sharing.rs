//! Services that share a gateway: whose gateway serves whom, and what each must know of the other.
//!
//! A service that names another one in `spec.gateway.gatewayRef` is a guest of that one, its host. The host's gateway lists the guest's model
//! beside its own, may reach the guest's engines, and carries the guest's gateway name in its certificate, so that nothing about a guest's
//! engines depends on whose gateway serves them: a change of `gatewayRef` replaces no group.
//!
//! What others are is read from the specs that were accepted last ([`accepted`]), never from what they ask for: a guest is listed when its own
//! round has accepted it, and an edit that is refused changes nothing on either side. So a model name belongs to whoever serves it; whoever
//! comes later or takes it up in an edit is refused. Two that were accepted at the same moment are told apart by their age.
//!
//! Whether a service may be a guest depends on others, which come and go. What it can put right itself (a name that is taken) refuses its spec;
//! a host that isn't there leaves its engines running and waits.

use std::collections::BTreeMap;

use jiff::Timestamp;
use kvasir_config::gateway::MAX_MODELS;
use kvasir_operator_api::{ConditionType, InferenceService, InferenceServiceSpec, Reason};

use crate::accepted;
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
    /// Why the host's gateway hears of no change at present, where it doesn't.
    pub deaf_host: Option<String>,
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
/// It can't be a guest, or serve its guests, for a reason that its own spec can end.
pub fn join<'a>(
    service: &InferenceService,
    mut own: Validated,
    others: impl IntoIterator<Item = &'a InferenceService>,
    settings: &Settings,
) -> Result<Validated, Vec<FieldError>> {
    let is_other = |other: &&InferenceService| other.metadata.name != service.metadata.name;
    let others: Vec<&InferenceService> = others.into_iter().filter(is_other).collect();
    if let Some(name) = reference(&own.spec) {
        own.sharing.host = Some(match host(name, &others) {
            Ok(found) => {
                let host = Validated::unjudged(&found);
                may_enter(&own, &host, &behind(service, &host, &others)).map_err(|refusal| vec![refusal])?;
                own.sharing.deaf_host = deafness(name, &found, settings);
                Host::Serves(Box::new(host))
            }
            Err(why) => unfit(name, why, &others),
        });
    } else if own.spec.gateway.enabled {
        may_be_called(service, &own, &others).map_err(|refusal| vec![refusal])?;
        own.sharing.guests = guests(&own, &others);
        own.sharing
            .guests
            .sort_by(|a, b| a.service.name.cmp(&b.service.name));
    }
    Ok(own)
}

/// The same for a service that goes on by the spec that was accepted last, whatever became of its place meanwhile: its pods and those that they
/// meet run on, and are trusted as before.
pub fn keep(
    service: &InferenceService,
    mut own: Validated,
    others: &[&InferenceService],
    settings: &Settings,
) -> Validated {
    let name = reference(&own.spec).map(str::to_owned);
    if let Some(host) = name.as_deref().and_then(|name| host(name, others).ok()) {
        let host = Validated::unjudged(&host);
        behind(service, &host, others).names.leave_taken_aliases(&mut own);
    }
    let kept = join(service, own.clone(), others.iter().copied(), settings);
    kept.unwrap_or_else(|errors| {
        let why = errors.first().map(ToString::to_string).unwrap_or_default();
        own.sharing.host = name.map(|name| unfit(&name, why, others));
        own
    })
}

fn unfit(name: &str, why: String, others: &[&InferenceService]) -> Host {
    let uid = named(name, others).and_then(|host| host.metadata.uid.clone());
    Host::Unfit { why, uid }
}

fn named<'a>(name: &str, others: &[&'a InferenceService]) -> Option<&'a InferenceService> {
    let is_named = |other: &&&InferenceService| other.metadata.name.as_deref() == Some(name);
    others.iter().find(is_named).copied()
}

/// The service of that name as it was accepted last, if its gateway can serve others.
fn host(name: &str, others: &[&InferenceService]) -> Result<InferenceService, String> {
    let Some(host) = named(name, others) else {
        return Err(format!(
            "there is no InferenceService {name} in this namespace: create it, or name another one in spec.gateway.gatewayRef"
        ));
    };
    if host.metadata.deletion_timestamp.is_some() {
        return Err(format!(
            "InferenceService {name} is being deleted: name another one in spec.gateway.gatewayRef"
        ));
    }
    let Some(host) = accepted::last(host) else {
        return Err(never_accepted(name, host));
    };
    if let Some(next) = reference(&host.spec) {
        return Err(format!(
            "InferenceService {name} has no gateway of its own, it asks for that of {next}: name one that has a gateway in \
             spec.gateway.gatewayRef, or leave that out and set gateway.enabled to true"
        ));
    }
    if !host.spec.gateway.enabled {
        return Err(format!(
            "InferenceService {name} has no gateway: set its spec.gateway.enabled to true, or name another one in spec.gateway.gatewayRef"
        ));
    }
    Ok(host)
}

/// Why the host's gateway hears of no change, where it doesn't: the spec that it was made from wouldn't be accepted any more.
fn deafness(name: &str, host: &InferenceService, settings: &Settings) -> Option<String> {
    let errors = validate(host, settings).err()?;
    let first = errors.first().map(ToString::to_string).unwrap_or_default();
    Some(format!(
        "the spec of InferenceService {name} isn't accepted any more ({first}): until it is, its gateway goes on as it was and hears of no change"
    ))
}

fn never_accepted(name: &str, host: &InferenceService) -> String {
    let status = host.status.as_ref();
    let accepted = status.and_then(|status| status.condition(ConditionType::Accepted));
    match accepted.filter(|accepted| accepted.status == "False") {
        Some(accepted) => format!(
            "the spec of InferenceService {name} isn't accepted ({}): it has no gateway until it is",
            accepted.message
        ),
        None => {
            format!("InferenceService {name} was created a moment ago, and nobody has looked at its spec yet")
        }
    }
}

/// All services that the host's gateway serves beside its own, the oldest first, and by name where they are equally old. A model name belongs
/// to the host first, and then to the first one that has it.
fn guests(host: &Validated, others: &[&InferenceService]) -> Vec<Guest> {
    let is_served = |other: &&&InferenceService| {
        let spec = accepted::spec(other);
        other.metadata.deletion_timestamp.is_none()
            && spec.is_some_and(|spec| reference(&spec) == Some(host.name.as_str()))
    };
    let served = others.iter().filter(is_served);
    let mut served: Vec<InferenceService> = served.filter_map(|other| accepted::last(other)).collect();
    served.sort_by_cached_key(|service| {
        let born = service.metadata.creation_timestamp.as_ref();
        (
            born.map_or(Timestamp::MIN, |time| time.0),
            service.metadata.name.clone(),
        )
    });
    let mut names = Names::default();
    names.take(host);
    let mut guests = Vec::new();
    for service in served {
        let mut guest = Validated::unjudged(&service);
        names.leave_taken_aliases(&mut guest);
        if guests.len() < MOST_GUESTS && names.taken(&guest).is_none() {
            names.take(&guest);
            let status = service.status.unwrap_or_default();
            guests.push(Guest {
                decisions: groups::remembered(&guest, &status),
                service: guest,
            });
        }
    }
    guests
}

/// Who serves which model name behind one gateway, and whether it is its model's own name and no alias.
#[derive(Default)]
struct Names(BTreeMap<String, (String, bool)>);

/// A name that somebody else has.
struct Taken<'a> {
    /// The field that asks for it.
    path: String,
    name: &'a str,
    owner: &'a str,
    /// What helps.
    way_out: &'static str,
}

impl Names {
    fn take(&mut self, service: &Validated) {
        for (_, name) in service.model_names() {
            let owner = (service.name.clone(), name == service.model_name());
            self.0.insert(name.to_owned(), owner);
        }
    }

    /// The first name of the service that another one has.
    fn taken<'a>(&'a self, service: &'a Validated) -> Option<Taken<'a>> {
        let mut names = service.model_names().into_iter();
        names.find_map(|(path, name)| {
            let owner = self.0.get(name).filter(|(owner, _)| *owner != service.name);
            let (owner, is_their_models) = owner?;
            Some(Taken {
                path,
                name,
                owner,
                way_out: way_out(name == service.model_name(), *is_their_models),
            })
        })
    }

    /// Two that took up one name at one moment were both accepted: the one that loses it goes on without.
    fn leave_taken_aliases(&self, service: &mut Validated) {
        let name = service.name.clone();
        let is_free = |alias: &String| self.0.get(alias).is_none_or(|(owner, _)| *owner == name);
        service.spec.model.aliases.retain(is_free);
    }
}

/// Who is served behind a gateway, and by which names.
struct Behind {
    guests: Vec<Guest>,
    names: Names,
}

/// What is behind the host's gateway, with the service itself as it was served so far.
fn behind(service: &InferenceService, host: &Validated, others: &[&InferenceService]) -> Behind {
    let is_other = |other: &&InferenceService| other.metadata.name != service.metadata.name;
    let all: Vec<&InferenceService> = others.iter().copied().filter(is_other).chain([service]).collect();
    let guests = guests(host, &all);
    let mut names = Names::default();
    names.take(host);
    for guest in &guests {
        names.take(&guest.service);
    }
    Behind { guests, names }
}

/// Whether a service finds room and free names behind the host's gateway.
fn may_enter(own: &Validated, host: &Validated, behind: &Behind) -> Result<(), FieldError> {
    let Behind { guests, names } = behind;
    if let Some(taken) = names.taken(own) {
        let message = format!(
            "the gateway of InferenceService {} serves {:?} for InferenceService {} already: {}",
            host.name, taken.name, taken.owner, taken.way_out
        );
        return Err(FieldError::new(taken.path, Reason::NameCollision, message));
    }
    let is_new = guests.iter().all(|guest| guest.service.name != own.name);
    if is_new && guests.len() >= MOST_GUESTS {
        let message = format!(
            "the gateway of InferenceService {} serves {MOST_GUESTS} others already: name another one",
            host.name
        );
        return Err(FieldError::new(
            "spec.gateway.gatewayRef",
            Reason::Unsupported,
            message,
        ));
    }
    Ok(())
}

/// Whether the names of a service with a gateway are free, or its own. One that had no gateway so far has its names first: nobody was served
/// there.
fn may_be_called(
    service: &InferenceService,
    own: &Validated,
    others: &[&InferenceService],
) -> Result<(), FieldError> {
    let before = accepted::last(service);
    let before = before.filter(|before| before.spec.gateway.enabled && reference(&before.spec).is_none());
    let Some(before) = before else {
        return Ok(());
    };
    let mut names = Names::default();
    for guest in guests(&Validated::unjudged(&before), others) {
        names.take(&guest.service);
    }
    let Some(taken) = names.taken(own) else {
        return Ok(());
    };
    let message = format!(
        "this service's gateway serves {:?} for InferenceService {} already: {}",
        taken.name, taken.owner, taken.way_out
    );
    Err(FieldError::new(taken.path, Reason::NameCollision, message))
}

/// A model's name can't be changed, an alias can.
fn way_out(is_own_models: bool, is_their_models: bool) -> &'static str {
    match (is_own_models, is_their_models) {
        (true, true) => "name another gateway, or make this service anew with another spec.model.name",
        (true, false) => {
            "take it from that one's spec.model.aliases, name another gateway, or make this service anew with another spec.model.name"
        }
        (false, true) => "leave this alias out",
        (false, false) => "leave this alias out, or take it from that one's spec.model.aliases first",
    }
}
