//! What should be done now: which objects to write, which to delete, which pods to replace.
//!
//! `plan` is total: trouble becomes a decision with a reason, never an error. It doesn't act; the same inputs give the same
//! plan, byte for byte, and a service at rest gets an empty one.
//!
//! What is deleted are objects that this service owns, of kinds that it makes, whose exact names aren't wanted. An object
//! with our label that somebody else owns is never touched, and one that has a name we need is reported as a collision.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use kvasir_operator_api::{NetworkMode, TlsMode, labels};

use crate::build::{budget, certificate, engine, gateway, ingress, monitor, policy, rights, route, services};
use crate::child::{Child, Kind, Live, ObjectRef};
use crate::contest;
use crate::groups::{self, Decisions};
use crate::observed::Observed;
use crate::revision::Revision;
use crate::settings::Settings;
use crate::validate::Validated;

/// One object to write.
#[derive(Clone, Debug, PartialEq)]
pub struct Write {
    /// What is wanted.
    pub child: Child,
    /// The uid of the object that is changed, as a precondition: an apply that carries it in its metadata is refused when that object
    /// is gone, so that an old read never brings a deleted group back beside its dying pods. `None` if there was no object: then it
    /// must be created, so that one that appeared meanwhile isn't overwritten.
    pub uid: Option<String>,
    /// It sets back what somebody else changed.
    pub undoes: bool,
}

/// One object to delete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delete {
    /// Kind and name.
    pub reference: ObjectRef,
    /// Its uid, as a precondition: another object of that name stays.
    pub uid: String,
}

/// What should be done now.
///
/// The status that belongs to a plan is written first, over the version of the service that was read. Where that fails,
/// because somebody wrote meanwhile, nothing of the plan is done: it was made from a stale read. A plan that creates a group
/// always changes the status, so no two rounds can give out one id.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Objects to write, in order.
    pub write: Vec<Write>,
    /// Objects to delete, in order.
    pub delete: Vec<Delete>,
    /// Gateway pods whose kubelets are told that there is a new file: name, uid and the file's hash. Only where it lists other services.
    pub tell_pods: Vec<(String, String, String)>,
    /// What was decided about groups.
    pub decisions: Decisions,
    /// The revision of the spec.
    pub update: String,
    /// The image of that revision.
    pub image: String,
    /// Objects that have a name we need and belong to somebody else.
    pub collisions: Vec<ObjectRef>,
    /// Objects that somebody changes again and again: they are set back later.
    pub contested: Vec<ObjectRef>,
    /// How many policies are wanted.
    pub policies: usize,
    /// When to look again.
    pub look_again: Timestamp,
}

impl Plan {
    /// Nothing is to be done.
    pub fn is_empty(&self) -> bool {
        self.write.is_empty()
            && self.delete.is_empty()
            && self.tell_pods.is_empty()
            && self.decisions.restart_pods.is_empty()
            && self.decisions.unlabel_pods.is_empty()
    }
}

/// Plans for a service whose spec was accepted.
pub fn plan(service: &Validated, observed: &Observed, settings: &Settings, now: Timestamp) -> Plan {
    let history = history(service, observed);
    let kept: Vec<Revision> = history.iter().map(|(_, revision)| revision.clone()).collect();
    let update = Revision::of(&service.spec, &kept, settings);
    let mut known: BTreeMap<String, u32> = BTreeMap::new();
    for (i, revision) in kept.iter().enumerate() {
        known.insert(revision.name.clone(), u32::try_from(i).unwrap_or(u32::MAX));
    }
    known.entry(update.name.clone()).or_insert(u32::MAX);
    let mut decisions = groups::decide(service, &update.name, &known, observed, settings, now);
    let mut plan = Plan {
        update: update.name.clone(),
        image: update.image.clone(),
        ..Plan::default()
    };
    let wanted = wanted(
        service, observed, settings, &history, &update, &decisions, &mut plan,
    );
    tell(service, observed, &wanted.children, &mut plan);
    let ids: Vec<i32> = decisions.groups.iter().map(|group| group.id).collect();
    plan.collisions = foreign_secrets(service, observed, &ids);
    write(service, observed, wanted.children, now, &mut plan, &mut decisions);
    delete(service, observed, &ids, &wanted.keep, &mut plan);
    plan.look_again = look_again(&decisions, settings, now);
    plan.decisions = decisions;
    plan
}

