//! What the command prints for what it is given.

use clap::Parser;

use super::{answer, cost, setup::Setup};
use crate::cli::simulate::SimulateArgs;
use crate::exit::Failure;

#[derive(Debug, Parser)]
struct Command {
    #[command(flatten)]
    args: SimulateArgs,
}

fn args(line: &str) -> SimulateArgs {
    let words = std::iter::once("simulate").chain(line.split_whitespace());
    Command::try_parse_from(words).unwrap().args
}

fn refusal(line: &str) -> String {
    match answer(&args(line)) {
        Err(failure @ (Failure::Usage(_) | Failure::Configuration(_))) => failure.to_string(),
        other => panic!("{line} must be refused as a misuse: {other:?}"),
    }
}

const SWEEP: &str = "--request-rate 0.5,1.5 --prompt-len lognormal:300:0.8:2000 --output-len uniform:10:90 --num-requests 60 \
    --max-num-batched-tokens 64,512,2048 --max-num-seqs 16,64 --goodput ttft:3000 itl:400";

#[test]
fn the_same_command_prints_the_same_bytes() {
    for line in [SWEEP, &format!("{SWEEP} --json"), "--clients 3 --num-requests 20"] {
        assert_eq!(answer(&args(line)).unwrap(), answer(&args(line)).unwrap());
    }
    let other_seed = answer(&args(&format!("{SWEEP} --seed 1"))).unwrap();
    assert_ne!(other_seed, answer(&args(SWEEP)).unwrap());
}

#[test]
fn a_sweep_has_a_row_for_each_point_and_proposes_flags_that_serve_takes() {
    let line = format!(
        "{SWEEP} --scheduler-compat vllm --no-enable-prefix-caching --num-blocks 4000 --max-num-active-seqs 16 --steps-in-flight 2"
    );
    let text = answer(&args(&line)).unwrap();
    let rows = text
        .lines()
        .filter(|row| row.contains('%') && row.contains("/s"))
        .count();
    assert_eq!(rows, 12, "{text}");
    assert_eq!(text.matches("<- best").count(), 1);
    let command = text.lines().last().unwrap();
    assert!(
        command.starts_with("  kvasir serve --max-num-batched-tokens "),
        "{command}"
    );
    assert!(
        command.ends_with(" --num-gpu-blocks-override 4000 --no-enable-prefix-caching --scheduler-compat vllm --async-scheduling"),
        "{command}"
    );
}

#[test]
fn json_holds_every_report_and_the_best_setting() {
    let json: serde_json::Value =
        serde_json::from_str(&answer(&args(&format!("{SWEEP} --json"))).unwrap()).unwrap();
    let results = json["results"].as_array().unwrap();
    assert_eq!(results.len(), 12);
    let goodputs: Vec<f64> = results
        .iter()
        .map(|result| result["report"]["goodput"].as_f64().unwrap())
        .collect();
    let most = goodputs.iter().copied().fold(0.0, f64::max);
    assert_eq!(json["best"]["goodput"].as_f64(), Some(most));
    assert_eq!(results[0]["point"]["load"]["request_rate"].as_f64(), Some(0.5));
    assert_eq!(results[0]["report"]["requests"]["arrivals"].as_u64(), Some(60));
}

#[test]
fn one_setting_is_reported_in_full() {
    let text = answer(&args(
        "--clients 2 --num-requests 10 --tenant a:1 --tenant b:3:-1:2 --turns 2",
    ))
    .unwrap();
    for part in [
        "goodput ",
        "10 arrived, 10 completed",
        "TTFT ",
        "ITL (p99)",
        "queue wait",
        "preemptions",
        "tenant ",
    ] {
        assert!(text.contains(part), "{part} is missing in {text}");
    }
}

