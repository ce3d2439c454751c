//! A sequence computes the same, bit for bit, however it is scheduled.

use kvasir_backend::KvDType;
use kvasir_engine_core::{Policies, SchedulerConfig};
use kvasir_model::Model;
use kvasir_sampling::SamplingParams;

use crate::driver::{Driver, Job, Output, roomy};
use crate::fixture::{MAX_MODEL_LEN, Setup, load_tiny};
use crate::naive::Naive;

/// Prompts of different lengths, some of them with a common beginning; greedy, sampled and penalized; some with log
/// probabilities of their prompts.
pub(crate) fn jobs(num_jobs: usize, vocab_size: u32, max_tokens: u32) -> Vec<Job> {
    (0..num_jobs as u32)
        .map(|job| {
            let len = 3 + (job * 7) % 40;
            let of = |i: u32| {
                if i < 20 {
                    i * 31 + job % 3
                } else {
                    i * 17 + job * 13
                }
            };
            let prompt = (0..len).map(|i| of(i) % vocab_size).collect::<Vec<_>>();
            let sampling = SamplingParams {
                temperature: if job % 2 == 0 { 0.0 } else { 0.9 },
                top_p: 0.95,
                frequency_penalty: if job % 3 == 0 { 0.5 } else { 0.0 },
                repetition_penalty: if job % 5 == 0 { 1.2 } else { 1.0 },
                seed: u64::from(job),
                logprobs: Some(3),
                ..SamplingParams::default()
            };
            Job {
                prompt,
                max_tokens: max_tokens + job % 4,
                sampling,
                prompt_logprobs: job % 4 == 1,
                eos: None,
            }
        })
        .collect()
}

/// Runs the jobs in each way and compares everything with the sequential run. A pool of `small_pool` blocks must be too
/// small for all jobs.
pub(crate) fn check_all_ways(
    make: impl Fn(Setup) -> Model,
    jobs: &[Job],
    max_model_len: usize,
    block_size: usize,
    small_pool: usize,
) -> Vec<Output> {
    let setup = Setup {
        block_size,
        ..Setup::default()
    };
    let make = |num_blocks| make(Setup { num_blocks, ..setup });
    let driver = |config: SchedulerConfig| Driver::new(make(config.num_blocks as usize), config);
    let config = || roomy(block_size, setup.num_blocks, max_model_len);
    let alone = driver(config()).run_alone(jobs);
    compare(&alone, &driver(config()).run(jobs), "in one batch");

    let mut chunked = driver(SchedulerConfig {
        max_num_batched_tokens: 7,
        max_num_seqs: 7,
        max_num_active_seqs: 7,
        ..config()
    });
    compare(&alone, &chunked.run(jobs), "chunked with a budget of 7");
    assert_eq!(chunked.largest_step, 7);

    let mut preempted = driver(SchedulerConfig {
        num_blocks: small_pool as u32,
        ..config()
    });
    compare(&alone, &preempted.run(jobs), "preempted");
    assert!(
        preempted.num_preemptions > 0,
        "the pool is too large for this test"
    );

    let mut cached = driver(SchedulerConfig {
        enable_prefix_caching: true,
        ..config()
    });
    compare(&alone, &cached.run_alone(jobs), "with a cached prefix");
    compare(&alone, &cached.run(jobs), "with cached prefixes in one batch");
    assert!(cached.num_cached_tokens > 0, "nothing was found in the cache");
    check_two_in_flight(make, jobs, &alone, &config(), small_pool);
    alone
}

/// Steps that are planned while the one before them runs, in each of the ways.
fn check_two_in_flight(
    make: impl Fn(usize) -> Model,
    jobs: &[Job],
    alone: &[Output],
    roomy: &SchedulerConfig,
    small_pool: usize,
) {
    let driver = |config: SchedulerConfig| {
        let policies = Policies {
            max_in_flight: 2,
            ..Policies::vllm()
        };
        Driver::with_policies(make(config.num_blocks as usize), config, policies)
    };
    let found = driver(roomy.clone()).run(jobs);
    compare(alone, &found, "with two steps in flight");
    let chunked = SchedulerConfig {
        max_num_batched_tokens: 7,
        max_num_seqs: 7,
        max_num_active_seqs: 7,
        ..roomy.clone()
    };
    compare(
        alone,
        &driver(chunked).run(jobs),
        "chunked, with two steps in flight",
    );
    let mut preempted = driver(SchedulerConfig {
        num_blocks: small_pool as u32,
        ..roomy.clone()
    });
    compare(alone, &preempted.run(jobs), "preempted, with two steps in flight");
    assert!(
        preempted.num_preemptions > 0,
        "the pool is too large for this test"
    );
    let mut cached = driver(SchedulerConfig {
        enable_prefix_caching: true,
        ..roomy.clone()
    });
    compare(alone, &cached.run_alone(jobs), "alone, with two steps in flight");
    compare(alone, &cached.run(jobs), "cached, with two steps in flight");
    assert!(cached.num_cached_tokens > 0, "nothing was found in the cache");
}