fn look_again(decisions: &Decisions, settings: &Settings, now: Timestamp) -> Timestamp {
    let latest = now.saturating_add(settings.resync).unwrap_or(Timestamp::MAX);
    decisions.look_again.map_or(latest, |at| at.clamp(now, latest))
}

/// The kept revisions, oldest first.
fn history(service: &Validated, observed: &Observed) -> Vec<(i64, Revision)> {
    let mut all: Vec<_> = observed
        .children
        .iter()
        .filter(|child| child.is_owned_by(&service.uid))
        .filter_map(|live| Revision::read(&service.names, live))
        .collect();
    all.sort_by(|(a, x), (b, y)| (a, &x.name).cmp(&(b, &y.name)));
    all
}

/// Objects that are wanted, and names of further ones that stay as they are.
struct Wanted {
    children: Vec<Child>,
    keep: BTreeSet<ObjectRef>,
}

fn wanted(
    service: &Validated,
    observed: &Observed,
    settings: &Settings,
    history: &[(i64, Revision)],
    update: &Revision,
    decisions: &Decisions,
    plan: &mut Plan,
) -> Wanted {
    let ids: Vec<i32> = decisions.groups.iter().map(|group| group.id).collect();
    let mut children = Vec::new();
    let mut keep = BTreeSet::new();
    children.extend(rights::engine_account(service));
    revisions(service, history, update, decisions, &mut children, &mut keep);
    children.extend(certificate::certificates(service, observed, settings));
    children.push(services::ranks(service));
    children.push(services::engines(service));
    let policies = policy::policies(service, &ids, settings);
    plan.policies = policies.len();
    children.extend(policies);
    children.extend(
        ids.iter()
            .map(|id| budget::group(service, *id, decisions.evictable.contains(id))),
    );
    groups_children(
        service,
        observed,
        settings,
        history,
        update,
        decisions,
        &mut children,
        &mut keep,
    );
    if service.spec.gateway.enabled {
        children.push(rights::gateway_account(service));
        children.push(rights::gateway_role(service));
        children.push(rights::gateway_binding(service));
        children.push(gateway::configuration(service, decisions, settings));
        children.push(services::gateway(service));
        children.push(budget::gateway(service));
        children.push(gateway::deployment(service, settings));
        children.extend(ingress::ingress(service));
        children.extend(route::children(service, observed, settings));
        if service.spec.gateway.route.is_some() && observed.trust.is_none() {
            // Until the authorities are read, those that were written stay.
            keep.insert(ObjectRef {
                kind: Kind::ConfigMap,
                name: service.names.trust_bundle(),
            });
        }
    }
    children.extend(monitor::scraped(service, settings));
    children.extend(monitor::rules(service, settings));
    secrets(service, &ids, observed, &mut keep);
    // Sorting by kind keeps the order within policies: allow before deny.
    children.sort_by_key(|child| child.reference.kind);
    keep.extend(children.iter().map(|child| child.reference.clone()));
    Wanted { children, keep }
}

/// Keeps the revisions that groups have, those that may be needed to go back, and as many more as the history limit says.
fn revisions(
    service: &Validated,
    history: &[(i64, Revision)],
    update: &Revision,
    decisions: &Decisions,
    children: &mut Vec<Child>,
    keep: &mut BTreeSet<ObjectRef>,
) {
    let used = |name: &str| {
        name == update.name
            || name == decisions.target
            || decisions.current.as_deref() == Some(name)
            || decisions.groups.iter().any(|group| group.revision == name)
    };
    let limit = usize::try_from(service.spec.rollout.revision_history_limit).unwrap_or(1);
    let spare: Vec<_> = history
        .iter()
        .rev()
        .filter(|(_, revision)| !used(&revision.name))
        .take(limit)
        .collect();
    for (number, revision) in history {
        if used(&revision.name) || spare.iter().any(|(_, other)| other.name == revision.name) {
            children.push(revision.child(service, *number));
        }
    }
    if !history.iter().any(|(_, revision)| revision.name == update.name) {
        let next = history.last().map_or(1, |(number, _)| number.saturating_add(1));
        children.push(update.child(service, next));
    }
    keep.extend(
        children
            .iter()
            .filter(|c| c.reference.kind == Kind::ControllerRevision)
            .map(|c| c.reference.clone()),
    );
}

