//! What is refused at the door, with which limit, and what a refusal leaves behind: nothing.

use kvasir_engine_core::{ConfigError, FinishReason, Reject, Scheduler, SchedulerConfig};

use crate::harness::{Engine, request, roomy, ten_blocks};

/// Case T12: in vLLM the large request blocks the queue for ever.
#[test]
fn a_prompt_larger_than_the_pool_is_refused_and_the_others_run() {
    let mut engine = Engine::new(ten_blocks());
    let refused = engine.try_submit(&request(0..200, 1));
    assert_eq!(
        refused,
        Err(Reject::NeverFits {
            needed: 13,
            usable: 10,
            limit: 160
        })
    );
    let small: Vec<_> = (0..5)
        .map(|i| engine.submit(request(1000 * i..1000 * i + 20, 3)))
        .collect();
    engine.run();
    assert!(
        small
            .iter()
            .all(|&id| engine.finish_reason(id) == Some(FinishReason::Length))
    );
}

#[test]
fn a_refusal_says_what_is_needed_and_what_there_is() {
    let mut engine = Engine::new(ten_blocks());
    let text = engine
        .try_submit(&request(0..161, 1))
        .expect_err("one token too many")
        .to_string();
    for part in ["needs 11 KV blocks", "pool has 10", "room for 160 tokens"] {
        assert!(text.contains(part), "{text:?} lacks {part:?}");
    }
}

#[test]
fn an_empty_prompt_and_zero_tokens_are_refused() {
    let mut engine = Engine::new(roomy());
    assert_eq!(engine.try_submit(&request([], 1)), Err(Reject::EmptyPrompt));
    assert_eq!(engine.try_submit(&request([1], 0)), Err(Reject::ZeroMaxTokens));
    assert!(!engine.step());
}

#[test]
fn a_full_queue_refuses_with_its_limit_and_takes_again_later() {
    let mut engine = Engine::new(SchedulerConfig {
        max_num_queued_reqs: 2,
        ..roomy()
    });
    engine.submit(request([1], 1));
    engine.submit(request([2], 1));
    let refused = engine
        .try_submit(&request([3], 1))
        .expect_err("the queue is full");
    assert_eq!(
        refused,
        Reject::QueueFull {
            queued: 2,
            requested: 1,
            limit: 2
        }
    );
    assert!(refused.is_retryable());
    engine.step();
    engine.submit(request([3], 1));
}

#[test]
fn queued_prompt_tokens_are_bounded_and_counted_down_by_admission_and_abort() {
    let mut engine = Engine::new(SchedulerConfig {
        max_num_queued_tokens: 10,
        ..roomy()
    });
    let first = engine.submit(request(0..6, 1));
    let refused = engine.try_submit(&request(0..5, 1)).expect_err("eleven tokens");
    assert_eq!(
        refused,
        Reject::QueuedTokensFull {
            queued: 6,
            requested: 5,
            limit: 10
        }
    );
    engine.abort(first);
    engine.submit(request(0..5, 1));
    assert_eq!(engine.scheduler.stats().num_queued_tokens, 5);
    engine.step();
    assert_eq!(engine.scheduler.stats().num_queued_tokens, 0);
}

#[test]
fn a_request_that_no_empty_queue_holds_is_not_worth_retrying() {
    let mut engine = Engine::new(SchedulerConfig {
        max_num_queued_reqs: 2,
        max_num_queued_tokens: 10,
        ..roomy()
    });
    let too_many = engine
        .try_submit_group(&vec![request([1], 1); 3])
        .expect_err("three of two");
    assert!(!too_many.is_retryable());
    let too_long = engine.try_submit(&request(0..11, 1)).expect_err("eleven of ten");
    assert!(!too_long.is_retryable());
}

#[test]
fn a_group_is_queued_whole_or_not_at_all() {
    let mut engine = Engine::new(SchedulerConfig {
        max_num_queued_reqs: 4,
        ..roomy()
    });
    engine.submit(request([1], 1));
    let group = vec![request([2, 3], 2); 4];
    assert!(matches!(
        engine.try_submit_group(&group),
        Err(Reject::QueueFull { requested: 4, .. })
    ));
    assert_eq!(engine.scheduler.stats().num_waiting, 1);
    let bad_last = [request([2], 1), request([], 1)];
    assert_eq!(engine.try_submit_group(&bad_last), Err(Reject::EmptyPrompt));
    assert_eq!(engine.scheduler.stats().num_waiting, 1);
    let ids = engine.try_submit_group(&group[..3]).expect("three fit");
    engine.run();
    assert!(ids.iter().all(|&id| engine.output(id).len() == 2));
}

#[test]
fn limits_of_zero_are_refused_by_name() {
    for (name, config) in [
        (
            "max_num_batched_tokens",
            SchedulerConfig {
                max_num_batched_tokens: 0,
                ..roomy()
            },
        ),
        (
            "max_num_seqs",
            SchedulerConfig {
                max_num_seqs: 0,
                ..roomy()
            },
        ),
        (
            "max_num_active_seqs",
            SchedulerConfig {
                max_num_active_seqs: 0,
                ..roomy()
            },
        ),
        (
            "block_size",
            SchedulerConfig {
                block_size: 0,
                ..roomy()
            },
        ),
        (
            "max_num_queued_reqs",
            SchedulerConfig {
                max_num_queued_reqs: 0,
                ..roomy()
            },
        ),
        (
            "max_num_queued_tokens",
            SchedulerConfig {
                max_num_queued_tokens: 0,
                ..roomy()
            },
        ),
    ] {
        assert_eq!(
            refusal(config),
            ConfigError::TooSmall {
                name,
                value: 0,
                min: 1
            }
        );
    }
}

#[test]
fn a_pool_or_a_model_that_holds_no_sequence_is_refused() {
    let pool = SchedulerConfig {
        num_blocks: 1,
        ..roomy()
    };
    assert_eq!(
        refusal(pool),
        ConfigError::TooSmall {
            name: "num_blocks",
            value: 1,
            min: 2
        }
    );
    let model = SchedulerConfig {
        max_model_len: 1,
        ..roomy()
    };
    assert_eq!(
        refusal(model),
        ConfigError::TooSmall {
            name: "max_model_len",
            value: 1,
            min: 2
        }
    );
}

#[test]
fn limits_that_contradict_each_other_are_refused_with_both_values() {
    let text = refusal(SchedulerConfig {
        max_num_batched_tokens: 63,
        ..roomy()
    })
    .to_string();
    assert!(
        text.contains("max_num_seqs is 64, which is above max_num_batched_tokens 63"),
        "{text}"
    );
    let text = refusal(SchedulerConfig {
        max_num_active_seqs: 65,
        ..roomy()
    })
    .to_string();
    assert!(
        text.contains("max_num_active_seqs is 65, which is above max_num_seqs 64"),
        "{text}"
    );
}

#[test]
fn a_pool_of_more_positions_than_can_be_counted_is_refused() {
    let huge = SchedulerConfig {
        num_blocks: u32::MAX,
        block_size: u32::MAX,
        ..roomy()
    };
    assert!(matches!(refusal(huge), ConfigError::PoolTooLarge { .. }));
    let endless = SchedulerConfig {
        max_model_len: u32::MAX,
        ..roomy()
    };
    assert!(matches!(
        refusal(endless),
        ConfigError::AboveLimit {
            name: "max_model_len",
            ..
        }
    ));
}

fn refusal(config: SchedulerConfig) -> ConfigError {
    Scheduler::new(config)
        .map(|_| ())
        .expect_err("the limits can't work")
}
