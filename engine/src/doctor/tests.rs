//! Each cause is named by its figures, in the drill's order, and what a server doesn't tell is said to be unknown.

use super::exposition::{Histogram, parse};
use super::finding::{Diagnosis, Place, State, Verdict};
use super::snapshot::{Ranks, Server, Snapshot, Window};
use super::{diagnose, render};

const SECONDS: f64 = 5.0;

#[expect(clippy::unnecessary_wraps, reason = "a snapshot's histograms are options")]
fn histogram(sum: f64, count: f64) -> Option<Histogram> {
    Some(Histogram {
        sum,
        count,
        buckets: vec![(f64::INFINITY, count)],
    })
}

/// A server that has done something and does nothing.
fn resting() -> Snapshot {
    Snapshot {
        server: Server::Kvasir,
        running: Some(0.0),
        waiting: Some(0.0),
        kv_usage: Some(0.1),
        free_blocks: Some(900.0),
        block_size: Some(16.0),
        preemptions: Some(3.0),
        max_num_seqs: Some(8.0),
        max_num_batched_tokens: Some(2048.0),
        step_tokens: histogram(5_000.0, 100.0),
        prompt_tokens: histogram(2_000.0, 20.0),
        prompt_tokens_total: Some(2_000.0),
        generation_tokens: Some(3_000.0),
        queue_seconds: histogram(1.0, 20.0),
        first_token_seconds: histogram(2.0, 20.0),
        prefill_seconds: histogram(1.0, 20.0),
        inter_token_seconds: histogram(30.0, 2_980.0),
        schedule: histogram(0.01, 100.0),
        launch: histogram(0.01, 100.0),
        execute: histogram(4.0, 100.0),
        wait: histogram(3.9, 100.0),
        complete: histogram(0.01, 100.0),
        deliver: histogram(0.01, 100.0),
        cpu_seconds: Some(8.0),
        cpu_wait_seconds: Some(0.1),
        cpus: Some(2.0),
        stalled_seconds: Some(0.0),
        ranks: None,
        collective: None,
        pipeline_wait: None,
        prefix_caching: Some(true),
        prefix_queries: Some(2_000.0),
        prefix_hits: Some(1_000.0),
        rejections: Some(0.0),
    }
}

fn more(histogram: &mut Option<Histogram>, sum: f64, count: f64) {
    let histogram = histogram.as_mut().unwrap();
    histogram.sum += sum;
    histogram.count += count;
}

/// The same server after five seconds in which it generated for two clients.
fn working() -> (Snapshot, Snapshot) {
    let mut before = resting();
    before.running = Some(2.0);
    let mut after = before.clone();
    more(&mut after.step_tokens, 300.0, 100.0);
    more(&mut after.prompt_tokens, 200.0, 2.0);
    more(&mut after.execute, 4.5, 100.0);
    more(&mut after.wait, 4.4, 100.0);
    more(&mut after.schedule, 0.01, 100.0);
    more(&mut after.deliver, 0.01, 100.0);
    after.prompt_tokens_total = Some(2_200.0);
    after.generation_tokens = Some(3_200.0);
    after.cpu_seconds = Some(17.0);
    after.cpu_wait_seconds = Some(0.2);
    after.prefix_queries = Some(2_200.0);
    after.prefix_hits = Some(1_100.0);
    (before, after)
}

/// The same, with five clients waiting all the time.
fn queueing() -> (Snapshot, Snapshot) {
    let (mut before, mut after) = working();
    before.waiting = Some(5.0);
    after.waiting = Some(6.0);
    (before, after)
}

fn judge(looks: &(Snapshot, Snapshot)) -> Diagnosis {
    let window = Window {
        before: &looks.0,
        after: &looks.1,
        seconds: SECONDS,
    };
    diagnose(&window, None)
}

/// Changes both looks of a queueing server.
fn changed(change: impl Fn(&mut Snapshot)) -> (Snapshot, Snapshot) {
    let (mut before, mut after) = queueing();
    change(&mut before);
    change(&mut after);
    (before, after)
}

