//! Sweeps, and the setting they propose.

use kvasir_sim::{Load, Objectives, Point, Report, Setting, Span, Sweep, best, simulate};

use crate::harness::{clients, engines, rate};

fn results(sweep: &Sweep, objectives: &[&str]) -> Vec<(Point, Report)> {
    let objectives = Objectives::parse(objectives.iter().copied()).unwrap();
    let workload = rate(1.0, "400", "60");
    let span = Span {
        seconds: Some(200.0),
        warmup_seconds: 20.0,
        num_requests: None,
    };
    let points = sweep.points().into_iter();
    points
        .map(|point| {
            let server = kvasir_sim::Engines {
                limits: point.setting.apply(&engines().limits),
                ..engines()
            };
            let workload = point.load.apply(&workload).unwrap();
            (point, simulate(&server, &workload, &span, &objectives).unwrap())
        })
        .collect()
}

fn sweep() -> Sweep {
    Sweep {
        token_budgets: vec![64, 512, 2048],
        seq_limits: vec![8, 64, 128],
        loads: vec![Load::RequestRate(0.5), Load::RequestRate(2.0)],
    }
}

#[test]
fn budgets_below_the_number_of_sequences_are_left_out() {
    let points = sweep().points();
    assert_eq!(points.len(), 2 * 8);
    assert!(
        points
            .iter()
            .all(|point| point.setting.max_num_batched_tokens >= point.setting.max_num_seqs)
    );
}

#[test]
fn the_proposed_setting_depends_on_what_is_asked_for() {
    // Short gaps want small chunks of prompts; a fast first token wants large ones.
    let budget = |objectives: &[&str]| {
        let mut sweep = sweep();
        sweep.loads = vec![Load::RequestRate(0.7)];
        let results = results(&sweep, objectives);
        let (point, report) = &results[best(&results).unwrap()];
        assert!(results.iter().all(|(_, other)| other.goodput <= report.goodput));
        point.setting.max_num_batched_tokens
    };
    assert_eq!(budget(&["itl:300"]), 64);
    assert!(budget(&["ttft:1500"]) > 64);
}

#[test]
fn nothing_is_proposed_where_nothing_passes() {
    assert_eq!(best(&results(&sweep(), &["ttft:0.001"])), None);
    assert_eq!(best(&[]), None);
}

#[test]
fn among_equals_the_faster_and_then_the_smaller_setting_is_proposed() {
    let sweep = Sweep {
        token_budgets: vec![4096, 2048],
        seq_limits: vec![64, 32],
        loads: vec![Load::RequestRate(0.01)],
    };
    // Nobody ever meets another one: all settings behave alike.
    let results = results(&sweep, &[]);
    let (point, _) = &results[best(&results).unwrap()];
    let smallest = Setting {
        max_num_batched_tokens: 2048,
        max_num_seqs: 32,
    };
    assert_eq!(point.setting, smallest);
}

#[test]
fn a_load_changes_the_workload_it_fits_and_no_other() {
    let (open, closed) = (rate(1.0, "5", "5"), clients(1, "5", "5"));
    assert_eq!(*Load::RequestRate(3.0).apply(&open).unwrap(), rate(3.0, "5", "5"));
    assert_eq!(*Load::Clients(3).apply(&closed).unwrap(), clients(3, "5", "5"));
    assert_eq!(*Load::Clients(3).apply(&open).unwrap(), open);
    assert_eq!(*Load::Given.apply(&closed).unwrap(), closed);
}
