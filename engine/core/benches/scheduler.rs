//! What a step costs, against the bounds in `e2e/bench/README.md`.
//!
//! Measures the time that the thread computes, so that other work on the machine shows less. `cargo bench -p kvasir-engine-core` runs all of it; the pools of ten million blocks take two gigabytes of memory.

use std::hint::black_box;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use kvasir_cache_key::{BlockHash, CacheRoot, block_hash};
use kvasir_engine_core::{
    Event, KvGroup, Micros, Policies, Request, Scheduler, SchedulerConfig, StepOutcome, StepPlan,
    StopConditions,
};
use sha2::{Digest, Sha256};

const BLOCK_SIZE: u32 = 16;
/// Inputs that a recording keeps here; few enough that old ones are computed again while the steps are measured.
const RECORDED_INPUTS: usize = 1000;
/// Fewest steps that are measured at a time: a sequence fills a quarter of a thousand blocks, and a recording's old inputs are computed again.
const DECODE_STEPS: u64 = 3900;

fn config(num_seqs: u32, num_blocks: u32) -> SchedulerConfig {
    SchedulerConfig {
        max_num_batched_tokens: 65_536,
        max_num_seqs: num_seqs,
        max_num_active_seqs: num_seqs,
        max_model_len: 1 << 20,
        block_size: BLOCK_SIZE,
        num_blocks,
        groups: vec![KvGroup::Full],
        enable_prefix_caching: true,
        long_prefill_token_threshold: 0,
        max_num_queued_reqs: 4096,
        max_num_queued_tokens: 1 << 40,
    }
}

fn request(first: u32, len: u32, max_tokens: u32) -> Request {
    Request {
        prompt: (first..first + len).collect(),
        stop: StopConditions {
            max_tokens,
            eos_token_ids: vec![u32::MAX - 1],
            ..StopConditions::default()
        },
        priority: 0,
        cache_root: CacheRoot([0; 32]),
        reads_prefix_cache: true,
    }
}

/// What this thread has computed so far.
fn cpu_time() -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is a valid place for the answer.
    #[expect(unsafe_code, reason = "the system's clock of a thread has no safe interface")]
    let status = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    assert_eq!(status, 0, "the system has a clock for threads");
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// A scheduler and the buffers of its caller.
struct Engine {
    scheduler: Scheduler,
    plan: StepPlan,
    outcome: StepOutcome,
    events: Vec<Event>,
    clock: u64,
}

impl Engine {
    fn new(config: SchedulerConfig) -> Self {
        Self {
            scheduler: Scheduler::with_policies(config, Policies::serve()).expect("the limits work"),
            plan: StepPlan::new(),
            outcome: StepOutcome::default(),
            events: Vec::new(),
            clock: 0,
        }
    }

    /// One step, and how long its `schedule` and `complete` took together. The model's part is not measured.
    fn step(&mut self) -> Option<Duration> {
        let events = &mut self.events;
        events.clear();
        self.clock += 1;
        let start = cpu_time();
        let started = self
            .scheduler
            .schedule(Micros(self.clock), &mut self.plan, events);
        let mut spent = cpu_time().saturating_sub(start);
        if !started {
            return None;
        }
        self.outcome.sampled.clear();
        let samples = self.plan.seqs.iter().filter(|part| part.samples);
        self.outcome.sampled.extend(samples.map(|part| (part.seq, 100)));
        let start = cpu_time();
        self.scheduler
            .complete(self.plan.step, &self.outcome, events)
            .expect("the outcome is the plan's");
        spent += cpu_time().saturating_sub(start);
        black_box(events);
        Some(spent)
    }
}

/// `schedule` and `complete` with everybody decoding; every 16th step of a sequence fills and hashes a block.
fn decode(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("decode_step");
    group.sample_size(20);
    for num_seqs in [256, 1024] {
        group.bench_function(BenchmarkId::from_parameter(num_seqs), |bencher| {
            bencher.iter_custom(|num_steps| decode_steps(num_seqs, 0, num_steps));
        });
    }
    for num_seqs in [256, 1024] {
        group.bench_function(BenchmarkId::new("recorded", num_seqs), |bencher| {
            bencher.iter_custom(|num_steps| decode_steps(num_seqs, RECORDED_INPUTS, num_steps));
        });
    }
    group.finish();
}

