//! How an operator that was started again knows objects that an earlier one wrote.
//!
//! Whether somebody changed an object is judged by its digest right after our last write, which is in memory only. Without it
//! every object of every service would be written once after each start. So when everything is as it should be, one digest
//! over all objects goes into the status; a new operator that finds the same takes over what it sees. If it finds another,
//! that service's objects are written once.

use std::collections::BTreeMap;

use kvasir_operator_api::names;

use crate::child::{Kind, Live, ObjectRef};
use crate::observed::{Observed, Written};
use crate::plan::Plan;

/// What a new operator takes over: the objects as they are, if they are as an earlier operator left them. Nothing otherwise.
pub fn adopt(observed: &Observed, uid: &str) -> BTreeMap<ObjectRef, Written> {
    let known = observed.status.applied.as_deref();
    if known != Some(digest(observed, uid).as_str()) {
        return BTreeMap::new();
    }
    let written = |live: &Live| Written {
        uid: live.uid.clone(),
        digest: live.digest().to_owned(),
    };
    ours(observed, uid)
        .map(|live| (live.reference.clone(), written(live)))
        .collect()
}

/// What the status says about the objects: their digest if all are as wanted, and otherwise what it said before.
pub(crate) fn applied(plan: &Plan, observed: &Observed, uid: &str) -> Option<String> {
    if plan.write.is_empty()
        && plan.delete.is_empty()
        && plan.collisions.is_empty()
        && plan.contested.is_empty()
    {
        Some(digest(observed, uid))
    } else {
        observed.status.applied.clone()
    }
}

fn digest(observed: &Observed, uid: &str) -> String {
    let mut lines: Vec<String> = ours(observed, uid)
        .map(|live| format!("{} {} {}\n", live.reference, live.uid, live.digest()))
        .collect();
    lines.sort_unstable();
    names::short_hash(lines.concat().as_bytes())
}

/// Secrets are written by other rules.
fn ours<'a>(observed: &'a Observed, uid: &'a str) -> impl Iterator<Item = &'a Live> {
    let own = move |live: &&Live| live.reference.kind != Kind::Secret && live.is_owned_by(uid);
    observed.children.iter().filter(own)
}