fn verdict(diagnosis: &Diagnosis, place: Place) -> Verdict {
    let found = diagnosis.findings.iter().find(|finding| finding.place == place);
    found.unwrap().verdict
}

#[test]
fn idle_healthy_and_busy_servers_are_called_that() {
    assert_eq!(judge(&(resting(), resting())).state, State::Idle);
    assert_eq!(judge(&working()).state, State::Healthy);
    let busy = judge(&queueing());
    assert_eq!(busy.state, State::Computing);
    assert!(busy.summary.contains("5 requests wait"), "{}", busy.summary);
    assert!(
        busy.findings
            .iter()
            .all(|finding| finding.verdict == Verdict::Fine)
    );
}

#[test]
fn preemptions_are_a_kv_cache_that_is_too_small_for_what_runs() {
    let mut looks = queueing();
    looks.1.preemptions = Some(7.0);
    let diagnosis = judge(&looks);
    assert_eq!(diagnosis.state, State::HeldBack(Place::KvCache));
    for word in [
        "0.8 requests a second",
        "--kv-cache-memory-bytes",
        "--max-num-seqs",
    ] {
        assert!(diagnosis.summary.contains(word), "{word}: {}", diagnosis.summary);
    }
}

#[test]
fn requests_that_wait_for_blocks_are_a_kv_cache_that_is_too_small() {
    let full = judge(&changed(|look| look.kv_usage = Some(0.97)));
    assert_eq!(full.state, State::HeldBack(Place::KvCache));
    // Prompts have 100 tokens on average.
    let too_long = judge(&changed(|look| look.free_blocks = Some(5.0)));
    assert_eq!(too_long.state, State::HeldBack(Place::KvCache));
    let fits = judge(&changed(|look| look.free_blocks = Some(7.0)));
    assert_eq!(verdict(&fits, Place::KvCache), Verdict::Fine);
    let mut looks = working();
    looks.1.kv_usage = Some(0.97);
    assert_eq!(judge(&looks).state, State::Healthy, "nobody waits");
}

#[test]
fn requests_that_wait_while_the_cap_is_reached_are_a_limit() {
    let diagnosis = judge(&changed(|look| look.running = Some(8.0)));
    assert_eq!(diagnosis.state, State::HeldBack(Place::Limits));
    assert!(
        diagnosis.summary.contains("--max-num-seqs"),
        "{}",
        diagnosis.summary
    );
    let both = judge(&changed(|look| {
        look.running = Some(8.0);
        look.kv_usage = Some(0.97);
    }));
    assert_eq!(
        both.state,
        State::HeldBack(Place::Limits),
        "the cap holds them, not the blocks"
    );
}

#[test]
fn steps_that_a_small_budget_cuts_are_a_limit_even_if_nobody_waits() {
    let small = |budget: f64| {
        let (mut before, mut after) = working();
        more(&mut after.step_tokens, 0.9 * budget * 100.0 - 300.0, 0.0);
        more(&mut after.prompt_tokens, 100_000.0, 20.0);
        before.max_num_batched_tokens = Some(budget);
        after.max_num_batched_tokens = Some(budget);
        judge(&(before, after))
    };
    let diagnosis = small(32.0);
    assert_eq!(diagnosis.state, State::HeldBack(Place::Limits));
    assert!(
        diagnosis.summary.contains("--max-num-batched-tokens"),
        "{}",
        diagnosis.summary
    );
    assert_eq!(
        small(2048.0).state,
        State::Healthy,
        "a large budget that is full is a busy device"
    );
}

#[test]
fn a_host_that_takes_long_for_a_step_is_named() {
    let mut looks = queueing();
    more(&mut looks.1.deliver, 3.0, 0.0);
    let diagnosis = judge(&looks);
    assert_eq!(diagnosis.state, State::HeldBack(Place::Scheduling));
    assert!(diagnosis.summary.contains("41 %"), "{}", diagnosis.summary);
}

