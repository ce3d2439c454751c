use std::time::Duration;

use kvasir_engine_core::BlockId;

use super::*;

fn plan(step: u64, num_tokens: u32) -> Arc<StepPlan> {
    let num_tokens = num_tokens as usize;
    Arc::new(StepPlan {
        step: StepId(step),
        seqs: vec![SeqPlan {
            seq: SeqId(7),
            first_position: 2,
            tokens: 0..num_tokens,
            blocks_from: 1,
            blocks: 0..1,
            samples: true,
            output_index: 0,
        }],
        tokens: vec![5; num_tokens],
        num_groups: 1,
        blocks: vec![BlockId(9)],
        copies: Vec::new(),
    })
}

fn part(planned: &SeqPlan) -> StepPart {
    StepPart {
        request_id: "a".into(),
        index: 0,
        seq: planned.seq.0,
        first_position: planned.first_position,
        num_tokens: planned.tokens.len() as u32,
        num_prompt_tokens: 1,
        samples: planned.samples,
    }
}

fn run(journal: &mut Journal, step: u64) {
    journal.begin(&plan(step, 3), Micros(step * 10), &Stats::default(), |planned| {
        Some(part(planned))
    });
    let time = StepTime {
        execute: Duration::from_micros(step),
        ..StepTime::default()
    };
    journal.end(StepId(step), time, None);
}

#[test]
fn the_last_steps_are_kept_in_order() {
    let mut journal = Journal::new(2, 3);
    for step in 0..5 {
        run(&mut journal, step);
    }
    let done: Vec<_> = journal
        .done()
        .map(|record| (record.step, record.planned_us, record.execute_us))
        .collect();
    assert_eq!(done, [(3, 30, 3), (4, 40, 4)]);
    let digests: Vec<_> = journal.digests().map(|(step, _)| step.0).collect();
    assert_eq!(digests, [2, 3, 4]);
}

#[test]
fn steps_in_flight_together_leave_no_more_records_than_others() {
    let mut journal = Journal::new(2, 0);
    for step in [0, 2, 4] {
        for step in [step, step + 1] {
            journal.begin(&plan(step, 1), Micros(0), &Stats::default(), |planned| {
                Some(part(planned))
            });
        }
        for step in [step, step + 1] {
            journal.end(StepId(step), StepTime::default(), None);
        }
    }
    let done: Vec<_> = journal.done().map(|record| record.step).collect();
    assert_eq!(done, [4, 5]);
}

#[test]
fn a_record_tells_prompt_tokens_from_output_tokens() {
    let mut journal = Journal::new(2, 0);
    run(&mut journal, 0);
    let record = journal.done().next().unwrap();
    assert_eq!((record.num_prompt_tokens, record.num_output_tokens), (1, 2));
    assert_eq!(record.seqs, [part(&plan(0, 3).seqs[0])]);
}

#[test]
fn steps_in_flight_are_told_apart_from_those_that_ended() {
    let mut journal = Journal::new(2, 0);
    journal.begin(&plan(0, 1), Micros(0), &Stats::default(), |planned| {
        Some(part(planned))
    });
    journal.begin(&plan(1, 1), Micros(0), &Stats::default(), |planned| {
        Some(part(planned))
    });
    assert_eq!(journal.seqs_in_flight(), [SeqId(7), SeqId(7)]);
    journal.end(
        StepId(0),
        StepTime::default(),
        Some(ExecError::Device("gone".to_owned())),
    );
    let left: Vec<_> = journal.in_flight().map(|begun| begun.record.step).collect();
    assert_eq!(left, [1]);
    let failure = journal.done().next().unwrap().failure.clone().unwrap();
    assert!(failure.contains("gone"), "{failure}");
}

#[test]
fn a_journal_of_nothing_stays_empty() {
    let mut journal = Journal::new(0, 0);
    run(&mut journal, 0);
    assert_eq!((journal.done().count(), journal.digests().count()), (0, 0));
}

#[test]
fn other_plans_have_other_digests() {
    let mut scratch = Vec::new();
    let mut digest = |change: fn(&mut StepPlan)| {
        let mut plan = Arc::unwrap_or_clone(plan(3, 2));
        change(&mut plan);
        plan_digest(&plan, &mut scratch)
    };
    let changes: [fn(&mut StepPlan); 9] = [
        |_| (),
        |plan| plan.step = StepId(4),
        |plan| plan.seqs[0].seq = SeqId(8),
        |plan| plan.seqs[0].first_position = 3,
        |plan| plan.seqs[0].blocks_from = 0,
        |plan| plan.seqs[0].samples = false,
        |plan| plan.seqs[0].output_index = 1,
        |plan| plan.tokens[1] = 6,
        |plan| plan.blocks[0] = BlockId(8),
    ];
    let mut digests = changes.map(&mut digest).to_vec();
    assert_eq!(digests[0], digest(|_| ()));
    digests.sort_unstable();
    digests.dedup();
    assert_eq!(digests.len(), changes.len());
}
