//! Devices that fail, threads that panic and logits that are no numbers: whoever computed with them is told, and the others go on.

use std::panic::{AssertUnwindSafe, catch_unwind};

use kvasir_backend::{ExecError, Executor, Ticket};
use kvasir_engine_core::{BlockId, PENDING_TOKEN, SeqId, StepId, StepPlan};
use kvasir_model::Model;

use crate::hostile_plans::{admit, assert_usable, good_plan, next_plan, tiny};

/// Sequence 1 begins in step 9 and goes on in step 10, where sequence 2 begins.
fn plans_of_two_steps() -> [StepPlan; 2] {
    let mut second = next_plan(1, 10, 1, PENDING_TOKEN);
    let mut newcomer = good_plan(2);
    newcomer.seqs[0].tokens = 1..4;
    second.seqs.append(&mut newcomer.seqs);
    second.tokens.append(&mut newcomer.tokens);
    second.blocks = vec![BlockId(4)];
    [good_plan(1), second]
}

/// What the two steps sample when nothing fails.
fn tokens_of_two_steps() -> [u32; 3] {
    let (mut model, _) = tiny();
    let results = run_two_steps(&mut model).map(|result| result.unwrap().sampled);
    [results[0][0].token, results[1][0].token, results[1][1].token]
}

fn run_two_steps(model: &mut Model) -> [Result<kvasir_backend::StepResult, ExecError>; 2] {
    admit(model, 1, &[5, 6, 7]);
    admit(model, 2, &[5, 6, 7]);
    let tickets = plans_of_two_steps().map(|plan| model.submit(&plan).unwrap());
    tickets.map(|ticket| model.sample(ticket))
}

#[test]
fn executor_survives_a_failure_of_any_operation() {
    let (mut model, sabotage) = tiny();
    let mut failures = 0;
    for operations in 0.. {
        admit(&mut model, 1, &[5, 6, 7]);
        sabotage.fail_after(operations);
        let result = model
            .submit(&good_plan(1))
            .and_then(|ticket| model.sample(ticket));
        sabotage.never_fail();
        model.release(SeqId(1));
        match result {
            Ok(_) => break,
            Err(error) => assert!(matches!(error, ExecError::Device(_)), "{error}"),
        }
        failures += 1;
    }
    // Embedding, nine operations in each of three layers, and four in the head for three rows.
    assert_eq!(failures, 1 + 9 * 3 + 3 + 3);
    assert_usable(model);
}

#[test]
fn a_step_that_fails_takes_its_sequences_out_of_the_step_behind_it() {
    let [_, _, newcomer] = tokens_of_two_steps();
    let (mut model, sabotage) = tiny();
    // The first operation of the first step, which may run before the second is submitted or after it: that makes no difference.
    sabotage.fail_after(0);
    let [first, second] = run_two_steps(&mut model);
    assert!(matches!(first, Err(ExecError::Device(_))));
    let second = second.unwrap();
    let sampled: Vec<_> = second
        .sampled
        .iter()
        .map(|sampled| (sampled.seq, sampled.token))
        .collect();
    assert_eq!(sampled, [(SeqId(2), newcomer)]);
    let [(failed, reason)] = &second.failed[..] else {
        panic!("{:?}", second.failed)
    };
    assert_eq!(*failed, SeqId(1));
    assert!(reason.contains("step 9"), "{reason}");
    // Nobody may go on with it.
    assert!(matches!(
        model.submit(&next_plan(1, 11, 2, 5)),
        Err(ExecError::UnknownSequence(SeqId(1)))
    ));
    model.release(SeqId(1));
    model.release(SeqId(2));
    assert_usable(model);
}

#[test]
fn a_sequence_whose_logits_are_no_numbers_fails_and_the_others_go_on() {
    let [first, second, _] = tokens_of_two_steps();
    let (mut model, sabotage) = tiny();
    sabotage.poison(90);
    admit(&mut model, 1, &[5, 6, 7]);
    admit(&mut model, 2, &[5, 90, 7]);
    let mut plan = good_plan(1);
    let mut poisoned = good_plan(2);
    poisoned.seqs[0].tokens = 3..6;
    poisoned.seqs[0].blocks = 1..2;
    plan.seqs.append(&mut poisoned.seqs);
    plan.tokens.extend([5, 90, 7]);
    plan.blocks.push(BlockId(4));
    let mut behind = next_plan(1, 10, 1, PENDING_TOKEN);
    let mut lost = next_plan(2, 10, 1, PENDING_TOKEN);
    lost.seqs[0].tokens = 1..2;
    behind.seqs.append(&mut lost.seqs);
    behind.tokens.append(&mut lost.tokens);

    let tickets = [plan, behind].map(|plan| model.submit(&plan).unwrap());
    for (ticket, expected) in tickets.into_iter().zip([first, second]) {
        let result = model.sample(ticket).unwrap();
        let sampled: Vec<_> = result
            .sampled
            .iter()
            .map(|sampled| (sampled.seq, sampled.token))
            .collect();
        assert_eq!(sampled, [(SeqId(1), expected)]);
        let reason = "the logits after position 1 are not numbers".to_owned();
        assert_eq!(result.failed, [(SeqId(2), reason)]);
    }
    sabotage.heal();
    model.release(SeqId(1));
    model.release(SeqId(2));
    assert_usable(model);
}

#[test]
fn a_panic_of_the_executors_thread_reaches_the_caller_and_nothing_hangs() {
    let (mut model, sabotage) = tiny();
    admit(&mut model, 1, &[5, 6, 7]);
    sabotage.panic();
    model.submit(&good_plan(1)).unwrap();
    // The thread may panic before or after each of these calls; one of them hears of it, and all of them end.
    let calls: [fn(&mut Model) -> bool; 3] = [
        |model| model.submit(&next_plan(1, 10, 1, PENDING_TOKEN)).is_ok(),
        |model| model.sample(Ticket(StepId(9))).is_ok(),
        |model| model.sample(Ticket(StepId(10))).is_ok(),
    ];
    let mut panics = Vec::new();
    for call in calls {
        panics.extend(catch_unwind(AssertUnwindSafe(|| call(&mut model))).err());
    }
    let messages: Vec<_> = panics.iter().map(|panic| panic.downcast_ref::<&str>()).collect();
    assert_eq!(messages, [Some(&"the test asked for a panic")]);
    assert!(matches!(model.warmup(3), Err(ExecError::Device(_))));
    assert!(model.submit(&good_plan(1)).is_err());
    assert!(model.sample(Ticket(StepId(9))).is_err());
}

#[test]
fn dropping_a_model_waits_for_its_steps() {
    let (mut model, _) = tiny();
    admit(&mut model, 1, &[5, 6, 7]);
    model.submit(&good_plan(1)).unwrap();
    model.submit(&next_plan(1, 10, 1, PENDING_TOKEN)).unwrap();
    drop(model);
}
