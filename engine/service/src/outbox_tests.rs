use futures::FutureExt;
use futures::executor::block_on;
use kvasir_client::types::{Finish, TokenLogprobs, TopLogprob};

use super::*;

fn token(token: u32) -> SequenceOutput {
    SequenceOutput {
        token_ids: vec![token],
        ..SequenceOutput::default()
    }
}

fn finish() -> SequenceOutput {
    SequenceOutput {
        finish: Some(Finish::default()),
        ..SequenceOutput::default()
    }
}

fn next(outbox: &Outbox) -> Option<Result<StepOutputs, Status>> {
    block_on(outbox.next())
}

fn admission(id: &str) -> Admission {
    Admission {
        request_id: id.to_owned(),
        error: None,
    }
}

#[test]
fn all_outputs_of_a_step_leave_in_one_message() {
    let outbox = Outbox::new(4, 4);
    for key in 0..3 {
        assert_eq!(outbox.stage(RequestKey(key), token(1)), Delivery::Taken);
    }
    assert!(outbox.next().now_or_never().is_none());
    outbox.commit();
    outbox.commit();
    assert_eq!(next(&outbox).unwrap().unwrap().outputs.len(), 3);
    assert!(outbox.next().now_or_never().is_none());
}

#[test]
fn a_request_that_isnt_read_is_full_and_can_still_finish() {
    let outbox = Outbox::new(2, 4);
    for _ in 0..2 {
        assert_eq!(outbox.stage(RequestKey(1), token(1)), Delivery::Taken);
        outbox.commit();
    }
    assert_eq!(outbox.stage(RequestKey(1), token(1)), Delivery::Full);
    assert_eq!(outbox.stage(RequestKey(2), token(1)), Delivery::Taken);
    assert_eq!(outbox.stage(RequestKey(1), finish()), Delivery::Taken);
    next(&outbox);
    next(&outbox);
    assert_eq!(outbox.stage(RequestKey(1), token(1)), Delivery::Taken);
}

#[test]
fn unread_requests_and_answers_hold_up_reading_more() {
    let outbox = Outbox::new(8, 2);
    outbox.stage(RequestKey(1), finish());
    outbox.stage(RequestKey(2), finish());
    outbox.commit();
    assert!(outbox.room().now_or_never().is_none());
    next(&outbox);
    assert!(outbox.room().now_or_never().is_some());
    outbox.answer(admission("a"));
    outbox.answer(admission("b"));
    assert!(outbox.room().now_or_never().is_none());
    assert_eq!(next(&outbox).unwrap().unwrap().admissions.len(), 2);
    assert!(outbox.room().now_or_never().is_some());
}

#[test]
fn an_answer_comes_before_the_outputs_that_follow_it() {
    let outbox = Outbox::new(8, 8);
    outbox.stage(RequestKey(1), token(1));
    outbox.commit();
    outbox.answer(admission("b"));
    outbox.stage(RequestKey(2), token(2));
    outbox.commit();
    let kinds: Vec<_> = (0..3)
        .map(|_| next(&outbox).unwrap().unwrap())
        .map(|message| (message.outputs.len(), message.admissions.len()))
        .collect();
    assert_eq!(kinds, [(1, 0), (0, 1), (1, 0)]);
}

#[test]
fn the_queue_is_sent_before_the_end() {
    let outbox = Outbox::new(8, 8);
    outbox.stage(RequestKey(1), token(1));
    outbox.commit();
    outbox.end(Some(Status::internal("x")));
    outbox.end(None);
    assert!(next(&outbox).unwrap().is_ok());
    assert_eq!(next(&outbox).unwrap().unwrap_err().message(), "x");
    assert!(next(&outbox).is_none());
}

#[test]
fn large_outputs_are_split_over_messages() {
    let top = vec![
        TopLogprob {
            token_id: 1 << 20,
            logprob: -1.5
        };
        100_000
    ];
    let large = SequenceOutput {
        prompt_logprobs: vec![
            TokenLogprobs {
                top,
                ..TokenLogprobs::default()
            };
            3
        ],
        ..SequenceOutput::default()
    };
    let outbox = Outbox::new(8, 8);
    for key in 0..3 {
        outbox.stage(RequestKey(key), large.clone());
    }
    outbox.commit();
    for _ in 0..3 {
        assert_eq!(next(&outbox).unwrap().unwrap().outputs.len(), 1);
    }
}
