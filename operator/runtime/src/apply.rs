//! Carries out a plan, object by object, in its order.
//!
//! What doesn't exist is created, so that an object that appeared meanwhile isn't overwritten. What exists is applied on the
//! server's side, with its uid as a precondition. The first object that can't be written ends the round: what follows may
//! depend on it, as pods do on the policies that protect them. Nothing depends on what leads to a service or watches it: a host that an
//! ingress controller refuses holds nothing up.

use jiff::Timestamp;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Client;
use kube::api::{
    Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams, Preconditions,
};
use kvasir_operator_api::labels;
use kvasir_operator_api::names::Names;
use kvasir_operator_core::child::{Child, Kind, Live, ObjectRef};
use kvasir_operator_core::observed::FailedWrite;
use kvasir_operator_core::{Delete, Plan, Write};
use serde_json::{Value, json};

use crate::cache::{Cache, ServiceKey, version};
use crate::fence::is_fenced;
use crate::kinds;
use crate::metrics::Metrics;
use crate::ownership;
use crate::watch::{MANAGER, chain, to_value};

/// Field manager of the label that the operator takes from pods.
const POD_MANAGER: &str = "kvasir-operator-pods";

/// Events that are read about one object.
const MOST_EVENTS: u32 = 50;

/// A plan couldn't be carried out to its end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ApplyError {
    /// An object couldn't be written.
    #[error("can't write {object}: {}", chain(source))]
    Write {
        /// Which one.
        object: ObjectRef,
        /// What the API server said.
        source: kube::Error,
    },
    /// An object couldn't be deleted.
    #[error("can't delete {object}: {}", chain(source))]
    Delete {
        /// Which one.
        object: ObjectRef,
        /// What the API server said.
        source: kube::Error,
    },
    /// A pod couldn't be deleted or changed.
    #[error("can't {action} pod {name}: {}", chain(source))]
    Pod {
        /// What was tried.
        action: &'static str,
        /// Which one.
        name: String,
        /// What the API server said.
        source: kube::Error,
    },
    /// An object couldn't be read.
    #[error("can't read {object}: {}", chain(source))]
    Read {
        /// Which one.
        object: ObjectRef,
        /// What the API server said.
        source: kube::Error,
    },
    /// The object belongs to somebody else.
    #[error("{0} exists and belongs to somebody else: delete it or give the service another name")]
    Foreign(ObjectRef),
    /// The answer isn't an object.
    #[error("the API server's answer about {0} has no name or uid")]
    Answer(ObjectRef),
    /// Somebody else wrote at the same time, or what was read is old: the next round sees it.
    #[error("{0} changed meanwhile")]
    Changed(ObjectRef),
}

impl ApplyError {
    /// What couldn't be done, in one word for figures.
    pub(crate) fn what(&self) -> &'static str {
        match self {
            Self::Write { .. } | Self::Answer(_) => "write",
            Self::Delete { .. } => "delete",
            Self::Pod { .. } => "pod",
            Self::Read { .. } => "read",
            Self::Foreign(_) => "foreign",
            Self::Changed(_) => "changed",
        }
    }

    /// What the status says about it.
    pub(crate) fn as_seen(&self) -> FailedWrite {
        match self.source_error() {
            Some(kube::Error::Api(status)) => FailedWrite {
                foreign: false,
                code: Some(status.code),
                why: status.message.clone(),
            },
            Some(source) => FailedWrite {
                foreign: false,
                code: None,
                why: chain(source),
            },
            None => FailedWrite {
                foreign: matches!(self, Self::Foreign(_)),
                code: None,
                why: self.to_string(),
            },
        }
    }

    /// The API server took it in and says no.
    fn is_refusal(&self) -> bool {
        let answer = match self.source_error() {
            Some(kube::Error::Api(status)) => status.code,
            _ => return false,
        };
        (400..500).contains(&answer) && answer != 429 && !self.source_error().is_some_and(is_fenced)
    }

    /// The API server's own error, where there is one.
    pub(crate) fn source_error(&self) -> Option<&kube::Error> {
        match self {
            Self::Write { source, .. }
            | Self::Read { source, .. }
            | Self::Delete { source, .. }
            | Self::Pod { source, .. } => Some(source),
            Self::Answer(_) | Self::Changed(_) | Self::Foreign(_) => None,
        }
    }
}