#[test]
fn threads_that_wait_for_cpus_are_named_even_if_no_request_waits() {
    let mut looks = working();
    looks.1.cpu_seconds = Some(10.0);
    looks.1.cpu_wait_seconds = Some(6.1);
    let diagnosis = judge(&looks);
    assert_eq!(diagnosis.state, State::HeldBack(Place::Scheduling));
    assert!(diagnosis.summary.contains("75 %"), "{}", diagnosis.summary);
    let mut rarely = working();
    rarely.1.cpu_seconds = rarely.0.cpu_seconds.map(|seconds| seconds + 0.1);
    rarely.1.cpu_wait_seconds = rarely.0.cpu_wait_seconds.map(|seconds| seconds + 0.3);
    assert_eq!(
        judge(&rarely).state,
        State::Healthy,
        "a large share of next to nothing"
    );
    let mut idle = (resting(), resting());
    idle.1.cpu_wait_seconds = Some(6.1);
    assert_eq!(judge(&idle).state, State::Idle, "nobody is kept waiting");
}

#[test]
fn ranks_that_wait_for_each_other_are_named() {
    let ranks = |tensor, pipeline| Some(Ranks { tensor, pipeline });
    let mut looks = changed(|look| {
        look.ranks = ranks(4.0, 1.0);
        look.collective = histogram(1.0, 100.0);
    });
    more(&mut looks.1.collective, 0.3, 100.0);
    assert_eq!(verdict(&judge(&looks), Place::Topology), Verdict::Fine);
    more(&mut looks.1.collective, 1.7, 0.0);
    let diagnosis = judge(&looks);
    assert_eq!(diagnosis.state, State::HeldBack(Place::Topology));
    assert!(
        diagnosis.summary.contains("smaller tensor parallel size"),
        "{}",
        diagnosis.summary
    );

    let mut looks = changed(|look| {
        look.ranks = ranks(1.0, 2.0);
        look.pipeline_wait = histogram(1.0, 100.0);
    });
    more(&mut looks.1.pipeline_wait, 3.0, 100.0);
    assert!(judge(&looks).summary.contains("Pipeline stages"));
    let silent = changed(|look| look.ranks = ranks(2.0, 1.0));
    assert_eq!(verdict(&judge(&silent), Place::Topology), Verdict::Unknown);
}

/// Prompts of which nothing is found are nearly all that is computed.
fn prompts_only() -> (Snapshot, Snapshot) {
    let (before, mut after) = queueing();
    after.prompt_tokens_total = Some(12_000.0);
    after.prefix_queries = Some(12_000.0);
    after.prefix_hits = Some(1_100.0);
    (before, after)
}

#[test]
fn prompts_without_common_beginnings_are_named_where_they_matter() {
    let looks = prompts_only();
    let diagnosis = judge(&looks);
    assert_eq!(diagnosis.state, State::HeldBack(Place::PrefixCache));
    assert!(
        diagnosis.summary.contains("what prompts have in common first"),
        "{}",
        diagnosis.summary
    );

    let mut shared = looks.clone();
    shared.1.prefix_hits = Some(10_900.0);
    assert_eq!(judge(&shared).state, State::Computing);
    let mut nobody_waits = looks.clone();
    nobody_waits.1.waiting = Some(0.0);
    assert_eq!(judge(&nobody_waits).state, State::Healthy);
    more(&mut nobody_waits.1.first_token_seconds, 40.0, 20.0);
    assert_eq!(
        judge(&nobody_waits).state,
        State::HeldBack(Place::PrefixCache),
        "slow first tokens"
    );
}

#[test]
fn a_prefix_cache_that_is_off_is_to_be_turned_on() {
    let (mut before, mut after) = prompts_only();
    for look in [&mut before, &mut after] {
        look.prefix_caching = Some(false);
        look.prefix_queries = Some(0.0);
        look.prefix_hits = Some(0.0);
    }
    let diagnosis = judge(&(before, after));
    assert_eq!(diagnosis.state, State::HeldBack(Place::PrefixCache));
    assert!(
        diagnosis.summary.contains("--enable-prefix-caching"),
        "{}",
        diagnosis.summary
    );
}

/// Makes a server worse in one place.
type Worsen = &'static dyn Fn(&mut Snapshot, &mut Snapshot);

