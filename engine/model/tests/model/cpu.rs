//! The CPU backend against transformers, on every instruction set that this machine has.
//!
//! # Tolerances
//!
//! Weights of every type are exact after conversion to f32 (a quantized weight is a product and a sum of numbers with few
//! bits, rounded at most twice), and the goldens are computed from those same weights. So what remains is the order in
//! which products are summed in f32. Each golden says how far transformers' own f32 result is from its f64 result: the size
//! of such an error for this very model and prompt. Ours sums in another order (each output walks K once, where torch has
//! several partial sums) and may be three times as far from the exact result: four deviations between the two. The constant
//! part is the error of inverse frequencies, see `fidelity`.
//!
//! A KV cache of f16 or bf16 rounds K and V. The golden says how far transformers' logits move when it rounds the same
//! values. Ours are rounded from values that differ in the last bits, so some round to the other side, but never does more
//! than the whole rounding come on top: twice the deviation.

use kvasir_backend::KvDType;
use kvasir_backend_cpu::{CpuBackend, CpuOptions, Isa};
use kvasir_model::Model;

use crate::driver::{Driver, roomy};
use crate::fidelity::{COSINE_TOLERANCE, deviation, run_golden};
use crate::fixture::{Golden, MAX_MODEL_LEN, PLAIN, QUANTIZED, Setup, load_tiny};
use crate::same_tokens::{check_all_ways, compare, jobs};

pub(crate) fn tolerance(deviation_f64: f32) -> f32 {
    4.0 * deviation_f64 + COSINE_TOLERANCE
}

pub(crate) fn backend(threads: usize, isa: Option<Isa>) -> CpuBackend {
    CpuBackend::new(CpuOptions { threads, isa }).unwrap()
}

fn tiny(name: &str, setup: Setup, threads: usize, isa: Isa) -> Model {
    load_tiny(backend(threads, Some(isa)), name, setup)
}

fn available() -> impl Iterator<Item = Isa> {
    Isa::ALL.into_iter().filter(|isa| isa.is_available())
}

fn check(names: &[&str], isa: Isa, kv: KvDType) {
    for name in names {
        let golden = Golden::of(name);
        let setup = Setup {
            kv,
            ..Setup::default()
        };
        let mut driver = Driver::new(
            tiny(name, setup, 2, isa),
            roomy(16, setup.num_blocks, MAX_MODEL_LEN),
        );
        let output = run_golden(&mut driver, &golden);
        let tolerance = tolerance(golden.deviation_f64)
            + match kv {
                KvDType::F32 => 0.0,
                KvDType::F16 => 2.0 * golden.deviation_kv_f16,
                KvDType::Bf16 => 2.0 * golden.deviation_kv_bf16,
            };
        let worst = deviation(&output, &golden);
        println!("{name} {isa} {kv:?}: {worst:e} of {tolerance:e}");
        assert!(
            worst <= tolerance,
            "{name} {isa} {kv:?}: logits differ by {worst:e}, tolerance {tolerance:e}"
        );
        assert_tokens(&output.tokens, &golden.greedy, &golden.margins, tolerance, name);
    }
}

/// Tokens are equal up to the first whose margin is within what both candidates may be off.
pub(crate) fn assert_tokens(tokens: &[u32], golden: &[u32], margins: &[f32], tolerance: f32, name: &str) {
    assert_eq!(tokens.len(), golden.len(), "{name}");
    for (index, (token, expected)) in tokens.iter().zip(golden).enumerate() {
        if token != expected {
            let margin = margins[index];
            assert!(
                margin <= 2.0 * tolerance,
                "{name}: token {index} is {token}, not {expected}; margin {margin}"
            );
            return;
        }
    }
}

#[test]
fn plain_models_give_the_logits_of_transformers() {
    available().for_each(|isa| check(&PLAIN, isa, KvDType::F32));
}

#[test]
fn quantized_models_give_the_logits_of_transformers() {
    available().for_each(|isa| check(&QUANTIZED, isa, KvDType::F32));
}

#[test]
fn kv_cache_of_f16_stays_within_its_rounding() {
    check(&PLAIN, Isa::detect(), KvDType::F16);
    check(&QUANTIZED, Isa::detect(), KvDType::F16);
}

#[test]
fn kv_cache_of_bf16_stays_within_its_rounding() {
    check(&PLAIN, Isa::detect(), KvDType::Bf16);
    check(&QUANTIZED, Isa::detect(), KvDType::Bf16);
}

#[test]
fn greedy_tokens_are_exact_where_weights_and_cache_are_f32() {
    for name in ["llama-mha-untied", "llama-bias-yarn"] {
        let golden = Golden::of(name);
        let setup = Setup::default();
        let mut driver = Driver::new(
            tiny(name, setup, 2, Isa::detect()),
            roomy(16, setup.num_blocks, MAX_MODEL_LEN),
        );
        assert_eq!(run_golden(&mut driver, &golden).tokens, golden.greedy, "{name}");
    }
}

/// All ways of scheduling with 2 threads, and one after the other with 1.
fn check_same_bits(name: &str, kv: KvDType, isa: Isa) {
    let jobs = jobs(32, 97, 8);
    let make = |setup, threads| tiny(name, Setup { kv, ..setup }, threads, isa);
    let expected = check_all_ways(|setup| make(setup, 2), &jobs, MAX_MODEL_LEN, 16, 12);
    let setup = Setup::default();
    let mut driver = Driver::new(make(setup, 1), roomy(16, setup.num_blocks, MAX_MODEL_LEN));
    compare(&expected, &driver.run_alone(&jobs), "with 1 thread");
}

#[test]
fn sequence_computes_the_same_bits_in_every_way_of_scheduling_and_with_any_number_of_threads() {
    for isa in available() {
        check_same_bits("llama-mha-untied", KvDType::F32, isa);
        check_same_bits("mistral-window", KvDType::Bf16, isa);
    }
    check_same_bits("gguf-q4_1-untied", KvDType::F16, Isa::detect());
    check_same_bits("gguf-q6_k", KvDType::F16, Isa::detect());
}
