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
        Err(failure @ Failure::Usage(_)) => failure.to_string(),
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
        command.ends_with(" --max-num-active-seqs 16 --num-gpu-blocks-override 4000 --no-enable-prefix-caching --scheduler-compat vllm --async-scheduling"),
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
        ("--request-rate 0", "the request rate per second is 0"),
        ("--request-rate NaN", "is NaN"),
        ("--request-rate 1,inf", "can't be swept"),
        ("--request-rate inf --duration 5", "nothing ends this run"),
        (
            "--prompt-len 9000",
            "prompt is 9000 tokens; it must be from 1 to 8191",
        ),
        ("--prompt-len 0", "prompt is 0 tokens"),
        ("--clients 0", "the number of clients is 0"),
        ("--num-requests 0", "the number of requests is 0"),
        ("--duration -1", "the duration in seconds is -1"),
        ("--goodput ttft", "is no objective"),
        ("--goodput ttft:5 ttft:6", "twice"),
        ("--cost-model step=-1", "step is -1 s"),
        ("--cost-model missing.json", "can't read missing.json"),
        ("--trace missing.jsonl", "can't read missing.jsonl"),
        (
            "--max-num-batched-tokens 8 --max-num-seqs 16",
            "must be able to decode",
        ),
        ("--block-size 0", "block_size is 0, it must be at least 1"),
        ("--num-blocks 1", "num_blocks is 1, it must be at least 2"),
        ("--engines 0", "the number of engines is 0"),
        ("--max-model-len 4000000000 --block-size 1", "2^32 KV blocks"),
        ("--seat-preemption", "seat_preemption needs the priority order"),
    ] {
        let text = refusal(line);
        assert!(text.contains(part), "{line}: {text}");
    }
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