#[test]
fn the_first_cause_of_several_is_the_bottleneck() {
    let (mut before, mut after) = prompts_only();
    let held = [
        Place::PrefixCache,
        Place::Topology,
        Place::Scheduling,
        Place::Limits,
        Place::KvCache,
    ];
    let worse: [Worsen; 5] = [
        &|_, _| {},
        &|_, after| after.collective = histogram(4.0, 100.0),
        &|_, after| more(&mut after.schedule, 3.0, 0.0),
        &|before, after| {
            before.running = Some(8.0);
            after.running = Some(8.0);
        },
        &|_, after| after.preemptions = Some(50.0),
    ];
    for (place, worsen) in held.into_iter().zip(worse) {
        worsen(&mut before, &mut after);
        let diagnosis = judge(&(before.clone(), after.clone()));
        assert_eq!(diagnosis.state, State::HeldBack(place));
    }
}

#[test]
fn probes_that_fail_and_engines_that_stand_still_come_first() {
    let (before, after) = queueing();
    let window = Window {
        before: &before,
        after: &after,
        seconds: SECONDS,
    };
    let diagnosis = diagnose(&window, Some("/ready answers 503".to_owned()));
    assert_eq!(diagnosis.state, State::Unhealthy("/ready answers 503".to_owned()));
    let stalled = judge(&changed(|look| look.stalled_seconds = Some(61.0)));
    assert!(matches!(stalled.state, State::Unhealthy(_)));
    assert!(
        stalled.summary.contains("no step for 61 s"),
        "{}",
        stalled.summary
    );
}

#[test]
fn a_restart_between_the_looks_gives_no_negative_figures() {
    let (before, after) = queueing();
    let diagnosis = judge(&(
        after,
        Snapshot {
            preemptions: Some(0.0),
            generation_tokens: Some(1.0),
            ..before
        },
    ));
    for measure in diagnosis
        .times
        .iter()
        .chain(diagnosis.findings.iter().flat_map(|f| &f.measured))
    {
        assert!(measure.value.is_none_or(|value| value >= 0.0), "{measure:?}");
    }
}

/// What vLLM answers, shortened.
fn vllm(preemptions: f64, waiting: f64) -> Snapshot {
    let labels = "engine=\"0\",model_name=\"m\"";
    Snapshot::of(&parse(&format!(
        "# TYPE vllm:num_requests_running gauge\n\
         vllm:num_requests_running{{{labels}}} 12.0\n\
         vllm:num_requests_waiting{{{labels}}} {waiting}\n\
         vllm:kv_cache_usage_perc{{{labels}}} 0.6\n\
         vllm:num_preemptions_total{{{labels}}} {preemptions}\n\
         vllm:prefix_cache_queries_total{{{labels}}} 100.0\n\
         vllm:prefix_cache_hits_total{{{labels}}} 50.0\n\
         vllm:generation_tokens_total{{{labels}}} 1000.0\n\
         vllm:cache_config_info{{block_size=\"16\",enable_prefix_caching=\"True\",engine=\"0\",num_gpu_blocks=\"1000\"}} 1.0\n\
         process_cpu_seconds_total 17.0\n"
    ))
    .unwrap())
}

#[test]
fn a_server_of_vllm_is_diagnosed_as_far_as_its_figures_go() {
    let calm = judge(&(vllm(4.0, 0.0), vllm(4.0, 0.0)));
    assert_eq!(calm.state, State::Healthy);
    for place in [Place::Limits, Place::Scheduling, Place::Topology] {
        assert_eq!(verdict(&calm, place), Verdict::Unknown, "{place:?}");
    }
    let thrashing = judge(&(vllm(4.0, 9.0), vllm(24.0, 9.0)));
    assert_eq!(thrashing.state, State::HeldBack(Place::KvCache));
    assert!(
        thrashing.summary.contains("--gpu-memory-utilization"),
        "{}",
        thrashing.summary
    );
    let capped = judge(&(vllm(4.0, 9.0), vllm(4.0, 9.0)));
    assert_eq!(capped.state, State::HeldBack(Place::Limits));
    assert!(capped.summary.starts_with("Probably"), "{}", capped.summary);
}

