//! Decides whether a spec can be built by this operator.
//!
//! The API server has applied defaults and evaluated the definition's rules; what is judged here needs the operator's own
//! settings, an annotation, or knows what isn't built yet. Everything that is wrong is reported at once, each with its field,
//! as `Accepted=False`. A field that is known and can't be honoured is always refused, never ignored.

mod guest;
mod ignored;
mod names;
mod network;
mod overrides;
mod resources;
mod unknown;

use kvasir_config::model_url;
use kvasir_operator_api::names::Names;
use kvasir_operator_api::{
    AuthMode, InferenceService, InferenceServiceSpec, ModelFormat, Reason, TlsMode, labels,
};

pub use overrides::OWNED_LABEL_PREFIX;

use crate::accepted;
use crate::build::environment::SERVED_NAME;
use crate::build::gateway_config::DEFAULT_TENANT;
use crate::child::Kind;
use crate::field_error::FieldError;
use crate::quantity;
use crate::ranks::Shape;
use crate::settings::Settings;
use crate::sharing::Sharing;

/// A service whose spec can be built.
#[derive(Clone, Debug, PartialEq)]
pub struct Validated {
    /// Name of the service.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// Its uid.
    pub uid: String,
    /// The generation that was judged.
    pub generation: i64,
    /// Names of its children.
    pub names: Names,
    /// The shape of its groups.
    pub shape: Shape,
    /// The revision that a person promotes, from the annotation.
    pub promote: Option<String>,
    /// The spec.
    pub spec: InferenceServiceSpec,
    /// What it shares with other services: nothing until [`sharing::join`](crate::sharing::join) has looked.
    pub sharing: Sharing,
}

impl Validated {
    /// A service of which nobody knows with which spec it was accepted, as far as the certificates of what runs are concerned: the operator signs
    /// them, for groups and, with `has_gateway`, for a gateway.
    pub fn as_it_runs(service: &InferenceService, has_gateway: bool) -> Self {
        let mut running = Self::unjudged(service);
        running.spec.tls.mode = TlsMode::Internal;
        running.spec.gateway.enabled = has_gateway;
        running
    }

    /// A service whose spec was accepted once. The shape of one that couldn't be any more is that of a group of one rank.
    pub(crate) fn unjudged(service: &InferenceService) -> Self {
        let shape = Shape::new(&service.spec.topology).unwrap_or(Shape::SINGLE);
        Self::of(service, shape)
    }

    fn of(service: &InferenceService, shape: Shape) -> Self {
        let metadata = &service.metadata;
        Self {
            name: metadata.name.clone().unwrap_or_default(),
            namespace: metadata.namespace.clone().unwrap_or_default(),
            uid: metadata.uid.clone().unwrap_or_default(),
            generation: metadata.generation.unwrap_or_default(),
            names: Names::new(metadata.name.as_deref().unwrap_or_default()),
            shape,
            promote: annotation(service, labels::PROMOTE).map(str::to_owned),
            spec: service.spec.clone(),
            sharing: Sharing::default(),
        }
    }

    /// The model id that clients use.
    pub fn model_name(&self) -> &str {
        self.spec.model.name.as_deref().unwrap_or(&self.name)
    }

    /// All ids that clients may use, each once and with its field; the first one is in answers.
    pub fn model_names(&self) -> Vec<(String, &str)> {
        let mut all = vec![("spec.model.name".to_owned(), self.model_name())];
        for (i, alias) in self.spec.model.aliases.iter().enumerate() {
            if all.iter().all(|(_, name)| name != alias) {
                all.push((format!("spec.model.aliases[{i}]"), alias));
            }
        }
        all
    }

    /// Groups that should exist.
    pub fn wanted_groups(&self) -> usize {
        if self.spec.suspend {
            0
        } else {
            usize::try_from(self.spec.replicas).unwrap_or(0)
        }
    }

    /// Groups that a drain must leave.
    pub fn minimum_available(&self) -> usize {
        let given = self.spec.disruption.min_available_groups;
        let minimum = given.unwrap_or_else(|| (self.spec.replicas - 1).max(1));
        usize::try_from(minimum).unwrap_or(0)
    }
}

/// Judges the service's spec.
///
/// # Errors
/// Everything that is wrong with it, in the order of paths.
pub fn validate(service: &InferenceService, settings: &Settings) -> Result<Validated, Vec<FieldError>> {
    let spec = &service.spec;
    let mut errors = Vec::new();
    accepted::check(spec, &mut errors);
    ignored::check(spec, &mut errors);
    let shape = shape(spec, settings, &mut errors);
    source(spec, settings, &mut errors);
    anonymous(service, &mut errors);
    overrides::check(spec.pod_overrides.as_ref(), &mut errors);
    names::check(spec, &mut errors);
    network::check(&spec.network, &mut errors);
    network::reach(spec, &mut errors);
    guest::check(service, &mut errors);
    engine(spec, &mut errors);
    needs(spec, shape, settings, &mut errors);
    resources::check("spec.engine.resources", &spec.engine.resources, &mut errors);
    resources::check("spec.gateway.resources", &spec.gateway.resources, &mut errors);
    match shape {
        Some(shape) if errors.is_empty() => Ok(Validated::of(service, shape)),
        _ => {
            errors.sort();
            Err(errors)
        }
    }
}

