//! Every reason is said by the condition that it is for, and nothing else is said: a table with a story for each.

mod engines;
mod gateway;
mod service;

use kvasir_config::StartFault;
use kvasir_operator_api::{ConditionType, InferenceServiceStatus, Reason};
use kvasir_operator_core::observed::Observed;
use kvasir_operator_core::{plan, status};
use serde_json::{Value, json};

use crate::fake::Fake;

/// A condition, its status and its reason, and a story at whose end it says so.
type Row = (
    ConditionType,
    &'static str,
    Reason,
    fn() -> InferenceServiceStatus,
);

const ROWS: [&[Row]; 3] = [service::ROWS, engines::ROWS, gateway::ROWS];

/// Reasons that no condition has yet.
const NOT_SAID: [(Reason, &str); 6] = [
    (Reason::EditUndone, "only told, see `fields` and `laws`"),
    (Reason::MetricsFlowing, AUTOSCALING),
    (Reason::MetricsStale, AUTOSCALING),
    (Reason::MetricsAPIConflict, AUTOSCALING),
    (Reason::TargetInvalid, AUTOSCALING),
    (Reason::ReplicasContested, AUTOSCALING),
];
const AUTOSCALING: &str = "autoscaling isn't built yet";

fn rows() -> impl Iterator<Item = &'static Row> {
    ROWS.into_iter().flatten()
}

/// No condition of the status says what no row has, or nothing.
pub(crate) fn check(status: &InferenceServiceStatus) {
    for said in &status.conditions {
        let is_it = |row: &&Row| {
            row.0.as_str() == said.type_ && row.1 == said.status && row.2.as_str() == said.reason
        };
        // What isn't known while the spec is refused.
        let is_open = said.status == "Unknown" && said.reason == Reason::Reconciling.as_str();
        assert!(is_open || rows().any(|row| is_it(&row)), "no story for {said:?}");
        assert!(!said.message.trim().is_empty(), "{said:?}");
    }
}

#[test]
fn every_reason_has_a_story_or_a_cause_why_it_has_none() {
    for reason in Reason::ALL {
        let is_said = rows().any(|row| row.2 == *reason);
        let is_missing = NOT_SAID.iter().any(|(missing, _)| missing == reason);
        assert!(is_said != is_missing, "{reason}");
    }
    for kind in ConditionType::ALL {
        assert!(rows().any(|row| row.0 == kind), "{kind}");
    }
}

#[test]
fn every_story_ends_with_its_reason_and_a_message() {
    for (kind, status, reason, story) in rows() {
        let told = story();
        let said = told.condition(*kind).unwrap();
        assert_eq!(
            (said.status.as_str(), said.reason.as_str()),
            (*status, reason.as_str()),
            "{kind}: {}",
            said.message
        );
        assert!(!said.message.is_empty(), "{kind}: {reason}");
        check(&told);
    }
}

#[test]
fn an_engine_that_ended_without_a_word_is_told_by_its_exit_code() {
    let codes: Vec<i32> = (1..128)
        .filter(|code| StartFault::of_exit_code(*code).is_some())
        .collect();
    assert!(codes.len() > 5, "{codes:?}");
    for code in codes {
        let told = broken(code, "");
        let said = told.condition(ConditionType::ModelReady).unwrap();
        let ends = said.message.ends_with(&format!("exit code {code}"));
        assert!(said.status != "False" || ends, "{said:?}");
        check(&told);
    }
}

/// After the first round.
fn first(spec: Value) -> InferenceServiceStatus {
    let mut fake = Fake::new(spec);
    fake.reconcile();
    fake.status()
}

/// At rest.
fn settled(spec: Value) -> InferenceServiceStatus {
    at_rest(spec).status()
}

fn at_rest(spec: Value) -> Fake {
    let mut fake = Fake::new(spec);
    fake.settle();
    fake
}

/// At rest, and then one round after something happened.
fn after(spec: Value, change: impl FnOnce(&mut Fake)) -> InferenceServiceStatus {
    let mut fake = at_rest(spec);
    change(&mut fake);
    fake.reconcile();
    fake.status()
}

/// At rest, and then one round that sees something else than is there.
fn seen(fake: &Fake, change: impl FnOnce(&mut Observed)) -> InferenceServiceStatus {
    let service = fake.judge(&fake.service).unwrap();
    let mut observed = fake.observe();
    change(&mut observed);
    let made = plan(&service, &observed, &fake.settings, fake.now);
    status::of_running(&service, None, &made, &observed, &fake.settings, fake.now)
}

/// A spec that is refused.
fn refused(spec: Value) -> InferenceServiceStatus {
    let fake = Fake::new(spec);
    let errors = fake.judge(&fake.service).unwrap_err();
    status::refused(&fake.service, &errors, &fake.settings, fake.now)
}

/// An engine that ends at its start with this exit code, and this last line of its log.
fn broken(exit_code: i32, line: &str) -> InferenceServiceStatus {
    let mut fake = Fake::new(json!({}));
    fake.broken.insert(String::new());
    fake.broken_exit_code = exit_code;
    line.clone_into(&mut fake.broken_line);
    for _ in 0..8 {
        fake.reconcile();
        fake.tick(5);
    }
    fake.status()
}
