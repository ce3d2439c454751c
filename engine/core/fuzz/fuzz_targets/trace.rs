//! Whatever the bytes, the decoder of recordings returns; what it takes is written as the same bytes again; and a recording of any content
//! runs to its end or is refused.
//!
//! `cargo +nightly fuzz run trace -- -max_len=4096`

#![no_main]

use std::sync::LazyLock;

use kvasir_cache_key::CacheIdentity;
use kvasir_engine_core::{
    KvGroup, Micros, Policies, Request, RequestOptions, Scheduler, SchedulerConfig, StepOutcome, StepPlan,
    StopConditions, Trace,
};
use libfuzzer_sys::fuzz_target;

/// Length of the words that a recording begins with.
const MAGIC_BYTES: usize = 16;

/// What may be run again here, so that one input takes neither long nor much memory.
const MAX_REPLAYED: u32 = 4096;

/// Recordings of a short run, taken at several moments.
static RECORDINGS: LazyLock<Vec<Vec<u8>>> = LazyLock::new(record);

fuzz_target!(|bytes: &[u8]| {
    let magic = &RECORDINGS[0][..MAGIC_BYTES];
    check(&[magic, bytes].concat());
    let Some((which, patches)) = bytes.split_first() else {
        return;
    };
    let mut patched = RECORDINGS[usize::from(*which) % RECORDINGS.len()].clone();
    for patch in patches.chunks_exact(3) {
        let place = usize::from(u16::from_le_bytes([patch[0], patch[1]])) % patched.len();
        patched[place] = patch[2];
    }
    check(&patched);
});

fn check(bytes: &[u8]) {
    let Ok(trace) = Trace::from_bytes(bytes) else { return };
    assert_eq!(trace.to_bytes(), bytes, "two encodings of one recording");
    let SchedulerConfig {
        num_blocks,
        block_size,
        max_num_seqs,
        max_num_batched_tokens,
        max_model_len,
        ..
    } = trace.config;
    let sizes = [num_blocks, block_size, max_num_seqs, max_num_batched_tokens, max_model_len];
    if sizes.iter().all(|size| *size <= MAX_REPLAYED) {
        let mut num_bytes = 0;
        // A refusal says why; it isn't a fault.
        let _ = trace.replay(|plan, _| num_bytes += plan.to_string().len());
    }
}

fn record() -> Vec<Vec<u8>> {
    let config = SchedulerConfig {
        max_num_batched_tokens: 24,
        max_num_seqs: 4,
        max_num_active_seqs: 4,
        max_model_len: 64,
        block_size: 4,
        num_blocks: 20,
        groups: vec![KvGroup::Full],
        enable_prefix_caching: true,
        ..SchedulerConfig::default()
    };
    let mut scheduler = Scheduler::with_policies(config, Policies::serve()).expect("the limits can work");
    scheduler.record(12);
    let mut recordings = Vec::new();
    let (mut plan, mut events) = (StepPlan::new(), Vec::new());
    for step in 0..20_u32 {
        let now = Micros(u64::from(step) * 1000);
        let request = Request {
            prompt: (0..10 + step % 7).map(|token| token * (step % 3)).collect(),
            stop: StopConditions {
                max_tokens: 3 + step % 5,
                ..StopConditions::default()
            },
            priority: 0,
            cache_root: CacheIdentity::default().root(),
            reads_prefix_cache: true,
        };
        drop(scheduler.submit_with(now, request, RequestOptions::default()));
        if scheduler.schedule(now, &mut plan, &mut events) {
            let samples = plan.seqs.iter().filter(|part| part.samples);
            let outcome = StepOutcome {
                sampled: samples.map(|part| (part.seq, step)).collect(),
            };
            drop(scheduler.complete(plan.step, &outcome, &mut events));
        }
        recordings.extend(scheduler.trace().map(|trace| trace.to_bytes()));
    }
    recordings
}