pub(crate) fn compare(expected: &[Output], found: &[Output], way: &str) {
    for (job, (expected, found)) in expected.iter().zip(found).enumerate() {
        assert_eq!(expected.tokens, found.tokens, "tokens of job {job} {way}");
        assert!(expected.logits == found.logits, "logits of job {job} {way}");
        assert!(expected == found, "log probabilities of job {job} {way}");
    }
}

#[test]
fn sequence_computes_the_same_in_every_way_of_scheduling() {
    for name in ["llama-mqa-llama3", "mistral-window"] {
        let make = |setup| load_tiny(Naive::default(), name, setup);
        check_all_ways(make, &jobs(32, 97, 8), MAX_MODEL_LEN, 4, 40);
    }
}

#[test]
fn prompt_logprobs_cover_each_token_of_the_prompt_once() {
    let jobs = jobs(32, 97, 8);
    let model = load_tiny(
        Naive::default(),
        "llama-mha-untied",
        Setup {
            num_blocks: 40,
            block_size: 4,
            ..Setup::default()
        },
    );
    let mut driver = Driver::new(model, roomy(4, 40, MAX_MODEL_LEN));
    let outputs = driver.run(&jobs);
    assert!(driver.num_preemptions > 0);
    for (job, output) in jobs.iter().zip(&outputs) {
        let tokens: Vec<u32> = output
            .prompt_logprobs
            .iter()
            .map(|logprobs| logprobs.token)
            .collect();
        let expected = if job.prompt_logprobs {
            &job.prompt[1..]
        } else {
            &[]
        };
        assert_eq!(tokens, expected);
    }
}

#[test]
fn a_sequence_that_ends_while_its_next_step_is_in_flight_gives_the_same_output() {
    let make = || load_tiny(Naive::default(), "llama-mqa-llama3", Setup::default());
    let mut jobs = jobs(8, 97, 12);
    let whole = Driver::new(make(), roomy(16, 600, MAX_MODEL_LEN)).run_alone(&jobs);
    for (job, output) in jobs.iter_mut().zip(&whole) {
        job.eos = Some(output.tokens[output.tokens.len() / 2]);
    }
    let expected = Driver::new(make(), roomy(16, 600, MAX_MODEL_LEN)).run_alone(&jobs);
    assert!(
        expected
            .iter()
            .zip(&whole)
            .all(|(cut, whole)| cut.tokens.len() < whole.tokens.len())
    );
    let policies = Policies {
        max_in_flight: 2,
        ..Policies::vllm()
    };
    let mut ahead = Driver::with_policies(make(), roomy(16, 600, MAX_MODEL_LEN), policies);
    compare(&expected, &ahead.run(&jobs), "ended ahead of a step in flight");
}

#[test]
fn sequences_that_share_their_prompt_by_copies_compute_the_same_as_alone() {
    for (kv, prompt_len, max_in_flight) in
        [(KvDType::F32, 21, 1), (KvDType::F16, 37, 2), (KvDType::F32, 9, 2)]
    {
        let setup = Setup {
            kv,
            ..Setup::default()
        };
        let backend = || crate::cpu::backend(2, None);
        let make = || load_tiny(backend(), "llama-mqa-llama3", setup);
        let mut group = jobs(5, 97, 10);
        let prompt: Vec<u32> = (0..prompt_len).map(|i| i * 5 % 97).collect();
        for job in &mut group {
            job.prompt.clone_from(&prompt);
            job.prompt_logprobs = false;
        }
        let config = || roomy(16, setup.num_blocks, MAX_MODEL_LEN);
        let alone = Driver::new(make(), config()).run_alone(&group);
        let policies = Policies {
            max_in_flight,
            share_group_prompts: true,
            ..Policies::vllm()
        };
        let mut shared = Driver::with_policies(make(), config(), policies);
        let found = shared.run_group(&group);
        compare(&alone, &found, "with copies of their prompt's last block");
        assert_eq!(shared.num_copies, group.len() - 1);
    }
}