#[test]
fn what_can_not_be_simulated_is_refused_with_value_and_limit() {
    for (line, part) in [
        (
            "--request-rate 0",
            "--request-rate is 0; it must be a number from 1e-6 to 10000000",
        ),
        ("--request-rate NaN", "is NaN"),
        ("--request-rate 1,inf", "can't be swept"),
        ("--request-rate inf --duration 5", "nothing ends this run"),
        (
            "--prompt-len 9000",
            "--prompt-len is 9000 tokens; it must be from 1 to 8191",
        ),
        ("--prompt-len 0", "--prompt-len is 0 tokens"),
        ("--clients 0", "--clients is 0"),
        ("--num-requests 0", "--num-requests is 0"),
        ("--duration -1", "--duration is -1"),
        ("--goodput ttft", "is no objective"),
        ("--goodput ttft:5 ttft:6", "twice"),
        ("--cost-model step=-1", "step is -1 s"),
        ("--cost-model missing.json", "can't read missing.json"),
        ("--trace missing.jsonl", "can't read missing.jsonl"),
        (
            "--max-num-batched-tokens 8 --max-num-seqs 16",
            "must be able to decode",
        ),
        (
            "--block-size 0",
            "block-size 0 can't be used: it must be a multiple of",
        ),
        (
            "--num-blocks 1",
            "--num-gpu-blocks-override is 1, it must be at least 2",
        ),
        ("--engines 0", "--engines is 0"),
        ("--max-model-len 4000000000 --max-num-seqs 200", "2^32 KV blocks"),
        ("--block-size 20", "block-size 20 can't be used"),
        (
            "--max-num-active-seqs 200",
            "--max-num-active-seqs is 200, above --max-num-seqs 128",
        ),
        (
            "--engines 1000 --max-num-seqs 1024 --max-num-batched-tokens 2048",
            "more than 33554432 blocks in all; lower --engines",
        ),
        (
            "--max-model-len 2000000000 --num-blocks 100",
            "--max-model-len is 2000000000",
        ),
        ("--request-rate 1e300", "--request-rate is 1e300;"),
        ("--clients 1 --ramp -1", "--ramp is -1"),
        (
            "--seat-preemption",
            "--seat-preemption needs --scheduling-policy priority",
        ),
    ] {
        let text = refusal(line);
        assert!(text.contains(part), "{line}: {text}");
    }
}

#[test]
fn a_sweep_of_too_many_points_is_refused() {
    let list = (1..=101).map(|n| n.to_string()).collect::<Vec<_>>().join(",");
    let text = refusal(&format!("--request-rate {list} --max-num-seqs {list}"));
    assert!(
        text.contains("make 10201 settings and loads, more than 10000"),
        "{text}"
    );
}

#[test]
fn pairs_that_a_server_refuses_are_named() {
    let line = "--clients 2 --num-requests 4 --max-num-batched-tokens 8,64 --max-num-seqs 4,16,32";
    let text = answer(&args(line)).unwrap();
    assert!(
        text.contains("2 pairs of tokens / seqs (8 / 16, 8 / 32)"),
        "{text}"
    );
    let json: serde_json::Value =
        serde_json::from_str(&answer(&args(&format!("{line} --json"))).unwrap()).unwrap();
    assert_eq!(json["left_out"].as_array().unwrap().len(), 2);
}

#[test]
fn a_cap_on_running_sequences_is_proposed_where_it_is_one() {
    let line = "--clients 2 --num-requests 4 --max-num-seqs 4,32 --max-num-active-seqs 16";
    let setup = Setup::of(&args(line)).unwrap();
    let command = |max_num_seqs| {
        setup.serve_command(kvasir_sim::Setting {
            max_num_batched_tokens: 2048,
            max_num_seqs,
        })
    };
    assert!(command(32).contains("--max-num-active-seqs 16"));
    assert!(!command(4).contains("--max-num-active-seqs"));
}

#[test]
fn answers_that_the_model_cuts_are_counted() {
    let line = "--clients 1 --num-requests 5 --max-model-len 300 --prompt-len 250 --output-len 100";
    let text = answer(&args(line)).unwrap();
    assert!(text.contains("cut short    5 answers"), "{text}");
    let sweep = answer(&args(&format!("{line} --max-num-seqs 4,8"))).unwrap();
    assert!(
        sweep.contains("In 2 rows answers were shorter than asked, up to 5 in one"),
        "{sweep}"
    );
    assert!(
        !answer(&args("--clients 1 --num-requests 5"))
            .unwrap()
            .contains("cut short")
    );
}