/// The time of `num_steps` steps of `num_seqs` decoding sequences, with the last `recorded` inputs of the scheduler kept.
fn decode_steps(num_seqs: u32, recorded: usize, num_steps: u64) -> Duration {
    let mut engine = Engine::new(config(num_seqs, 400_000));
    engine.scheduler.record(recorded);
    // Prompts of different lengths, so that blocks fill up in different steps, as they do in service.
    for i in 0..num_seqs {
        let prompt = request(10_000 * i, 33 + i % BLOCK_SIZE, DECODE_STEPS as u32 + 101);
        engine.scheduler.submit(Micros(0), prompt).expect("it fits");
    }
    while engine.scheduler.stats().num_waiting > 0 {
        engine.step();
    }
    let spent: Duration = (0..DECODE_STEPS)
        .map(|_| engine.step().expect("everybody decodes"))
        .sum();
    spent.mul_f64(num_steps as f64 / DECODE_STEPS as f64)
}

/// Admission of a prompt of 32,768 tokens whose blocks are all cached, without its hashing.
fn prefix_hit(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("admit_32k_cached");
    group.sample_size(10);
    for num_blocks in [100_000, 10_000_000] {
        group.bench_function(BenchmarkId::from_parameter(num_blocks), |bencher| {
            let mut engine = Engine::new(SchedulerConfig {
                max_num_active_seqs: 1,
                ..config(8, num_blocks)
            });
            bencher.iter_custom(|num_admissions| {
                let mut total = Duration::ZERO;
                for _ in 0..num_admissions {
                    total += admit_warm(&mut engine);
                }
                total
            });
        });
    }
    group.finish();
}

/// The difference between a step that admits the prompt and the hashing of the same prompt.
fn admit_warm(engine: &mut Engine) -> Duration {
    let len = 32_768;
    engine
        .scheduler
        .submit(Micros(0), request(7, len, 1))
        .expect("it fits");
    while engine.step().is_some() {}
    engine
        .scheduler
        .submit(Micros(0), request(7, len, 1))
        .expect("it fits");
    let spent = engine.step().expect("it is admitted");
    while engine.step().is_some() {}
    spent.saturating_sub(hashing(len))
}

fn hashing(len: u32) -> Duration {
    let tokens: Vec<u32> = (7..7 + len).collect();
    let start = cpu_time();
    let mut parent = CacheRoot([0; 32]).as_parent();
    for block in tokens.chunks_exact(BLOCK_SIZE as usize) {
        parent = block_hash(&parent, block);
    }
    black_box(parent);
    cpu_time().saturating_sub(start)
}

/// The chained keys of 32,768 tokens, and plain SHA-256 over the same token bytes and over as many bytes as the keys really hash.
fn hash(criterion: &mut Criterion) {
    let tokens: Vec<u32> = (0..32_768).collect();
    let bytes: Vec<u8> = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
    let mut group = criterion.benchmark_group("hash_32k");
    group.bench_function("plain_sha256", |bencher| {
        bencher.iter_custom(|rounds| timed(rounds, || Sha256::digest(black_box(&bytes))));
    });
    for block_size in [16_usize, 64, 256] {
        group.bench_function(BenchmarkId::new("block_keys", block_size), |bencher| {
            bencher.iter_custom(|rounds| {
                timed(rounds, || {
                    let chunks = black_box(&tokens).chunks_exact(block_size);
                    chunks.fold(BlockHash([0; 32]), |parent, block| block_hash(&parent, block))
                })
            });
        });
        let messages = vec![7; tokens.len() / block_size * (HEADER_BYTES + 4 * block_size)];
        group.bench_function(
            BenchmarkId::new("plain_sha256_of_messages", block_size),
            |bencher| {
                bencher.iter_custom(|rounds| timed(rounds, || Sha256::digest(black_box(&messages))));
            },
        );
    }
    group.finish();
}

/// Bytes in front of the tokens in what [`block_hash`] hashes.
const HEADER_BYTES: usize = 52;

fn timed<T>(rounds: u64, mut work: impl FnMut() -> T) -> Duration {
    let start = cpu_time();
    for _ in 0..rounds {
        black_box(work());
    }
    cpu_time().saturating_sub(start)
}

/// The longest step, with ten million blocks: sequences of a million tokens start from the cache, run and end.
fn longest_step(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("longest_step_10m_blocks");
    group.sample_size(10);
    group.bench_function("million_token_sequences_end", |bencher| {
        let mut engine = Engine::new(SchedulerConfig {
            max_num_batched_tokens: 16_384,
            ..config(8, 10_000_000)
        });
        bencher.iter_custom(|num_runs| {
            let mut total = Duration::ZERO;
            for run in 0..num_runs {
                for i in 0..2 {
                    let first = 1_000_000 * (2 * run as u32 + i);
                    engine
                        .scheduler
                        .submit(Micros(0), request(first, 1_000_000, 3))
                        .expect("it fits");
                }
                let mut longest = Duration::ZERO;
                while let Some(spent) = engine.step() {
                    longest = longest.max(spent);
                }
                total += longest;
            }
            total
        });
    });
    group.finish();
}

criterion_group!(benches, decode, prefix_hit, hash, longest_step);
criterion_main!(benches);
