//! What can't be played is refused with the value and its limit.

use kvasir_sim::{
    Arrivals, Objectives, Recording, SharedPrefix, SimError, Span, Synthetic, Workload, WorkloadError,
    simulate,
};

use crate::harness::{engines, synthetic};

const TEN: Span = Span {
    num_requests: Some(10),
    seconds: None,
    warmup_seconds: 0.0,
};

fn refusal(workload: Synthetic, span: Span) -> SimError {
    simulate(&engines(), &synthetic(workload), &span, &Objectives::default()).unwrap_err()
}

fn arrivals(arrivals: Arrivals) -> Synthetic {
    Synthetic {
        arrivals,
        ..Synthetic::default()
    }
}

#[test]
fn arrivals_that_can_not_be_are_refused() {
    let at = |per_second, burstiness| Arrivals::Rate {
        per_second,
        burstiness,
    };
    for (when, part) in [
        (
            at(0.0, 1.0),
            "the request rate per second is 0; it must be a number from 1e-6 to 10000000",
        ),
        (at(f64::NAN, 1.0), "is NaN"),
        (at(f64::INFINITY, 1.0), "is inf"),
        (at(1.0, 0.0), "the burstiness is 0"),
        (Arrivals::Constant { per_second: 1e9 }, "is 1000000000"),
    ] {
        let text = refusal(arrivals(when), TEN).to_string();
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn lengths_that_the_model_can_not_take_are_refused() {
    let lengths = |prompts: &str, outputs: &str| Synthetic {
        prompts: prompts.parse().unwrap(),
        outputs: outputs.parse().unwrap(),
        ..Synthetic::default()
    };
    let shared = |tokens| Synthetic {
        shared_prefix: Some(SharedPrefix { groups: 1, tokens }),
        ..lengths("256", "1")
    };
    for (workload, part) in [
        (
            lengths("8192", "1"),
            "prompt is 8192 tokens; it must be from 1 to 8191",
        ),
        (lengths("1", "0"), "output is 0 tokens"),
        (
            shared(9000),
            "a shared prefix of 9000 tokens leaves no room in prompts of at most 8191",
        ),
        (shared(8000), "prompt is 256 tokens; it must be from 1 to 191"),
    ] {
        let text = refusal(workload, TEN).to_string();
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn times_that_can_not_be_are_refused() {
    let timeout = Synthetic {
        timeout: Some(-1.0),
        ..Synthetic::default()
    };
    let text = refusal(timeout, TEN).to_string();
    assert!(text.contains("the timeout in seconds is -1"), "{text}");
    let long_warmup = Span {
        warmup_seconds: 1e6,
        ..TEN
    };
    let error = refusal(Synthetic::default(), long_warmup);
    assert!(matches!(error, SimError::EmptyWindow { .. }), "{error}");
}

#[test]
fn a_run_that_nothing_would_end_is_refused() {
    let endless = SimError::Workload(WorkloadError::Endless);
    assert_eq!(refusal(Synthetic::default(), Span::default()), endless);
    let only_seconds = Span {
        seconds: Some(5.0),
        ..Span::default()
    };
    assert_eq!(refusal(arrivals(Arrivals::AtOnce), only_seconds), endless);
}

#[test]
fn an_empty_recording_is_refused() {
    let empty = Workload::Recorded(Recording::default());
    let error = simulate(&engines(), &empty, &TEN, &Objectives::default()).unwrap_err();
    assert_eq!(error, SimError::Workload(WorkloadError::Empty));
}
