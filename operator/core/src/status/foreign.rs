//! What is said of objects and pods that are somebody else's and in the service's way.

use std::collections::BTreeSet;

use kvasir_operator_api::{MAX_MESSAGE_BYTES, labels};

use crate::child::ObjectRef;
use crate::observed::{Observed, PodView};

/// Most bytes of names in one message: what stands around them, in `Ready` too, fits beside them.
const MAX_NAMES_BYTES: usize = MAX_MESSAGE_BYTES - 256;
/// Most pods that are named.
const MOST_PODS: usize = 3;

/// What to do about names that others have; nothing if there are none.
pub(super) fn taken<'a>(objects: impl IntoIterator<Item = &'a ObjectRef>) -> Option<String> {
    let all: BTreeSet<&ObjectRef> = objects.into_iter().collect();
    let names: Vec<String> = all.into_iter().map(ToString::to_string).collect();
    let list = listed(&names, names.len())?;
    Some(if names.len() == 1 {
        format!("{list} exists and belongs to somebody else: delete it or give the service another name")
    } else {
        format!("{list} exist and belong to somebody else: delete them or give the service another name")
    })
}

/// What to do about pods that carry the service's labels and aren't its own; nothing if there are none. Those that end are no matter.
pub(super) fn pods(observed: &Observed) -> Option<String> {
    let stay = observed.foreign_pods.iter().filter(|pod| !pod.deleting);
    let names: BTreeSet<String> = stay.map(with_owner).collect();
    let names: Vec<String> = names.into_iter().collect();
    let (list, label) = (listed(&names, MOST_PODS)?, labels::SERVICE);
    Some(if names.len() == 1 {
        format!(
            "pod {list} carries this service's labels and isn't its own: it counts for nothing, but Services, policies and budgets select it; \
             delete it, or take the label {label} from it"
        )
    } else {
        format!(
            "pods {list} carry this service's labels and aren't its own: they count for nothing, but Services, policies and budgets select \
             them; delete them, or take the label {label} from them"
        )
    })
}

/// A pod and what controls it.
pub(crate) fn with_owner(pod: &PodView) -> String {
    match &pod.controller {
        Some(owner) => format!("{} (of {} {})", pod.name, owner.kind, owner.name),
        None => format!("{} (of nobody)", pod.name),
    }
}

/// The first names, at most `most`, and how many others there are; nothing without names.
fn listed(names: &[String], most: usize) -> Option<String> {
    let mut bytes = 0;
    let fits = |name: &&String| {
        bytes += name.len() + 2;
        bytes <= MAX_NAMES_BYTES
    };
    let first: Vec<&str> = names
        .iter()
        .take(most)
        .take_while(fits)
        .map(String::as_str)
        .collect();
    let others = names.len() - first.len();
    match (&first[..], others) {
        ([], 0) => None,
        ([one], 0) => Some((*one).to_owned()),
        ([rest @ .., last], 0) => Some(format!("{} and {last}", rest.join(", "))),
        (_, 1) => Some(format!("{} and 1 other", first.join(", "))),
        _ => Some(format!("{} and {others} others", first.join(", "))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::child::Kind;

    fn said(number: usize) -> Option<String> {
        let name = |i: usize| format!("a-service-with-a-name-that-is-long-{i:02}");
        let kind = Kind::NetworkPolicy;
        let objects: Vec<_> = (0..number).map(|i| ObjectRef { kind, name: name(i) }).collect();
        // Whoever was found twice is named once.
        taken(objects.iter().chain(&objects))
    }

    #[test]
    fn names_that_others_have_are_listed_as_far_as_they_fit_and_then_counted() {
        assert_eq!(said(0), None);
        let one = said(1).unwrap();
        assert!(
            one.contains("long-00 exists and belongs to somebody else: delete it or"),
            "{one}"
        );
        let two = said(2).unwrap();
        assert!(
            two.contains("long-00 and NetworkPolicy a-service") && two.contains(" exist and belong"),
            "{two}"
        );
        let many = said(99).unwrap();
        assert!(
            many.contains("long-00, NetworkPolicy") && many.contains(" others exist and"),
            "{many}"
        );
        assert!(
            many.len() < MAX_MESSAGE_BYTES - 64 && many.ends_with("another name"),
            "{many}"
        );
    }
}
