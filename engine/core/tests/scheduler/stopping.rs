//! When a sequence ends (rule S17): end of sequence, stop token, length, in this order, and not before `min_tokens`.

use kvasir_engine_core::{FinishReason, Micros, Scheduler, StepOutcome, StepPlan, StopConditions, TokenId};

use crate::harness::{request, roomy};

const EOS: TokenId = 2;
const STOP: TokenId = 3;

fn conditions() -> StopConditions {
    StopConditions {
        max_tokens: 4,
        min_tokens: 0,
        eos_token_ids: vec![EOS],
        stop_token_ids: vec![STOP],
    }
}

/// Gives these tokens one by one; says how many were taken before the sequence ended, and why.
fn run(stop: StopConditions, sampled: &[TokenId]) -> (usize, Option<FinishReason>) {
    let mut scheduler = Scheduler::new(roomy()).expect("limits work");
    let mut request = request([1], 1);
    request.stop = stop;
    let id = scheduler.submit(Micros(0), request).expect("taken");
    let (mut plan, mut events) = (StepPlan::new(), Vec::new());
    for (taken, &token) in sampled.iter().enumerate() {
        events.clear();
        if !scheduler.schedule(Micros(0), &mut plan, &mut events) {
            return (taken, None);
        }
        let outcome = StepOutcome {
            sampled: vec![(id, token)],
        };
        scheduler
            .complete(plan.step, &outcome, &mut events)
            .expect("one token was asked for");
        let finished = events.iter().find_map(|event| match event {
            kvasir_engine_core::Event::Finished { reason, .. } => Some(*reason),
            _ => None,
        });
        let token_came_first = matches!(events.iter().rev().nth(usize::from(finished.is_some())),
            Some(kvasir_engine_core::Event::Token { token: reported, .. }) if *reported == token);
        assert!(
            token_came_first,
            "every sampled token is reported, before the end: {events:?}"
        );
        if finished.is_some() {
            assert_eq!(
                scheduler.stats().num_free_blocks,
                scheduler.stats().num_usable_blocks
            );
            return (taken + 1, finished);
        }
    }
    (sampled.len(), None)
}

#[test]
fn end_of_sequence_ends_it() {
    assert_eq!(run(conditions(), &[9, EOS, 9]), (2, Some(FinishReason::Eos)));
}

#[test]
fn a_stop_token_ends_it_and_is_named() {
    assert_eq!(
        run(conditions(), &[9, STOP]),
        (2, Some(FinishReason::StopToken(STOP)))
    );
}

#[test]
fn max_tokens_ends_it() {
    assert_eq!(run(conditions(), &[9; 9]), (4, Some(FinishReason::Length)));
}

#[test]
fn end_of_sequence_comes_before_stop_token_and_length() {
    let both = StopConditions {
        stop_token_ids: vec![EOS],
        max_tokens: 1,
        ..conditions()
    };
    assert_eq!(run(both, &[EOS]), (1, Some(FinishReason::Eos)));
}

#[test]
fn a_stop_token_as_the_last_allowed_token_is_a_stop() {
    let last = StopConditions {
        max_tokens: 2,
        ..conditions()
    };
    assert_eq!(run(last, &[9, STOP]), (2, Some(FinishReason::StopToken(STOP))));
}

#[test]
fn an_ignored_end_of_sequence_is_a_token_like_others() {
    let ignoring = StopConditions {
        eos_token_ids: vec![],
        ..conditions()
    };
    assert_eq!(run(ignoring, &[EOS; 9]), (4, Some(FinishReason::Length)));
}

#[test]
fn stop_tests_wait_for_min_tokens_and_length_does_not() {
    let waiting = StopConditions {
        min_tokens: 3,
        ..conditions()
    };
    assert_eq!(
        run(waiting.clone(), &[EOS, STOP, EOS]),
        (3, Some(FinishReason::Eos))
    );
    let shorter = StopConditions {
        max_tokens: 2,
        ..waiting
    };
    assert_eq!(run(shorter, &[EOS, EOS, EOS]), (2, Some(FinishReason::Length)));
}