#[test]
fn a_server_without_any_figure_is_unknown_everywhere() {
    let nothing = judge(&(Snapshot::default(), Snapshot::default()));
    assert_eq!(nothing.state, State::Idle);
    for place in [
        Place::KvCache,
        Place::Limits,
        Place::Scheduling,
        Place::PrefixCache,
    ] {
        assert_eq!(verdict(&nothing, place), Verdict::Unknown, "{place:?}");
    }
}

#[test]
fn absurd_figures_give_a_diagnosis_all_the_same() {
    let names = [
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "vllm:kv_cache_usage_perc",
        "vllm:num_preemptions_total",
        "kvasir_kv_blocks_free",
        "kvasir_max_num_seqs",
        "kvasir_max_num_batched_tokens",
        "kvasir_engine_cpus",
        "kvasir_engine_stalled_seconds",
        "vllm:iteration_tokens_total_sum",
        "vllm:iteration_tokens_total_count",
        "vllm:request_prompt_tokens_sum",
        "vllm:request_prompt_tokens_count",
        "vllm:prompt_tokens_total",
        "kvasir_step_schedule_seconds_sum",
        "kvasir_step_schedule_seconds_count",
    ];
    let values = ["0", "-1", "1e308", "-1e308", "1e-320", "NaN", "0.5"];
    let look = |shift: usize| {
        let line = |(i, name): (usize, &&str)| format!("{name} {}\n", values[(i * 3 + shift) % values.len()]);
        let lines: Vec<String> = names.iter().enumerate().map(line).collect();
        Snapshot::of(&parse(&lines.concat()).unwrap())
    };
    for before in 0..values.len() {
        for after in 0..values.len() {
            let diagnosis = judge(&(look(before), look(after)));
            assert_eq!(diagnosis.findings.len(), 5);
            render("absurd", &diagnosis, true);
            serde_json::to_string(&diagnosis).unwrap();
        }
    }
}

#[test]
fn text_says_what_was_measured_and_what_helps_and_colours_are_optional() {
    let mut looks = queueing();
    looks.1.preemptions = Some(7.0);
    let diagnosis = judge(&looks);
    let text = render("http://host (kvasir)", &diagnosis, false);
    assert!(
        text.starts_with("http://host (kvasir)\nqueue 50.0 ms, "),
        "{text}"
    );
    assert!(
        text.contains("1. KV cache           HOLDS     usage 10 % (limit 90 %)"),
        "{text}"
    );
    assert!(
        text.contains("Bottleneck. KV cache: The blocks run out"),
        "{text}"
    );
    assert!(
        !text.contains('\u{1b}') && text.lines().all(|line| line.chars().count() <= 100),
        "{text}"
    );
    let coloured = render("http://host (kvasir)", &diagnosis, true);
    assert!(coloured.contains("\u{1b}[1;31mBottleneck\u{1b}[0m"), "{coloured}");
    let json = serde_json::to_value(&diagnosis).unwrap();
    assert_eq!(json["state"], "held_back");
    assert_eq!(json["what"], "kv_cache");
    assert_eq!(json["findings"][0]["measured"][0]["threshold"]["at_least"], 0.9);
}

#[test]
fn second_look_at_a_restarted_or_another_server_is_noticed() {
    let went_back = |before: &Snapshot, after: &Snapshot| {
        Window {
            before,
            after,
            seconds: SECONDS,
        }
        .went_back()
    };
    let before = resting();
    assert!(!went_back(&before, &before));
    let mut later = resting();
    later.generation_tokens = Some(3_001.0);
    assert!(!went_back(&before, &later));
    // The files in the wrong order.
    assert!(went_back(&later, &before));
    let restarted = Snapshot {
        running: Some(0.0),
        ..Snapshot::default()
    };
    assert!(went_back(&before, &restarted));
    let other = Snapshot {
        server: Server::Vllm,
        ..resting()
    };
    assert!(went_back(&before, &other));
}
