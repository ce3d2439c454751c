//! The default model against transformers: the Q4_1 file itself, against goldens from its dequantized weights.
//!
//! The file isn't committed. `KVASIR_TEST_MODEL` names it; otherwise it is looked for where the default model is cached.

use std::collections::BTreeMap;
use std::path::PathBuf;

use kvasir_backend::KvDType;
use kvasir_model::Model;
use kvasir_weights::Checkpoint;
use serde_json::Value;

use crate::cpu::{assert_tokens, backend, tolerance};
use crate::driver::{Driver, Job, Output, roomy};
use crate::fixture::{Setup, golden_dir, integers, load_from, numbers};
use crate::same_tokens::{check_all_ways, compare, jobs};

const FILE: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";
const MAX_MODEL_LEN: usize = 256;
const VOCAB_SIZE: u32 = 49_152;

fn path() -> PathBuf {
    let cached = || {
        std::env::home_dir()
            .unwrap()
            .join(".cache/kvasir/models")
            .join(FILE)
    };
    let path = std::env::var_os("KVASIR_TEST_MODEL").map_or_else(cached, PathBuf::from);
    assert!(
        path.is_file(),
        "{} is missing: this test needs the default model; `kvasir models pull` fetches it, or KVASIR_TEST_MODEL names it",
        path.display()
    );
    path
}

fn smollm2(setup: Setup, threads: usize) -> Model {
    let checkpoint = Checkpoint::open(&path()).unwrap();
    load_from(backend(threads, None), &checkpoint, setup, MAX_MODEL_LEN).unwrap()
}

struct Case {
    prompt: Vec<u32>,
    greedy: Vec<u32>,
    margins: Vec<f32>,
    /// The best candidates' logits, by position.
    top: BTreeMap<usize, Vec<(u32, f32)>>,
    deviation_f64: f32,
    deviation_kv_f16: f32,
}

fn cases() -> Vec<Case> {
    let text = std::fs::read(golden_dir().join("smollm2/golden.json")).unwrap();
    let json: Vec<Value> = serde_json::from_slice(&text).unwrap();
    json.iter().map(read_case).collect()
}

fn read_case(json: &Value) -> Case {
    let list = |key: &str| json[key].as_array().unwrap().clone();
    let tops = list("top_tokens").into_iter().zip(list("top_logits"));
    let tops = tops.map(|(tokens, logits)| integers(&tokens).into_iter().zip(numbers(&logits)).collect());
    let positions = integers(&json["positions"])
        .into_iter()
        .map(|position| position as usize);
    Case {
        prompt: integers(&json["prompt"]),
        greedy: integers(&json["greedy"]),
        margins: numbers(&json["margins"]),
        top: positions.zip(tops).collect(),
        deviation_f64: json["deviations"]["f64"].as_f64().unwrap() as f32,
        deviation_kv_f16: json["deviations"]["kv_f16"].as_f64().unwrap() as f32,
    }
}

/// Runs all cases in one batch.
fn run(kv: KvDType) -> (Vec<Case>, Vec<Output>) {
    let cases = cases();
    let setup = Setup {
        kv,
        num_blocks: 100,
        max_num_tokens: 512,
        ..Setup::default()
    };
    let config = roomy(setup.block_size, setup.num_blocks, MAX_MODEL_LEN);
    let mut driver = Driver::new(smollm2(setup, 2), config);
    let jobs: Vec<Job> = cases
        .iter()
        .map(|case| Job::greedy(&case.prompt, case.greedy.len() as u32).with_prompt_logprobs())
        .collect();
    let outputs = driver.run(&jobs);
    (cases, outputs)
}

/// The largest difference of a candidate's logit, over the positions whose context is the golden's.
fn worst_difference(case: &Case, output: &Output) -> f32 {
    let agreed = output
        .tokens
        .iter()
        .zip(&case.greedy)
        .take_while(|(token, golden)| token == golden)
        .count();
    let mut worst = 0.0_f32;
    for (position, top) in case
        .top
        .iter()
        .filter(|(position, _)| **position < case.prompt.len() + agreed)
    {
        let logits = output.logits_after(*position);
        for (token, golden) in top {
            worst = worst.max((logits[*token as usize] - golden).abs());
        }
    }
    worst
}

#[test]
fn ten_prompts_give_exactly_the_greedy_tokens_of_transformers() {
    let (cases, outputs) = run(KvDType::F32);
    assert_eq!(cases.len(), 10);
    for (index, (case, output)) in cases.iter().zip(&outputs).enumerate() {
        assert!(case.greedy.len() >= 32);
        assert_eq!(output.tokens, case.greedy, "prompt {index}");
        let (worst, tolerance) = (worst_difference(case, output), tolerance(case.deviation_f64));
        println!("prompt {index}: {worst:e} of {tolerance:e}");
        assert!(
            worst <= tolerance,
            "prompt {index}: logits differ by {worst:e}, tolerance {tolerance:e}"
        );
    }
}

#[test]
fn kv_cache_of_f16_stays_within_its_rounding() {
    let (cases, outputs) = run(KvDType::F16);
    for (index, (case, output)) in cases.iter().zip(&outputs).enumerate() {
        let tolerance = tolerance(case.deviation_f64) + 2.0 * case.deviation_kv_f16;
        let worst = worst_difference(case, output);
        println!("prompt {index}: {worst:e} of {tolerance:e}");
        assert!(
            worst <= tolerance,
            "prompt {index}: logits differ by {worst:e}, tolerance {tolerance:e}"
        );
        assert_tokens(
            &output.tokens,
            &case.greedy,
            &case.margins,
            tolerance,
            &format!("prompt {index}"),
        );
    }
}

#[test]
fn sequence_computes_the_same_bits_in_every_way_of_scheduling_and_with_any_number_of_threads() {
    let jobs = jobs(5, VOCAB_SIZE, 8);
    let make = |setup, threads| {
        smollm2(
            Setup {
                kv: KvDType::F16,
                ..setup
            },
            threads,
        )
    };
    let expected = check_all_ways(|setup| make(setup, 2), &jobs, MAX_MODEL_LEN, 16, 9);
    let setup = Setup::default();
    let mut driver = Driver::new(make(setup, 1), roomy(16, setup.num_blocks, MAX_MODEL_LEN));
    compare(&expected, &driver.run_alone(&jobs), "with 1 thread");
}