#[expect(
    clippy::too_many_arguments,
    reason = "what is wanted is a function of all that it depends on"
)]
fn groups_children(
    service: &Validated,
    observed: &Observed,
    settings: &Settings,
    history: &[(i64, Revision)],
    update: &Revision,
    decisions: &Decisions,
    children: &mut Vec<Child>,
    keep: &mut BTreeSet<ObjectRef>,
) {
    for group in &decisions.groups {
        let (id, name) = (group.id, group.revision.as_str());
        let revision = if name == update.name {
            Some(update)
        } else {
            history
                .iter()
                .map(|(_, revision)| revision)
                .find(|revision| revision.name == name)
        };
        if let Some(revision) = revision {
            children.push(engine::configuration(service, id, revision));
            let own = observed.own_child(service, Kind::StatefulSet, &service.names.group(id));
            children.push(engine::group(service, id, revision, settings, own));
        } else {
            // Nobody knows any more what it was made from: it stays until the rollout replaces it.
            for (kind, name) in [
                (Kind::StatefulSet, service.names.group(id)),
                (Kind::ConfigMap, service.names.group_config(id)),
            ] {
                keep.insert(ObjectRef { kind, name });
            }
        }
    }
}

/// Names of the Secrets that the operator fills by itself.
fn filled_secrets(service: &Validated, ids: &[i32], observed: &Observed) -> Vec<String> {
    let gateway = service.spec.gateway.enabled;
    let mut names: Vec<String> = gateway
        .then(|| service.names.gateway_secret())
        .into_iter()
        .collect();
    let mode = service.spec.tls.mode;
    if mode != TlsMode::Off {
        names.push(service.names.trust_bundle());
        names.extend(gateway.then(|| service.names.gateway_certificate()));
        names.extend(ids.iter().map(|id| service.names.group_certificate(*id)));
    }
    if mode == TlsMode::Internal || observed.handover.needs_authority {
        names.push(service.names.authority());
    }
    names
}

/// Those of them that somebody else has.
fn foreign_secrets(service: &Validated, observed: &Observed, ids: &[i32]) -> Vec<ObjectRef> {
    let named = filled_secrets(service, ids, observed).into_iter();
    let found = named.filter_map(|name| observed.child(Kind::Secret, &name));
    let foreign = found.filter(|live| !live.is_owned_by(&service.uid) && !live.is_deleting());
    foreign.map(|live| live.reference.clone()).collect()
}

/// Secrets that the operator fills by itself stay as long as somebody mounts them.
fn secrets(service: &Validated, ids: &[i32], observed: &Observed, keep: &mut BTreeSet<ObjectRef>) {
    let mut names = filled_secrets(service, ids, observed);
    // With another seed no tenant would find its cached prefixes again.
    names.push(service.names.gateway_secret());
    let mode = service.spec.tls.mode;
    if mode == TlsMode::CertManager {
        names.push(service.names.operator_certificate());
        names.push(service.names.gateway_issued());
        names.extend(ids.iter().map(|id| service.names.group_issued(*id)));
    }
    // Pods of a deleted group drain with their certificate.
    names.extend(
        observed
            .labelled_pods()
            .filter_map(|pod| pod.group)
            .map(|id| service.names.group_certificate(id)),
    );
    // Whoever mounts one starts again with it.
    names.extend(
        observed
            .labelled_pods()
            .flat_map(|pod| pod.secrets.iter().cloned()),
    );
    keep.extend(names.into_iter().map(|name| ObjectRef {
        kind: Kind::Secret,
        name,
    }));
}