/// Writes the objects of one service.
pub(crate) struct Applier<'a> {
    pub(crate) client: &'a Client,
    pub(crate) cache: &'a Cache,
    pub(crate) metrics: &'a Metrics,
    pub(crate) key: &'a ServiceKey,
}

impl Applier<'_> {
    /// Everything that a plan names. What is returned is why an outermost object wasn't written, where all else was.
    pub(crate) async fn carry_out(&self, plan: &Plan) -> Result<Option<ApplyError>, ApplyError> {
        let mut refused = None;
        for write in &plan.write {
            match self.write(write).await {
                Ok(_) => {}
                Err(error) if write.child.reference.kind.is_outermost() && error.is_refusal() => {
                    refused.get_or_insert(error);
                }
                Err(error) => return Err(error),
            }
        }
        for delete in &plan.delete {
            self.delete(delete).await?;
        }
        for (name, uid) in &plan.decisions.restart_pods {
            self.delete_pod(name, uid).await?;
        }
        for (name, uid) in &plan.decisions.unlabel_pods {
            self.unlabel_pod(name, uid).await?;
        }
        for (name, uid, hash) in &plan.tell_pods {
            self.tell_pod(name, uid, hash).await?;
        }
        Ok(refused)
    }

    /// One object.
    pub(crate) async fn write(&self, write: &Write) -> Result<Live, ApplyError> {
        let reference = &write.child.reference;
        let result = match &write.uid {
            None => self.create(&write.child).await,
            Some(uid) => self.change(&write.child, uid).await,
        };
        self.metrics
            .wrote(reference.kind, write.uid.is_some(), result.is_ok());
        if write.undoes && result.is_ok() {
            self.metrics.undid(reference.kind);
            self.cache.undid(self.key, reference, Timestamp::now());
        }
        if let Err(error) = &result
            && !error.source_error().is_some_and(is_fenced)
            && !matches!(error, ApplyError::Changed(_))
        {
            let object = match error {
                ApplyError::Foreign(object) => object,
                _ => reference,
            };
            self.cache.failed(self.key, object, error.as_seen());
        }
        result
    }

    async fn create(&self, child: &Child) -> Result<Live, ApplyError> {
        let reference = &child.reference;
        let params = PostParams {
            field_manager: Some(MANAGER.to_owned()),
            ..PostParams::default()
        };
        let object = parse(reference, &child.object)?;
        self.mounts_nothing_foreign(child).await?;
        match self.api(reference.kind).create(&params, &object).await {
            Ok(answer) => self.remember(reference, answer),
            Err(kube::Error::Api(status)) if status.code == 409 => {
                self.look(reference).await?;
                Err(ApplyError::Changed(reference.clone()))
            }
            Err(source) => Err(failed(reference, source)),
        }
    }

    /// New pods never mount a Secret that has the name of one of the service's and is somebody else's.
    async fn mounts_nothing_foreign(&self, child: &Child) -> Result<(), ApplyError> {
        if !matches!(child.reference.kind, Kind::StatefulSet | Kind::Deployment) {
            return Ok(());
        }
        let names = Names::new(&self.key.base);
        let owner = child.object["metadata"]["ownerReferences"][0]["uid"].as_str();
        let volumes = &child.object["spec"]["template"]["spec"]["volumes"];
        let mounted = volumes.as_array().into_iter().flatten();
        let mounted = mounted.filter_map(|volume| volume["secret"]["secretName"].as_str());
        for name in mounted.filter(|name| names.is_pods_secret(name)) {
            let reference = ObjectRef {
                kind: Kind::Secret,
                name: name.to_owned(),
            };
            let found = self.api(Kind::Secret).get_metadata_opt(name).await;
            let found = found.map_err(|source| ApplyError::Read {
                object: reference.clone(),
                source,
            })?;
            let mut owners = found
                .iter()
                .flat_map(|found| found.metadata.owner_references.iter().flatten());
            if found.is_some() && !owners.any(|reference| Some(reference.uid.as_str()) == owner) {
                return Err(ApplyError::Foreign(reference));
            }
        }
        Ok(())
    }

    async fn change(&self, child: &Child, uid: &str) -> Result<Live, ApplyError> {
        let reference = &child.reference;
        let mut object = child.object.clone();
        object["metadata"]["uid"] = uid.into();
        let api = self.api(reference.kind);
        let result = if reference.kind == Kind::ControllerRevision {
            // Its data is immutable down to the order of keys, which an apply changes: only the rest is written.
            let patch = Patch::Merge(without_data(object));
            let params = PatchParams {
                field_manager: Some(MANAGER.to_owned()),
                ..PatchParams::default()
            };
            api.patch(&reference.name, &params, &patch).await
        } else {
            self.claim(reference, &mut object).await?;
            let params = PatchParams::apply(MANAGER).force();
            api.patch(&reference.name, &params, &Patch::Apply(&object)).await
        };
        match result {
            Ok(answer) => self.remember(reference, answer),
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {
                self.look(reference).await?;
                Err(ApplyError::Changed(reference.clone()))
            }
            Err(kube::Error::Api(status))
                if status.code == 422 && reference.kind == Kind::ControllerRevision =>
            {
                // An earlier version wrote its data in a way that the API server doesn't keep: nobody can change anything in it.
                self.delete(&Delete {
                    reference: reference.clone(),
                    uid: uid.to_owned(),
                })
                .await?;
                self.create(child).await
            }
            Err(source) => Err(failed(reference, source)),
        }
    }

    /// Makes an object that somebody else fills the service's: its labels and its owner, and nothing else of it.
    pub(crate) async fn own(&self, kind: Kind, metadata: ObjectMeta, uid: &str) -> Result<(), ApplyError> {
        let name = metadata.name.clone().unwrap_or_default();
        let metadata = ObjectMeta {
            uid: Some(uid.to_owned()),
            ..metadata
        };
        let patch =
            json!({ "apiVersion": kind.api_version(), "kind": kind.to_string(), "metadata": metadata });
        let params = PatchParams::apply(MANAGER).force();
        let result = self.api(kind).patch(&name, &params, &Patch::Apply(&patch)).await;
        self.metrics.wrote(kind, true, result.is_ok());
        let reference = ObjectRef { kind, name };
        match result {
            Ok(answer) => {
                self.saw(&reference, answer);
                Ok(())
            }
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {
                Err(ApplyError::Changed(reference))
            }
            Err(source) => Err(failed(&reference, source)),
        }
    }

    /// Makes all fields of an object ours before it is applied: see [`ownership`].
    async fn claim(&self, reference: &ObjectRef, wanted: &mut Value) -> Result<(), ApplyError> {
        let api = self.api(reference.kind);
        let found = api.get_opt(&reference.name).await;
        let found = found.map_err(|source| failed(reference, source))?;
        let changed = || ApplyError::Changed(reference.clone());
        let Some(object) = found else {
            self.saw_nothing(reference);
            return Err(changed());
        };
        let version = object.metadata.resource_version.clone();
        let expected = wanted["metadata"]["resourceVersion"].as_str();
        let same = object.metadata.uid.as_deref() == wanted["metadata"]["uid"].as_str();
        if !same || expected.is_some_and(|expected| version.as_deref() != Some(expected)) {
            self.saw(reference, object);
            return Err(changed());
        }
        let managers = object.metadata.managed_fields.unwrap_or_default();
        let Some(claimed) = ownership::claim(managers) else {
            return Ok(());
        };
        let patch = json!({ "metadata": {
            "uid": wanted["metadata"]["uid"],
            "resourceVersion": version,
            "managedFields": claimed,
        } });
        let params = PatchParams {
            field_manager: Some(MANAGER.to_owned()),
            ..PatchParams::default()
        };
        match api.patch(&reference.name, &params, &Patch::Merge(&patch)).await {
            Ok(answer) => {
                if expected.is_some() {
                    wanted["metadata"]["resourceVersion"] = answer.metadata.resource_version.into();
                }
                Ok(())
            }
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Err(changed()),
            Err(source) => Err(failed(reference, source)),
        }
    }

    async fn delete(&self, delete: &Delete) -> Result<(), ApplyError> {
        let reference = &delete.reference;
        let params = with_uid(&delete.uid);
        let result = self.api(reference.kind).delete(&reference.name, &params).await;
        self.metrics.deleted(reference.kind, result.is_ok());
        match result {
            Ok(answer) => {
                if let Some(left) = answer.left() {
                    // It goes when its finalizers let it.
                    self.put(reference, left);
                } else {
                    self.cache.remove(self.key, reference, &delete.uid);
                }
            }
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => self.look(reference).await?,
            Err(source) => {
                let object = reference.clone();
                return Err(ApplyError::Delete { object, source });
            }
        }
        self.cache.forget_written(self.key, reference);
        Ok(())
    }

    async fn delete_pod(&self, name: &str, uid: &str) -> Result<(), ApplyError> {
        let api: Api<k8s_openapi::api::core::v1::Pod> =
            Api::namespaced(self.client.clone(), &self.key.namespace);
        match api.delete(name, &with_uid(uid)).await {
            Ok(_) => Ok(()),
            // Gone already, or another pod of that name.
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
            Err(source) => Err(ApplyError::Pod {
                action: "delete",
                name: name.to_owned(),
                source,
            }),
        }
    }

    async fn unlabel_pod(&self, name: &str, uid: &str) -> Result<(), ApplyError> {
        let change = json!({ "uid": uid, "labels": { labels::LOADING: null } });
        self.change_pod(name, &change, "take a label from").await
    }

    /// A kubelet that sees its pod change looks at the files in it too.
    async fn tell_pod(&self, name: &str, uid: &str, hash: &str) -> Result<(), ApplyError> {
        let change = json!({ "uid": uid, "annotations": { labels::FILE_HASH: hash } });
        self.change_pod(name, &change, "annotate").await
    }

    /// Another pod of that name stays as it is.
    async fn change_pod(&self, name: &str, metadata: &Value, action: &'static str) -> Result<(), ApplyError> {
        let api: Api<k8s_openapi::api::core::v1::Pod> =
            Api::namespaced(self.client.clone(), &self.key.namespace);
        let patch = json!({ "metadata": metadata });
        let params = PatchParams {
            field_manager: Some(POD_MANAGER.to_owned()),
            ..PatchParams::default()
        };
        match api.patch_metadata(name, &params, &Patch::Merge(&patch)).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
            Err(source) => Err(ApplyError::Pod {
                action,
                name: name.to_owned(),
                source,
            }),
        }
    }

    /// Reads an object that isn't what the cache says, with or without our label.
    pub(crate) async fn look(&self, reference: &ObjectRef) -> Result<(), ApplyError> {
        match self.api(reference.kind).get(&reference.name).await {
            Ok(object) => drop(self.saw(reference, object)),
            // There is no such object, or not even its kind any more.
            Err(kube::Error::Api(status)) if status.code == 404 => self.saw_nothing(reference),
            Err(source) => {
                let object = reference.clone();
                return Err(ApplyError::Read { object, source });
            }
        }
        Ok(())
    }

    /// Why the pods of the StatefulSet with that uid were refused last, if they were.
    pub(crate) async fn refusal(&self, uid: &str) -> Result<Option<String>, kube::Error> {
        let api: Api<Event> = Api::namespaced(self.client.clone(), &self.key.namespace);
        let params = ListParams::default()
            .fields(&format!("regarding.uid={uid},reason=FailedCreate"))
            .limit(MOST_EVENTS);
        let found = api.list(&params).await?.items;
        let time = |event: &Event| {
            let series = event.series.as_ref().map(|series| series.last_observed_time.0);
            let old = event.deprecated_last_timestamp.as_ref().map(|time| time.0);
            series.max(old).max(event.event_time.as_ref().map(|time| time.0))
        };
        Ok(found.into_iter().max_by_key(time).and_then(|event| event.note))
    }

    /// Who has the name of a pod of the StatefulSet with that uid, if it is somebody else: the StatefulSet tries again for ever and says nothing.
    pub(crate) async fn occupant(&self, pod: &str, uid: &str) -> Result<Option<String>, kube::Error> {
        let api: Api<k8s_openapi::api::core::v1::Pod> =
            Api::namespaced(self.client.clone(), &self.key.namespace);
        let Some(found) = api.get_metadata_opt(pod).await? else {
            return Ok(None);
        };
        let mut owners = found.metadata.owner_references.into_iter().flatten();
        let controller = owners.find(|owner| owner.controller == Some(true));
        Ok(match controller {
            Some(owner) if owner.uid == uid => None,
            Some(owner) => Some(format!("{} {}", owner.kind, owner.name)),
            None => Some("nobody".to_owned()),
        })
    }

    /// Notes an object that was read by name. One without our label is shown by no watch and looked at again by each round.
    pub(crate) fn saw(&self, reference: &ObjectRef, object: DynamicObject) -> Option<Live> {
        let labels = object.metadata.labels.as_ref();
        let watched = labels.is_some_and(|labels| {
            labels.get(labels::MANAGED_BY).map(String::as_str) == Some(labels::MANAGED_BY_VALUE)
                && labels.get(labels::SERVICE) == Some(&self.key.base)
        });
        if watched || reference.kind == Kind::Secret {
            self.cache.stranger_left(self.key, reference);
        } else {
            let seen = version(object.metadata.resource_version.as_deref());
            self.cache.stranger(self.key, reference.clone(), seen);
        }
        self.put(reference, object)
    }

    /// Notes that there is no such object.
    pub(crate) fn saw_nothing(&self, reference: &ObjectRef) {
        self.cache.stranger_left(self.key, reference);
        if let Some(uid) = self.cache.uid(self.key, reference) {
            self.cache.remove(self.key, reference, &uid);
        }
    }

    fn remember(&self, reference: &ObjectRef, answer: DynamicObject) -> Result<Live, ApplyError> {
        let live = self.put(reference, answer);
        let live = live.ok_or_else(|| ApplyError::Answer(reference.clone()))?;
        self.cache.wrote(self.key, &live);
        Ok(live)
    }

    fn put(&self, reference: &ObjectRef, object: DynamicObject) -> Option<Live> {
        let age = version(object.metadata.resource_version.as_deref());
        let live = Live::new(reference.kind, to_value(object)?)?;
        self.cache.put(self.key, live.clone(), age, false);
        Some(live)
    }

    /// Objects of a kind in the service's namespace.
    pub(crate) fn api(&self, kind: Kind) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), &self.key.namespace, &kinds::resource(kind))
    }
}

fn failed(reference: &ObjectRef, source: kube::Error) -> ApplyError {
    ApplyError::Write {
        object: reference.clone(),
        source,
    }
}

fn without_data(mut object: Value) -> Value {
    if let Some(fields) = object.as_object_mut() {
        fields.remove("data");
    }
    object
}

fn parse(reference: &ObjectRef, object: &Value) -> Result<DynamicObject, ApplyError> {
    serde_json::from_value(object.clone()).map_err(|error| ApplyError::Write {
        object: reference.clone(),
        source: kube::Error::SerdeError(error),
    })
}

fn with_uid(uid: &str) -> DeleteParams {
    DeleteParams::background().preconditions(Preconditions {
        uid: Some(uid.to_owned()),
        resource_version: None,
    })
}
