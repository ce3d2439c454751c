//! Revisions: what of a spec makes groups be replaced, and how old ones are kept.
//!
//! A revision's name is a hash of those parts of the spec that decide what a group's pods are. It doesn't depend on the
//! operator's version, on how pods are built, or on the operator's default image: upgrading the operator replaces no group.
//! The image that a revision runs is settled when it is first seen and kept with it.
//!
//! Each revision is kept as a ControllerRevision of the service, so that a rollout can go back to it.

use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::apimachinery::pkg::runtime::RawExtension;
use kvasir_operator_api::{
    AcceleratorSpec, EngineSpec, InferenceServiceSpec, ModelFormat, ModelSource, SchedulingSpec, TlsMode,
    TopologySpec, labels,
    names::{self, Names},
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::build::meta;
use crate::child::{Child, Kind, Live};
use crate::settings::Settings;
use crate::validate::Validated;

/// The parts of a spec that decide what a group's pods are.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RevisionSpec {
    /// Where the model comes from.
    pub source: ModelSource,
    /// Its digest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    /// Its format.
    pub format: ModelFormat,
    /// The engine.
    pub engine: EngineSpec,
    /// The device.
    pub accelerator: AcceleratorSpec,
    /// The group's shape.
    pub topology: TopologySpec,
    /// Where pods may run.
    pub scheduling: SchedulingSpec,
    /// Certificates, written as Internal whoever makes them, or none: pods mount what the operator brings them in every mode.
    pub tls: TlsMode,
    /// The Secret with the certificate, in mode Provided, of revisions that earlier versions made: their pods mount it themselves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls_secret_name: Option<String>,
    /// What the user changed of the pod template.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_overrides: Option<Map<String, Value>>,
    /// The user's word for "again".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restarted_at: Option<String>,
    /// The pods' identity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_account_name: Option<String>,
}

/// A revision.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Revision {
    /// Its name.
    #[serde(skip)]
    pub name: String,
    /// The image that its engines run.
    pub image: String,
    /// What it is made from.
    pub spec: RevisionSpec,
}

impl Revision {
    /// The revision of a spec; its image is the one that was settled before, if it is known.
    #[expect(
        clippy::missing_panics_doc,
        reason = "a spec is plain data and always serializes"
    )]
    pub fn of(spec: &InferenceServiceSpec, known: &[Self], settings: &Settings) -> Self {
        let rolled = RevisionSpec {
            source: spec.model.source.clone(),
            sha256: spec.model.sha256.clone(),
            format: spec.model.format,
            engine: spec.engine.clone(),
            accelerator: spec.accelerator.clone(),
            topology: spec.topology.clone(),
            scheduling: spec.scheduling.clone(),
            tls: match spec.tls.mode {
                TlsMode::Off => TlsMode::Off,
                TlsMode::Internal | TlsMode::CertManager | TlsMode::Provided => TlsMode::Internal,
            },
            tls_secret_name: None,
            pod_overrides: spec.pod_overrides.clone(),
            restarted_at: spec.restarted_at.clone(),
            service_account_name: spec.service_account_name.clone(),
        };
        let hash = |rolled: &RevisionSpec| {
            let text = serde_json::to_string(rolled).expect("a spec is plain data");
            names::short_hash(text.as_bytes())
        };
        let is_known = |name: &str| known.iter().any(|revision| revision.name == name);
        let provided = spec.tls.mode == TlsMode::Provided;
        let earlier = RevisionSpec {
            tls: spec.tls.mode,
            tls_secret_name: spec.tls.secret_name.clone().filter(|_| provided),
            ..rolled.clone()
        };
        let (name, earlier_name) = (hash(&rolled), hash(&earlier));
        let (name, rolled) = if !is_known(&name) && is_known(&earlier_name) {
            (earlier_name, earlier)
        } else {
            (name, rolled)
        };
        let image = known
            .iter()
            .find(|revision| revision.name == name)
            .map(|revision| revision.image.clone())
            .or_else(|| spec.engine.image.clone())
            .unwrap_or_else(|| settings.engine_image.clone());
        Self {
            name,
            image,
            spec: rolled,
        }
    }

    /// Reads a kept revision. One that can't be read is no revision. Its name is that of the object, which nobody can edit.
    pub fn read(names: &Names, live: &Live) -> Option<(i64, Self)> {
        if live.reference.kind != Kind::ControllerRevision {
            return None;
        }
        let data = &live.object["data"];
        let mut revision: Self = match data[TEXT_KEY].as_str() {
            Some(text) => serde_json::from_str(text).ok()?,
            None => serde_json::from_value(data.clone()).ok()?,
        };
        names
            .revision_hash(&live.reference.name)?
            .clone_into(&mut revision.name);
        Some((live.object["revision"].as_i64()?, revision))
    }

    /// The object that keeps it. `number` orders revisions by age.
    #[expect(
        clippy::missing_panics_doc,
        reason = "a revision is plain data and always serializes"
    )]
    pub fn child(&self, service: &Validated, number: i64) -> Child {
        let name = service.names.revision(&self.name);
        let mut metadata = meta::of_service(service, &name);
        metadata
            .labels
            .get_or_insert_default()
            .insert(labels::REVISION.to_owned(), self.name.clone());
        let mut data = serde_json::to_value(self).expect("a revision is plain data");
        // The API server compares the bytes of what is immutable, and a patch of anything in the object has sorted these keys. In any other
        // order nobody could patch it, and the garbage collector, which has to for `kubectl delete --cascade=orphan`, would try for ever.
        data.sort_all_objects();
        if let Some(text) = escaped(&data) {
            data = json!({ TEXT_KEY: text });
        }
        let object = ControllerRevision {
            metadata,
            data: RawExtension(data),
            revision: Some(number),
        };
        // Its data is immutable: whatever a later operator would write there, the old one stays.
        Child::new(Kind::ControllerRevision, &name, &object)
            .with_hash(names::short_hash(format!("{} {FORM}", self.name).as_bytes()))
    }
}

/// Form of the data, which is part of the desired hash: an object whose data is of an earlier form is written anew, if it has to be.
const FORM: u32 = 2;
/// Key of data that is kept as a text.
const TEXT_KEY: &str = "text";

/// The data as a text, where the API server would write it in another way than it was given: its encoder escapes these characters, and
/// the bytes of what is immutable are compared. In a text that has no such character both ways are one.
fn escaped(data: &Value) -> Option<String> {
    let escape = |c: char| match c {
        '<' => Some("\\u003c"),
        '>' => Some("\\u003e"),
        '&' => Some("\\u0026"),
        '\u{2028}' => Some("\\u2028"),
        '\u{2029}' => Some("\\u2029"),
        _ => None,
    };
    let text = data.to_string();
    text.contains(|c| escape(c).is_some()).then(|| {
        let mut safe = String::with_capacity(text.len() + 32);
        for c in text.chars() {
            match escape(c) {
                Some(escaped) => safe.push_str(escaped),
                None => safe.push(c),
            }
        }
        safe
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_api_server_escapes_is_kept_as_a_text_without_it_and_read_back() {
        let data = json!({ "a": "<b> & \u{2028}\"\\", "c": [1] });
        let text = escaped(&data).unwrap();
        assert!(!text.contains(['<', '>', '&', '\u{2028}']), "{text}");
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), data);
        assert_eq!(escaped(&json!({ "a": "plain" })), None);
    }
}