/// Guests come and go while the gateway runs, and whoever waits for one to be served shouldn't wait for a kubelet's next look.
fn tell(service: &Validated, observed: &Observed, children: &[Child], plan: &mut Plan) {
    let name = service.names.gateway_config();
    let file = children
        .iter()
        .find(|child| child.reference.kind == Kind::ConfigMap && child.reference.name == name);
    let Some(hash) = file.and_then(|file| file.object["metadata"]["annotations"][labels::FILE_HASH].as_str())
    else {
        return;
    };
    let pods = observed.pods.iter().filter(|pod| pod.is_gateway && !pod.deleting);
    let unaware = pods.filter(|pod| pod.told.as_deref() != Some(hash));
    plan.tell_pods = unaware
        .map(|pod| (pod.name.clone(), pod.uid.clone(), hash.to_owned()))
        .collect();
    plan.tell_pods.sort();
}

/// Which of the wanted objects must be written.
fn write(
    service: &Validated,
    observed: &Observed,
    children: Vec<Child>,
    now: Timestamp,
    plan: &mut Plan,
    decisions: &mut Decisions,
) {
    for child in children {
        let Some(live) = observed.child(child.reference.kind, &child.reference.name) else {
            plan.write.push(Write {
                child,
                uid: None,
                undoes: false,
            });
            continue;
        };
        if live.is_deleting() {
            // It is made anew when it is gone.
            continue;
        }
        if !live.is_owned_by(&service.uid) {
            plan.collisions.push(child.reference);
            continue;
        }
        let written = observed.written.get(&child.reference);
        let edited =
            written.is_some_and(|written| written.uid != live.uid || written.digest != live.digest());
        let outdated = written.is_none() || live.desired_hash() != Some(child.hash.as_str());
        if edited && !contest::may_undo(&child.reference, observed, now, decisions) && !outdated {
            plan.contested.push(child.reference);
        } else if edited || outdated {
            plan.write.push(Write {
                uid: Some(live.uid.clone()),
                child,
                undoes: edited,
            });
        }
    }
    if !plan.collisions.is_empty() {
        // New pods would run with what somebody else put in place of what protects and configures them.
        let starts_pods = |write: &Write| {
            let kind = write.child.reference.kind;
            write.uid.is_none() && matches!(kind, Kind::StatefulSet | Kind::Deployment)
        };
        plan.write.retain(|write| !starts_pods(write));
    }
}

/// What the service owns and doesn't want any more. Kinds in reverse order; policies in the reverse of their own, so that
/// the one that closes everything goes first.
fn delete(
    service: &Validated,
    observed: &Observed,
    ids: &[i32],
    keep: &BTreeSet<ObjectRef>,
    plan: &mut Plan,
) {
    let mut doomed: Vec<&Live> = observed
        .children
        .iter()
        .filter(|live| {
            live.is_owned_by(&service.uid) && !live.is_deleting() && !keep.contains(&live.reference)
        })
        .collect();
    let lingering = |live: &Live| {
        // A group's policy, budget and configuration stay while its pods drain.
        let group = live.label(labels::GROUP).and_then(|id| id.parse::<i32>().ok());
        // What cert-manager makes isn't mounted: it goes with the mode, before its group.
        let is_certificate = matches!(live.reference.kind, Kind::Certificate | Kind::Secret);
        let of_group = live.reference.kind != Kind::StatefulSet
            && group.is_some_and(|id| {
                let is_living = ids.contains(&id);
                observed.made_pods().any(|p| p.group == Some(id)) && !(is_certificate && is_living)
            });
        // So do the gateway's: its pods would lose the streams that they are ending.
        let of_gateway = live.reference.kind == Kind::NetworkPolicy
            && service.spec.network.mode == NetworkMode::Strict
            && policy::is_gateways(service, &live.reference.name)
            && observed.made_pods().any(|pod| pod.is_gateway);
        of_group || of_gateway
    };
    doomed.retain(|live| !lingering(live));
    doomed.sort_by_key(|live| {
        let reference = &live.reference;
        let order = if reference.kind == Kind::NetworkPolicy {
            policy::rank(service, &reference.name)
        } else {
            0
        };
        (Reverse((reference.kind, order)), reference.name.clone())
    });
    plan.delete = doomed
        .into_iter()
        .map(|live| Delete {
            reference: live.reference.clone(),
            uid: live.uid.clone(),
        })
        .collect();
}