#[test]
fn flags_that_make_no_sense_together_are_refused_by_the_command_line() {
    for line in [
        "--clients 1 --request-rate 1",
        "--trace a --prompt-len 5",
        "--burstiness 2",
        "--speed-up 2",
        "--fit a --calibrate b",
        "--tenant a",
        "--tenant :1",
        "--shared-prefix 5",
        "--prompt-len normal:1:2",
        "--steps-in-flight 0",
        "--max-model-len 5000000000",
    ] {
        let words = std::iter::once("simulate").chain(line.split_whitespace());
        assert!(Command::try_parse_from(words).is_err(), "{line}");
    }
}

#[test]
fn clients_need_not_be_counted_to_pause() {
    let pausing = answer(&args("--num-requests 20 --client-pause 2 --ramp 1")).unwrap();
    assert!(pausing.contains("8 clients, pause 2 s"), "{pausing}");
    for line in ["--request-rate 1 --client-pause 2", "--request-rate 1 --ramp 2"] {
        let words = std::iter::once("simulate").chain(line.split_whitespace());
        let refused = Command::try_parse_from(words).unwrap_err().to_string();
        assert!(refused.contains("--request-rate"), "{refused}");
    }
}

#[test]
fn budgets_and_queues_that_no_server_takes_are_refused() {
    for (line, part) in [
        ("--max-num-batched-tokens 2048,1048577", "at most 1048576"),
        ("--max-num-queued-reqs 0", "--max-num-queued-reqs is 0"),
        ("--max-num-queued-tokens 0", "--max-num-queued-tokens is 0"),
    ] {
        let refused = refusal(line);
        assert!(refused.contains(part), "{refused}");
    }
}

#[test]
fn a_trace_in_a_file_is_played() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.jsonl");
    let lines = r#"{"timestamp": 0, "input_length": 600, "output_length": 10, "hash_ids": [1, 2]}
        {"timestamp": 9000, "input_length": 600, "output_length": 10, "hash_ids": [1, 2]}"#;
    std::fs::write(&path, lines).unwrap();
    let text = answer(&args(&format!("--trace {}", path.display()))).unwrap();
    assert!(
        text.contains("2 arrived, 2 completed") && text.contains("prefix hits 49.3 %"),
        "{text}"
    );
    let sweep = answer(&args(&format!("--trace {} --speed-up 1,4", path.display()))).unwrap();
    assert!(sweep.contains("x1 ") && sweep.contains("x4 "), "{sweep}");
    std::fs::write(&path, "{}").unwrap();
    assert!(refusal(&format!("--trace {}", path.display())).contains("line 1 is no request"));
}

#[test]
fn a_fitted_cost_model_is_written_and_read_again() {
    let folder = tempfile::tempdir().unwrap();
    let (records, fitted) = (folder.path().join("steps.jsonl"), folder.path().join("cost.json"));
    let record = |n: u32| {
        let (prefill, decodes, context) = (10 * (n % 7), n % 5 + 1, 100 * n);
        let seconds = 0.01 + 0.001 * f64::from(prefill) + 0.002 * f64::from(decodes);
        format!(
            "{{\"prefill_tokens\":{prefill},\"decode_seqs\":{decodes},\"context_tokens\":{context},\"seconds\":{seconds}}}"
        )
    };
    let lines = (1..40).map(record).collect::<Vec<_>>().join("\n");
    std::fs::write(&records, lines).unwrap();
    cost::fit(&records, Some(&fitted), false).unwrap();
    let cost = cost::load(fitted.to_str()).unwrap();
    assert!(
        (cost.step - 0.01).abs() < 1e-6 && (cost.prefill_token - 0.001).abs() < 1e-7,
        "{cost}"
    );
    let setup = Setup::of(&args(&format!("--cost-model {}", fitted.display()))).unwrap();
    assert_eq!(setup.engines.cost, cost);
    std::fs::write(&fitted, "{\"step\": 1}").unwrap();
    assert!(
        cost::load(fitted.to_str())
            .unwrap_err()
            .to_string()
            .contains("holds no cost model")
    );
}