fn annotation<'a>(service: &'a InferenceService, key: &str) -> Option<&'a str> {
    service
        .metadata
        .annotations
        .as_ref()?
        .get(key)
        .map(String::as_str)
}

fn shape(spec: &InferenceServiceSpec, settings: &Settings, errors: &mut Vec<FieldError>) -> Option<Shape> {
    match Shape::new(&spec.topology) {
        Ok(shape) => {
            if shape.ranks() > 1 && !settings.alpha_topology {
                errors.push(FieldError::new(
                    "spec.topology",
                    Reason::Unsupported,
                    format!(
                        "groups of {} ranks are alpha: start the operator with --alpha-topology, or set tensor, pipeline and data to 1",
                        shape.ranks()
                    ),
                ));
            }
            Some(shape)
        }
        Err(error) => {
            errors.push(FieldError::new(
                "spec.topology",
                Reason::InvalidTopology,
                error.to_string(),
            ));
            None
        }
    }
}

fn source(spec: &InferenceServiceSpec, settings: &Settings, errors: &mut Vec<FieldError>) {
    let source = &spec.model.source;
    let set = [
        source.pvc.is_some(),
        source.image.is_some(),
        source.hugging_face.is_some(),
        source.s3.is_some(),
        source.http.is_some(),
        source.local.is_some(),
    ];
    if set.iter().filter(|set| **set).count() != 1 {
        errors.push(FieldError::new(
            "spec.model.source",
            Reason::UnsupportedSource,
            "exactly one of pvc, image, huggingFace, s3, http and local must be set",
        ));
    }
    if source.local.is_some() && !settings.allow_local_sources {
        errors.push(FieldError::new(
            "spec.model.source.local",
            Reason::UnsupportedSource,
            "a folder of the node can be served only where the operator runs with --allow-local-sources; use pvc or image",
        ));
    }
    if let Some(http) = &source.http {
        http_source(&http.url, spec.model.sha256.as_deref(), errors);
    }
    let closed =
        spec.network.mode == kvasir_operator_api::NetworkMode::Strict && spec.network.model_egress.is_empty();
    if source.is_fetched() && closed {
        errors.push(FieldError::new(
            "spec.network.modelEgress",
            Reason::UnsupportedSource,
            "the model is fetched over the network, but no address is open: list the server's addresses, or use pvc or image",
        ));
    }
}

/// What the cluster or the operator's own rights must have.
fn needs(
    spec: &InferenceServiceSpec,
    shape: Option<Shape>,
    settings: &Settings,
    errors: &mut Vec<FieldError>,
) {
    if spec.tls.mode == TlsMode::CertManager && !settings.known_kinds.contains(&Kind::Certificate) {
        errors.push(FieldError::new(
            "spec.tls.mode",
            Reason::Unsupported,
            "the cluster knows no Certificates (cert-manager.io/v1): install cert-manager, or use Internal",
        ));
    }
    if spec.tls.mode == TlsMode::Provided && shape.is_some_and(|shape| shape.ranks() > 1) {
        errors.push(FieldError::new(
            "spec.tls.mode",
            Reason::Unsupported,
            "ranks know each other by their group's certificate, and one Secret is the same for all groups: use Internal or CertManager",
        ));
    }
    route(spec, settings, errors);
    let reviews = spec.gateway.enabled && spec.gateway.auth.mode == AuthMode::TokenReview;
    if reviews && settings.token_reviewers.is_none() {
        errors.push(FieldError::new(
            "spec.gateway.auth.mode",
            Reason::Unsupported,
            "reviewing tokens is a right on the whole cluster, which this operator can't give: install its chart without watchNamespace and with rbac.create, or use APIKey or JWT",
        ));
    }
}

