//! Recorded workloads.

use kvasir_cache_key::CacheIdentity;
use kvasir_engine_core::{Micros, Request, Scheduler, StepOutcome, StepPlan, StopConditions};
use kvasir_sim::{Recording, Workload};

use crate::harness::{engines, play};

fn lines(text: &str, block_tokens: u32) -> Workload {
    Workload::Recorded(Recording::from_lines(text, block_tokens).unwrap())
}

#[test]
fn recorded_lengths_and_times_are_played() {
    let text = r#"{"timestamp": 1000, "input_length": 100, "output_length": 3}
        {"timestamp": 21000, "input_length": 200, "output_length": 4}"#;
    let report = play(&engines(), &lines(text, 512), 10);
    assert_eq!(report.requests.completed, 2);
    assert!(report.window_seconds > 20.0, "{}", report.window_seconds);
    let tokens = report.output_token_throughput * report.window_seconds;
    assert!((tokens - 7.0).abs() < 1e-6, "{tokens}");
}

#[test]
fn equal_hash_ids_at_the_beginning_are_found_in_the_cache_and_other_ids_are_not() {
    let line = |time: u32, ids: &str| {
        format!(r#"{{"timestamp": {time}, "input_length": 1000, "output_length": 1, "hash_ids": {ids}}}"#)
    };
    let hits = |second: &str| {
        let text = format!("{}\n{}", line(0, "[7, 8]"), line(60_000, second));
        let report = play(&engines(), &lines(&text, 512), 2);
        report.engine.prefix_hit_rate.unwrap() * 2000.0
    };
    // 992 is the last full block of 16 before the last token.
    let found = [hits("[7, 8]"), hits("[7, 9]"), hits("[8, 7]"), hits("[]")];
    assert_eq!(found.map(f64::round), [992.0, 512.0, 0.0, 0.0]);
}

/// What a server would have recorded: two turns of a conversation, and one that was refused.
fn recorded() -> kvasir_engine_core::Trace {
    let mut scheduler = Scheduler::new(engines().limits).unwrap();
    scheduler.record(10_000);
    let (mut plan, mut events) = (StepPlan::new(), Vec::new());
    let mut run = |scheduler: &mut Scheduler, now: u64| {
        while scheduler.schedule(Micros(now), &mut plan, &mut events) {
            let sampled = plan.seqs.iter().filter(|part| part.samples);
            let sampled = sampled.map(|part| (part.seq, 1000 + part.output_index)).collect();
            scheduler
                .complete(plan.step, &StepOutcome { sampled }, &mut events)
                .unwrap();
        }
    };
    let request = |prompt: Vec<u32>, max_tokens| Request {
        prompt: prompt.into(),
        stop: StopConditions {
            max_tokens,
            eos_token_ids: vec![1020],
            ..StopConditions::default()
        },
        priority: 3,
        cache_root: CacheIdentity::default().root(),
        reads_prefix_cache: true,
    };
    // Ends with its 21st token, long before its limit.
    scheduler
        .submit(Micros(5_000_000), request((0..44).collect(), 500))
        .unwrap();
    run(&mut scheduler, 5_000_000);
    scheduler
        .submit(Micros(6_000_000), request(Vec::new(), 5))
        .unwrap_err();
    let second: Vec<u32> = (0..44).chain(1000..1021).chain(50..60).collect();
    scheduler.submit(Micros(9_000_000), request(second, 1)).unwrap();
    run(&mut scheduler, 9_000_000);
    scheduler.trace().unwrap()
}

#[test]
fn a_schedulers_recording_is_played_with_the_answers_of_then() {
    let trace = recorded();
    let requests = trace.requests().unwrap();
    let lens: Vec<usize> = requests.iter().map(|request| request.output.len()).collect();
    assert_eq!(lens, [21, 0, 1]);
    let recording = Recording::from_trace(&trace).unwrap();
    assert_eq!((recording.len(), recording.num_refused()), (2, 1));
    let report = play(&engines(), &Workload::Recorded(recording), 10);
    assert_eq!((report.requests.arrivals, report.requests.completed), (2, 2));
    assert!(
        (4.0..5.0).contains(&report.window_seconds),
        "from 5 s to after 9 s: {}",
        report.window_seconds
    );
    // The second prompt begins with the first one and its answer: 64 of its 75 tokens are cached.
    assert_eq!(report.engine.prefix_hit_rate, Some(64.0 / (44.0 + 75.0)));
}

#[test]
fn a_recording_that_begins_in_the_middle_has_the_requests_since_then() {
    let mut scheduler = Scheduler::new(engines().limits).unwrap();
    let (mut plan, mut events) = (StepPlan::new(), Vec::new());
    let request = |first: u32| Request {
        prompt: (first..first + 20).collect(),
        stop: StopConditions {
            max_tokens: 3,
            ..StopConditions::default()
        },
        priority: 0,
        cache_root: CacheIdentity::default().root(),
        reads_prefix_cache: true,
    };
    scheduler.submit(Micros(0), request(0)).unwrap();
    scheduler.record(1000);
    scheduler.submit(Micros(1), request(100)).unwrap();
    while scheduler.schedule(Micros(2), &mut plan, &mut events) {
        let sampled = plan.seqs.iter().filter(|part| part.samples);
        let sampled = sampled.map(|part| (part.seq, 7)).collect();
        scheduler
            .complete(plan.step, &StepOutcome { sampled }, &mut events)
            .unwrap();
    }
    let requests = scheduler.trace().unwrap().requests().unwrap();
    assert_eq!(requests.len(), 1);
    assert_eq!(
        (requests[0].request.prompt[0], requests[0].output.len()),
        (100, 3)
    );
}
