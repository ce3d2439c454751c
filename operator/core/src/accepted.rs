//! The last spec that was accepted: what runs follows it while a newer one is refused.
//!
//! An edit that is refused must not stop anything: ranks fail, nodes are lost and certificates end meanwhile. So the status keeps the spec that
//! was accepted last, and rounds go on by it. Nobody but the operator may write statuses, so nobody else can put a spec there.
//!
//! Others read it too: whose gateway serves a service, and under which names, is what was accepted and not what was asked for.

use std::borrow::Cow;

use kvasir_operator_api::{ConditionType, InferenceService, InferenceServiceSpec, Reason};

use crate::child::Kind;
use crate::field_error::FieldError;
use crate::settings::Settings;
use crate::sharing;
use crate::validate::{Validated, validate};

/// Largest spec in bytes of JSON, so that a status with one in it stays small.
pub const MAX_SPEC_BYTES: usize = 65_536;

/// What a service's spec comes to.
#[derive(Clone, Debug, PartialEq)]
pub enum Judgement {
    /// It can be built.
    Accepted(Box<Validated>),
    /// It can't.
    Refused {
        /// Why, in the order of paths.
        errors: Vec<FieldError>,
        /// What runs meanwhile; nothing if none was ever accepted.
        last: Option<Last>,
    },
}

/// What was accepted last.
#[derive(Clone, Debug, PartialEq)]
pub enum Last {
    /// It would be accepted again: everything goes on by it.
    Valid(Box<Validated>),
    /// It wouldn't, because the operator's settings, an annotation or the cluster's kinds are others by now. What runs by it runs on, as long
    /// as it lives: nothing new is made from it.
    Outdated(Box<Validated>),
}

/// Judges the service among `others` of its namespace, as [`sharing::join`] wants them.
pub fn judge<'a>(
    service: &InferenceService,
    others: impl IntoIterator<Item = &'a InferenceService>,
    settings: &Settings,
) -> Judgement {
    let others: Vec<&InferenceService> = others.into_iter().collect();
    let joined = validate(service, settings)
        .and_then(|own| sharing::join(service, own, others.iter().copied(), settings));
    let mut errors = match joined {
        Ok(joined) => return Judgement::Accepted(Box::new(joined)),
        Err(errors) => errors,
    };
    let last = last(service).map(|before| {
        let keep = |own| Box::new(sharing::keep(&before, own, &others, settings));
        match validate(&before, &with_all_kinds(settings)) {
            Ok(own) => Last::Valid(keep(own)),
            Err(outdated) => {
                errors.push(nothing_new(&outdated, errors.first()));
                Last::Outdated(keep(Validated::unjudged(&before)))
            }
        }
    });
    Judgement::Refused { errors, last }
}

/// A kind that the cluster doesn't know for a while is missed by what it is for and by nothing else.
fn with_all_kinds(settings: &Settings) -> Settings {
    Settings {
        known_kinds: Kind::ALL.into_iter().collect(),
        ..settings.clone()
    }
}

/// What is said where not even the spec that was accepted last can be gone on with.
fn nothing_new(outdated: &[FieldError], refusal: Option<&FieldError>) -> FieldError {
    let first = outdated.first();
    let why = first.filter(|first| Some(*first) != refusal);
    let why = why.map(|why| format!(" ({why})")).unwrap_or_default();
    FieldError::new(
        "status.acceptedSpec",
        first.map_or(Reason::InvalidSpec, |first| first.reason),
        format!(
            "the spec that what runs was made from wouldn't be accepted any more{why}: its certificates are renewed, and nothing else is repaired or \
             changed until the service's spec is accepted"
        ),
    )
}

/// The spec that what runs follows, if any was accepted.
pub fn spec(service: &InferenceService) -> Option<Cow<'_, InferenceServiceSpec>> {
    if is_accepted(service) {
        return Some(Cow::Borrowed(&service.spec));
    }
    read(service).map(Cow::Owned)
}

/// The service with that spec.
pub fn last(service: &InferenceService) -> Option<InferenceService> {
    Some(InferenceService {
        metadata: service.metadata.clone(),
        spec: spec(service)?.into_owned(),
        status: service.status.clone(),
    })
}

/// What the status has to keep of a service, where it says that its spec is accepted.
pub(crate) fn kept(service: &InferenceService) -> Option<String> {
    let accepted = spec(service)?;
    remember(&accepted).filter(|text| text.len() <= MAX_SPEC_BYTES)
}

/// What the status keeps of a spec.
pub(crate) fn remember(spec: &InferenceServiceSpec) -> Option<String> {
    serde_json::to_string(spec).ok()
}

/// Refuses a spec that is too large to be kept.
pub(crate) fn check(spec: &InferenceServiceSpec, errors: &mut Vec<FieldError>) {
    let bytes = remember(spec).map_or(0, |text| text.len());
    if bytes > MAX_SPEC_BYTES {
        errors.push(FieldError::new(
            "spec",
            Reason::InvalidSpec,
            format!(
                "it has {bytes} bytes as JSON, and {MAX_SPEC_BYTES} at most are kept: shorten podOverrides or engine.env, or put their data into a \
                 ConfigMap"
            ),
        ));
    }
}

/// The status says so of this very spec.
fn is_accepted(service: &InferenceService) -> bool {
    service.status.as_ref().is_some_and(|status| {
        let accepted = status.condition(ConditionType::Accepted);
        status.observed_generation == service.metadata.generation
            && accepted.is_some_and(|condition| condition.status == "True")
    })
}

/// What the status keeps. One that can't be read, because a later version wrote it, is none.
fn read(service: &InferenceService) -> Option<InferenceServiceSpec> {
    let text = service.status.as_ref()?.accepted_spec.as_ref()?;
    serde_json::from_str(text).ok()
}
