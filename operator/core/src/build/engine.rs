//! A group: its StatefulSet and its configuration.
//!
//! `Parallel`, because ranks need each other to become ready; `OnDelete`, because pods of a group never change one by one: a
//! new revision is a new StatefulSet. Its hash is that of revision and id, not of the object: a later operator that would
//! build it otherwise leaves running groups alone.

use k8s_openapi::api::apps::v1::{
    StatefulSet, StatefulSetPersistentVolumeClaimRetentionPolicy, StatefulSetSpec, StatefulSetUpdateStrategy,
};
use k8s_openapi::api::core::v1::{
    ConfigMap, PersistentVolumeClaim, PersistentVolumeClaimSpec, PodTemplateSpec, VolumeResourceRequirements,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kvasir_operator_api::{AccessMode, CacheSpec, Retention, labels, names};
use serde_json::{Value, json};

use super::{config, engine_pod, meta, overrides};
use crate::child::{CLAIM_RETENTION, CLAIMS, Child, Kind, Live};
use crate::ranks::Shape;
use crate::revision::Revision;
use crate::settings::Settings;
use crate::validate::Validated;

/// Name of the volume for fetched models.
pub const CACHE_VOLUME: &str = "cache";
/// Key of the engine's configuration file.
pub const CONFIG_KEY: &str = "engine.yaml";

/// A group's configuration.
pub fn configuration(service: &Validated, id: i32, revision: &Revision) -> Child {
    let name = service.names.group_config(id);
    let text = config::engine(service, revision).to_string();
    let object = ConfigMap {
        metadata: meta::of_group(service, id, &name),
        data: Some([(CONFIG_KEY.to_owned(), text)].into()),
        ..ConfigMap::default()
    };
    // Like its pods, it stays what it was when the group was made.
    Child::new(Kind::ConfigMap, &name, &object).with_hash(group_hash(id, revision))
}

/// A group's StatefulSet. `live` is the one that exists: another cache is for new groups, and the claims of a StatefulSet can't be changed.
pub fn group(
    service: &Validated,
    id: i32,
    revision: &Revision,
    settings: &Settings,
    live: Option<&Live>,
) -> Child {
    let name = service.names.group(id);
    let mut metadata = meta::of_group(service, id, &name);
    metadata
        .labels
        .get_or_insert_default()
        .insert(labels::REVISION.to_owned(), revision.name.clone());
    // A revision that was accepted has a shape; one that an edit broke gets one pod, which says what is wrong.
    let pods = Shape::new(&revision.spec.topology).map_or(1, |shape| shape.pods());
    let cache = service
        .spec
        .storage
        .as_ref()
        .and_then(|storage| storage.cache.as_ref());
    let has_cache = live.map_or(cache.is_some(), Live::has_claims);
    let object = StatefulSet {
        metadata,
        spec: StatefulSetSpec {
            replicas: Some(i32::try_from(pods).unwrap_or(i32::MAX)),
            service_name: Some(service.names.ranks_service()),
            pod_management_policy: Some("Parallel".to_owned()),
            update_strategy: Some(StatefulSetUpdateStrategy {
                type_: Some("OnDelete".to_owned()),
                rolling_update: None,
            }),
            revision_history_limit: Some(1),
            selector: meta::selector(labels::of_group(service.names.service(), id)),
            template: template(service, id, revision, settings, has_cache),
            volume_claim_templates: cache.map(|cache| vec![claim(cache)]),
            persistent_volume_claim_retention_policy: cache.map(retention),
            ..StatefulSetSpec::default()
        },
        status: None,
    };
    let mut child = Child::new(Kind::StatefulSet, &name, &object);
    if let Some(live) = live {
        keep_claims(&mut child.object["spec"], live);
    }
    if let Some(patch) = &revision.spec.pod_overrides {
        overrides::merge(
            &mut child.object["spec"]["template"],
            &Value::Object(patch.clone()),
        );
    }
    child.with_hash(group_hash(id, revision))
}

fn keep_claims(spec: &mut Value, live: &Live) {
    let Some(spec) = spec.as_object_mut() else { return };
    for key in [CLAIMS, CLAIM_RETENTION] {
        if live.has_claims() {
            spec.insert(key.to_owned(), live.object["spec"][key].clone());
        } else {
            spec.remove(key);
        }
    }
    // Name and spec are what was written; the rest is the API server's.
    let claims = spec.get_mut(CLAIMS).and_then(Value::as_array_mut);
    for claim in claims.into_iter().flatten() {
        *claim = json!({ "metadata": { "name": claim["metadata"]["name"] }, "spec": claim["spec"] });
    }
}

fn group_hash(id: i32, revision: &Revision) -> String {
    names::short_hash(format!("{id} {} {}", revision.name, revision.image).as_bytes())
}

fn template(
    service: &Validated,
    id: i32,
    revision: &Revision,
    settings: &Settings,
    has_cache: bool,
) -> PodTemplateSpec {
    let mut pod_labels = labels::of_service(service.names.service());
    pod_labels.extend(labels::of_group(service.names.service(), id));
    pod_labels.insert(labels::REVISION.to_owned(), revision.name.clone());
    if revision.spec.source.is_fetched() {
        pod_labels.insert(labels::LOADING.to_owned(), "true".to_owned());
    }
    PodTemplateSpec {
        metadata: Some(ObjectMeta {
            labels: Some(pod_labels),
            ..ObjectMeta::default()
        }),
        spec: Some(engine_pod::pod(service, id, revision, settings, has_cache)),
    }
}

fn claim(cache: &CacheSpec) -> PersistentVolumeClaim {
    let mode = match cache.access_mode {
        AccessMode::ReadWriteOnce => "ReadWriteOnce",
        AccessMode::ReadWriteOncePod => "ReadWriteOncePod",
    };
    PersistentVolumeClaim {
        metadata: ObjectMeta {
            name: Some(CACHE_VOLUME.to_owned()),
            ..ObjectMeta::default()
        },
        spec: Some(PersistentVolumeClaimSpec {
            access_modes: Some(vec![mode.to_owned()]),
            storage_class_name: cache.storage_class_name.clone(),
            resources: Some(VolumeResourceRequirements {
                requests: Some([("storage".to_owned(), Quantity(cache.size.0.clone()))].into()),
                limits: None,
            }),
            ..PersistentVolumeClaimSpec::default()
        }),
        status: None,
    }
}

fn retention(cache: &CacheSpec) -> StatefulSetPersistentVolumeClaimRetentionPolicy {
    let deleted = match cache.retention {
        Retention::Delete => "Delete",
        Retention::Retain => "Retain",
    };
    StatefulSetPersistentVolumeClaimRetentionPolicy {
        when_deleted: Some(deleted.to_owned()),
        when_scaled: Some("Retain".to_owned()),
    }
}
