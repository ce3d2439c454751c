use futures::StreamExt;
use futures::executor::block_on;

use super::*;
use crate::buffer::{OutputReceiver, output_buffer};
use crate::types::{Admission, Finish, FinishReason};

struct Live {
    serial: u64,
    receiver: OutputReceiver,
    admission: oneshot::Receiver<Result<(), Error>>,
}

fn start(routes: &mut Routes, id: &str, limit: usize) -> Live {
    let serial = routes.reserve(id, 8).unwrap();
    let (sender, receiver) = output_buffer(id, 1, limit, || ());
    let (admission_sender, admission) = oneshot::channel();
    routes.insert(serial, id, sender, admission_sender);
    Live {
        serial,
        receiver,
        admission,
    }
}

fn admit(id: &str, serial: u64, error: Option<Error>) -> StepOutputs {
    StepOutputs {
        admissions: vec![Admission {
            request_id: wire_id(id, serial),
            error,
        }],
        outputs: Vec::new(),
    }
}

fn output(id: &str, serial: u64, token: u32, finish: bool) -> StepOutputs {
    let finish = finish.then(|| Finish {
        reason: FinishReason::Stop.into(),
        ..Finish::default()
    });
    let output = SequenceOutput {
        request_id: wire_id(id, serial),
        token_ids: vec![token],
        finish,
        ..Default::default()
    };
    StepOutputs {
        outputs: vec![output],
        admissions: Vec::new(),
    }
}

fn tokens(receiver: OutputReceiver) -> Vec<u32> {
    block_on(receiver.collect::<Vec<_>>())
        .into_iter()
        .flat_map(|o| o.token_ids)
        .collect()
}

#[test]
fn outputs_of_a_dropped_request_dont_reach_its_successor() {
    let mut routes = Routes::default();
    let old = start(&mut routes, "a", 8);
    assert!(routes.remove(old.serial, "a"));
    let new = start(&mut routes, "a", 8);
    routes.route(admit("a", new.serial, None));
    routes.route(output("a", old.serial, 1, true));
    routes.route(output("a", new.serial, 2, true));
    assert_eq!(tokens(new.receiver), [2]);
}

#[test]
fn a_live_id_cant_be_used_twice_and_is_free_after_the_finish() {
    let mut routes = Routes::default();
    let first = start(&mut routes, "a", 8);
    assert_eq!(
        routes.reserve("a", 8).unwrap_err().code(),
        ErrorCode::InvalidRequest
    );
    routes.route(output("a", first.serial, 1, true));
    assert!(routes.reserve("a", 8).is_ok());
}

#[test]
fn more_requests_than_the_limit_are_refused() {
    let mut routes = Routes::default();
    routes.reserve("a", 1).unwrap();
    assert_eq!(routes.reserve("b", 1).unwrap_err().code(), ErrorCode::QueueFull);
}

#[test]
fn a_refusal_reaches_the_caller_and_frees_the_id() {
    let mut routes = Routes::default();
    let mut live = start(&mut routes, "a", 8);
    routes.route(admit("a", live.serial, Some(invalid("n", "too many"))));
    assert_eq!(live.admission.try_recv().unwrap().unwrap_err().param, "n");
    assert!(routes.reserve("a", 8).is_ok());
}

#[test]
fn a_slow_reader_loses_only_its_own_request() {
    let mut routes = Routes::default();
    let (slow, quick) = (start(&mut routes, "slow", 1), start(&mut routes, "quick", 8));
    for token in 0..3 {
        let aborts = routes.route(output("slow", slow.serial, token, false));
        assert_eq!(aborts.len(), usize::from(token == 1));
        assert!(
            routes
                .route(output("quick", quick.serial, token, token == 2))
                .is_empty()
        );
    }
    assert_eq!(tokens(quick.receiver), [0, 1, 2]);
    let outputs = block_on(slow.receiver.collect::<Vec<_>>());
    let error = outputs
        .last()
        .unwrap()
        .finish
        .as_ref()
        .unwrap()
        .error
        .as_ref()
        .unwrap();
    assert_eq!(error.code(), ErrorCode::SlowClient);
}

#[test]
fn a_lost_session_fails_waiting_and_running_requests() {
    let mut routes = Routes::default();
    let mut waiting = start(&mut routes, "waiting", 8);
    let running = start(&mut routes, "running", 8);
    routes.route(admit("running", running.serial, None));
    routes.fail_all(&refusal(ErrorCode::Unavailable, "lost"));
    assert_eq!(
        waiting.admission.try_recv().unwrap().unwrap_err().code(),
        ErrorCode::Unavailable
    );
    let outputs = block_on(running.receiver.collect::<Vec<_>>());
    assert_eq!(
        outputs[0].finish.as_ref().unwrap().error.as_ref().unwrap().code(),
        ErrorCode::Unavailable
    );
    assert!(routes.reserve("waiting", 8).is_ok());
}

#[test]
fn ids_that_this_client_never_sent_are_ignored() {
    let mut routes = Routes::default();
    let live = start(&mut routes, "a", 8);
    for id in ["", "a", "a#", "a#99", "#", "a#-1", "a#18446744073709551616"] {
        let output = SequenceOutput {
            request_id: id.to_owned(),
            ..Default::default()
        };
        let admission = Admission {
            request_id: id.to_owned(),
            error: None,
        };
        assert!(
            routes
                .route(StepOutputs {
                    outputs: vec![output],
                    admissions: vec![admission]
                })
                .is_empty()
        );
    }
    routes.route(output("a", live.serial, 7, true));
    assert_eq!(tokens(live.receiver), [7]);
}

#[test]
fn an_abort_is_sent_once_and_only_for_live_sequences() {
    let mut routes = Routes::default();
    let live = start(&mut routes, "a", 8);
    assert_eq!(routes.abort("a", Some(0)), Some(wire_id("a", live.serial)));
    assert_eq!(routes.abort("a", Some(0)), None);
    assert_eq!(routes.abort("a", Some(1)), None);
    assert_eq!(routes.abort("b", None), None);
    assert!(routes.abort("a", None).is_some());
    assert_eq!(routes.abort("a", None), None);
}
