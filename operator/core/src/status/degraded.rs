//! What needs a look though requests may be answered.

use kvasir_operator_api::{GroupState, GroupStatus, Reason};

use super::conditions::Verdict;
use super::foreign;
use crate::groups::recovery;
use crate::observed::Observed;
use crate::plan::Plan;

/// How many restarts of a rank are often.
const FLAPPING_RESTARTS: i32 = 3;

/// What needs a look: of the groups first, and beside it pods that only look like the service's.
pub(super) fn verdict(plan: &Plan, observed: &Observed) -> Verdict {
    match (groups_trouble(plan), foreign::pods(observed)) {
        (None, None) => Verdict::no(Reason::AsExpected, "nothing is wrong"),
        (None, Some(pods)) => Verdict::yes(Reason::ForeignPods, pods),
        (Some(trouble), None) => trouble,
        (Some(trouble), Some(pods)) => Verdict {
            message: format!("{}; {pods}", trouble.message),
            ..trouble
        },
    }
}

fn groups_trouble(plan: &Plan) -> Option<Verdict> {
    let groups = &plan.decisions.groups;
    let with = |state: GroupState| groups.iter().find(move |g| g.state == state);
    if let Some(group) = with(GroupState::Exhausted) {
        let why = last_failure(group);
        return Some(Verdict::yes(
            Reason::GroupRestartBudgetExhausted,
            format!(
                "group {} used up its restarts and stays for inspection. {why}",
                group.id
            ),
        ));
    }
    if let Some(group) = with(GroupState::Lost) {
        let node = group.node.as_deref().unwrap_or("unknown");
        return Some(Verdict::yes(
            Reason::NodeLost,
            format!("group {}: node {node} doesn't answer", group.id),
        ));
    }
    let flapping = groups
        .iter()
        .find(|g| g.seen.iter().any(|pod| pod.restarts >= FLAPPING_RESTARTS) && g.unready_since.is_some());
    if let Some(group) = flapping {
        let why = last_failure(group);
        return Some(Verdict::yes(Reason::RankFlapping, why));
    }
    let recovering = groups
        .iter()
        .filter(|g| g.state == GroupState::Recovering)
        .count();
    (recovering > 0).then(|| {
        Verdict::yes(
            Reason::PartialGroups,
            format!("{recovering} of {} groups recover", groups.len()),
        )
    })
}

/// How its last rank ended, if one did.
fn last_failure(group: &GroupStatus) -> String {
    let failure = group.last_failure.as_ref();
    failure
        .map(|failure| recovery::describe(group.id, failure))
        .unwrap_or_default()
}