/// A route to pods that speak TLS needs two kinds of the Gateway API.
fn route(spec: &InferenceServiceSpec, settings: &Settings, errors: &mut Vec<FieldError>) {
    if spec.gateway.route.is_none() {
        return;
    }
    let mut say = |reason: Reason, message: String| {
        errors.push(FieldError::new("spec.gateway.route", reason, message));
    };
    // Behind another service's gateway it's that one's route.
    if !spec.gateway.enabled && spec.gateway.gateway_ref.is_none() {
        say(
            Reason::InvalidSpec,
            "the route leads to the gateway, and gateway.enabled is false".to_owned(),
        );
    }
    let needed = [
        (Kind::HTTPRoute, true),
        (Kind::BackendTLSPolicy, spec.tls.mode != TlsMode::Off),
    ];
    let missing = needed
        .iter()
        .find(|(kind, needed)| *needed && !settings.known_kinds.contains(kind));
    if let Some((kind, _)) = missing {
        say(
            Reason::Unsupported,
            format!(
                "the cluster doesn't know the kind {kind} ({}): install the Gateway API in version 1.4 or newer, or use gateway.ingress",
                kind.api_version()
            ),
        );
    }
}

/// What an engine would refuse at its start.
fn engine(spec: &InferenceServiceSpec, errors: &mut Vec<FieldError>) {
    let kv = &spec.engine.kv;
    if kv.memory.is_some() && kv.memory_fraction_percent.is_some() {
        errors.push(FieldError::new(
            "spec.engine.kv.memoryFractionPercent",
            Reason::InvalidSpec,
            "kv.memory says already how large the cache is: give one of the two",
        ));
    }
    let bytes = |text: &str| quantity::units(text).and_then(|bytes| i64::try_from(bytes).ok());
    if let Some(memory) = kv
        .memory
        .as_ref()
        .filter(|memory| bytes(&memory.0).is_none_or(|n| n < 1))
    {
        errors.push(FieldError::new(
            "spec.engine.kv.memory",
            Reason::InvalidSpec,
            format!(
                "{memory} is no amount of memory: give one from 1 to {} bytes, as 4Gi",
                i64::MAX
            ),
        ));
    }
    for (name, field) in overruled(spec) {
        errors.push(FieldError::new(
            "spec.engine.env",
            Reason::InvalidSpec,
            format!("{name} is set from {field} already: give it in one place"),
        ));
    }
    if spec.model.format == ModelFormat::SafeTensors && spec.model.source.http.is_some() {
        errors.push(FieldError::new(
            "spec.model.format",
            Reason::InvalidSpec,
            "an http source is one GGUF file: use GGUF or Auto",
        ));
    }
}

/// Variables of the user that the model's fields set too, with these. Two of one name can be created and never be changed.
fn overruled(spec: &InferenceServiceSpec) -> impl Iterator<Item = (&str, &'static str)> {
    let hub = spec.model.source.hugging_face.as_ref();
    let set_from = move |name: &str| {
        let (is_set, field) = match name {
            "HF_TOKEN" => (
                hub.is_some_and(|hub| hub.token_secret_ref.is_some()),
                "spec.model.source.huggingFace",
            ),
            "HF_ENDPOINT" => (
                hub.is_some_and(|hub| hub.endpoint.is_some()),
                "spec.model.source.huggingFace",
            ),
            SERVED_NAME => (true, "spec.model.name"),
            _ => return None,
        };
        is_set.then_some(field)
    };
    let names = spec.engine.env.iter().map(|variable| variable.name.as_str());
    names.filter_map(move |name| Some((name, set_from(name)?)))
}

/// What the engine demands of an address, so that a spec it would refuse isn't accepted.
fn http_source(url: &str, sha256: Option<&str>, errors: &mut Vec<FieldError>) {
    if sha256.is_none() {
        errors.push(FieldError::new(
            "spec.model.sha256",
            Reason::UnsupportedSource,
            "an http source needs the SHA-256 of its file: without it nobody could tell what was fetched",
        ));
    }
    if model_url::gguf_stem(model_url::file_name(url)).is_none() {
        errors.push(FieldError::new(
            "spec.model.source.http.url",
            Reason::UnsupportedSource,
            "an address must name one .gguf file; for a folder with safetensors use huggingFace, pvc or image",
        ));
    }
}

/// The API server's rules can't see annotations, so this one is judged here.
fn anonymous(service: &InferenceService, errors: &mut Vec<FieldError>) {
    let open = service.spec.gateway.enabled && service.spec.gateway.auth.mode == AuthMode::None;
    if open && annotation(service, labels::ALLOW_ANONYMOUS) != Some("true") {
        errors.push(FieldError::new(
            "spec.gateway.auth.mode",
            Reason::AnonymousNotAllowed,
            format!(
                "mode None lets everybody who reaches the gateway use the model: set the annotation {}: \"true\" if that is meant, or use APIKey",
                labels::ALLOW_ANONYMOUS
            ),
        ));
    }
    let tenants = &service.spec.gateway.tenants;
    if open && tenants.len() > 1 && tenants.iter().all(|tenant| tenant.name != DEFAULT_TENANT) {
        errors.push(FieldError::new(
            "spec.gateway.tenants",
            Reason::InvalidSpec,
            format!("with mode None nobody says which tenant they are: name one of them {DEFAULT_TENANT}, or list one only"),
        ));
    }
}
