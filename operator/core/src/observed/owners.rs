//! Whose a pod is that carries a service's labels.
//!
//! Anybody may put labels on a pod. A pod is a group's if the group's own StatefulSet controls it, and the gateway's if a ReplicaSet of the
//! gateway's own Deployment does. Whatever counts pods, changes them or asks them something does so with these only. A group's id is free and
//! a Secret that is mounted goes when no pod at all has the label any more.
//!
//! ReplicaSets aren't watched. One is the Deployment's by its name, which the Deployment makes of its own and of a hash that stands in its
//! pods' labels.

use std::collections::BTreeMap;

use kvasir_operator_api::names::Names;

use super::{Observed, PodView};
use crate::child::{Kind, Live};

/// The object that controls a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Controller {
    /// Its kind.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
}

/// Whose a pod is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Whose {
    /// The service's: of one of its groups or of its gateway.
    Own,
    /// It was the service's. What made it is gone, and it goes too.
    Left,
    /// Somebody else's.
    Foreign,
}

/// What a service has pods made by.
pub struct Owners<'a> {
    names: &'a Names,
    /// Uids of the StatefulSets that have a group's name, and whether they are the service's.
    groups: BTreeMap<i32, (&'a str, bool)>,
    /// Whether the Deployment with the gateway's name is the service's; nothing if there is none.
    gateway: Option<bool>,
}

impl<'a> Owners<'a> {
    /// Of the service with that uid among `children`.
    pub fn of(names: &'a Names, uid: &str, children: &'a [Live]) -> Self {
        let of_kind = |kind: Kind| children.iter().filter(move |live| live.reference.kind == kind);
        let groups = of_kind(Kind::StatefulSet).filter_map(|set| {
            let id = names.group_id(&set.reference.name)?;
            Some((id, (set.uid.as_str(), set.is_owned_by(uid))))
        });
        let deployment = of_kind(Kind::Deployment).find(|live| live.reference.name == names.gateway());
        Self {
            names,
            groups: groups.collect(),
            gateway: deployment.map(|live| live.is_owned_by(uid)),
        }
    }

    /// Whose that pod is.
    pub fn whose(&self, pod: &PodView) -> Whose {
        if !is_named_for(self.names, pod) {
            return Whose::Foreign;
        }
        let is_own = match pod.group {
            Some(id) => {
                let uid = pod.controller.as_ref().map(|controller| controller.uid.as_str());
                let set = self.groups.get(&id).filter(|(set, _)| Some(*set) == uid);
                set.map(|(_, is_own)| *is_own)
            }
            None => self.gateway,
        };
        match is_own {
            Some(true) => Whose::Own,
            Some(false) => Whose::Foreign,
            None => Whose::Left,
        }
    }
}

/// Whether what controls a pod is called as if it were the service's.
pub fn is_named_for(names: &Names, pod: &PodView) -> bool {
    let Some(controller) = &pod.controller else {
        return false;
    };
    match pod.group {
        Some(id) => controller.kind == "StatefulSet" && controller.name == names.group(id),
        None if pod.is_gateway => {
            let hash = pod.template_hash.as_deref();
            let name = hash.map(|hash| format!("{}-{hash}", names.gateway()));
            controller.kind == "ReplicaSet" && name.as_ref() == Some(&controller.name)
        }
        None => false,
    }
}

impl Observed {
    /// The same with these pods, each where it belongs. The children must be there.
    #[must_use]
    pub fn with_pods(mut self, names: &Names, uid: &str, pods: impl IntoIterator<Item = PodView>) -> Self {
        let (mut own, mut left, mut foreign) = (Vec::new(), Vec::new(), Vec::new());
        let owners = Owners::of(names, uid, &self.children);
        for pod in pods {
            match owners.whose(&pod) {
                Whose::Own => own.push(pod),
                Whose::Left => left.push(pod),
                Whose::Foreign => foreign.push(pod),
            }
        }
        (self.pods, self.left_pods, self.foreign_pods) = (own, left, foreign);
        self
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const UID: &str = "service";

    fn live(kind: Kind, name: &str, uid: &str, owner: &str) -> Live {
        let owners = json!([{ "uid": owner, "controller": true }]);
        let object = json!({ "metadata": { "name": name, "uid": uid, "ownerReferences": owners } });
        Live::new(kind, object).unwrap()
    }

    fn controlled(kind: &str, name: &str, uid: &str) -> PodView {
        PodView {
            controller: Some(Controller {
                kind: kind.to_owned(),
                name: name.to_owned(),
                uid: uid.to_owned(),
            }),
            ..PodView::default()
        }
    }

    fn engine(kind: &str, name: &str, uid: &str) -> PodView {
        PodView {
            group: Some(0),
            ..controlled(kind, name, uid)
        }
    }

    fn gateway(kind: &str, name: &str, hash: &str) -> PodView {
        PodView {
            is_gateway: true,
            template_hash: Some(hash.to_owned()),
            ..controlled(kind, name, "r")
        }
    }

    fn whose(children: &[Live], pod: &PodView) -> Whose {
        Owners::of(&Names::new("chat"), UID, children).whose(pod)
    }

    #[test]
    fn a_groups_pods_are_those_of_its_own_stateful_set() {
        let own = [live(Kind::StatefulSet, "chat-g0", "set", UID)];
        assert_eq!(whose(&own, &engine("StatefulSet", "chat-g0", "set")), Whose::Own);
        // An earlier one of the same name, which is gone.
        assert_eq!(whose(&own, &engine("StatefulSet", "chat-g0", "old")), Whose::Left);
        assert_eq!(whose(&[], &engine("StatefulSet", "chat-g0", "set")), Whose::Left);
        for pod in [
            engine("StatefulSet", "other", "set"),
            engine("ReplicaSet", "chat-g0", "set"),
            PodView {
                group: Some(1),
                ..engine("StatefulSet", "chat-g0", "set")
            },
            PodView {
                controller: None,
                ..engine("", "", "")
            },
        ] {
            assert_eq!(whose(&own, &pod), Whose::Foreign, "{pod:?}");
        }
        let anothers = [live(Kind::StatefulSet, "chat-g0", "set", "earlier service")];
        assert_eq!(
            whose(&anothers, &engine("StatefulSet", "chat-g0", "set")),
            Whose::Foreign
        );
    }

    #[test]
    fn the_gateways_pods_are_those_of_a_replica_set_of_its_own_deployment() {
        let own = [live(Kind::Deployment, "chat-gateway", "d", UID)];
        assert_eq!(
            whose(&own, &gateway("ReplicaSet", "chat-gateway-ab", "ab")),
            Whose::Own
        );
        assert_eq!(
            whose(&[], &gateway("ReplicaSet", "chat-gateway-ab", "ab")),
            Whose::Left
        );
        for pod in [
            gateway("ReplicaSet", "chat-gateway-ab", "cd"),
            gateway("ReplicaSet", "other-ab", "ab"),
            gateway("StatefulSet", "chat-gateway-ab", "ab"),
            PodView {
                template_hash: None,
                ..gateway("ReplicaSet", "chat-gateway-", "")
            },
            PodView {
                is_gateway: false,
                ..gateway("ReplicaSet", "chat-gateway-ab", "ab")
            },
        ] {
            assert_eq!(whose(&own, &pod), Whose::Foreign, "{pod:?}");
        }
        let anothers = [live(Kind::Deployment, "chat-gateway", "d", "earlier service")];
        assert_eq!(
            whose(&anothers, &gateway("ReplicaSet", "chat-gateway-ab", "ab")),
            Whose::Foreign
        );
    }
}
