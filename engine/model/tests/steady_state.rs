//! Decoding allocates nothing but the result that it hands out.
#![expect(unsafe_code, reason = "an allocator that counts can't be written without")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use kvasir_backend::{Executor, KvDType, NewSequence};
use kvasir_backend_cpu::{CpuBackend, CpuOptions};
use kvasir_engine_core::{BlockId, SeqId, SeqPlan, StepId, StepPlan};
use kvasir_model::{KvOptions, LoadOptions, Model, ModelConfig, load};
use kvasir_sampling::SamplingParams;
use kvasir_weights::Checkpoint;

struct Counting;

/// Of the threads that count.
static NUM_ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// The test's thread and the executor's count; the test harness allocates in its own whenever it likes.
    static COUNTS: Cell<bool> = const { Cell::new(false) };
}

fn count_one() {
    // A thread that ends has no switch any more, and nobody who cares.
    if COUNTS.try_with(Cell::get).unwrap_or(false) {
        NUM_ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
    }
}

// SAFETY: every call goes to the system's allocator unchanged; counting touches nothing else.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count_one();
        // SAFETY: the caller keeps `alloc`'s contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps `dealloc`'s contract, and the pointer came from the system's allocator.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count_one();
        // SAFETY: the caller keeps `realloc`'s contract, and the pointer came from the system's allocator.
        unsafe { System.realloc(pointer, layout, new_size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const NUM_SEQS: u64 = 4;
const BLOCKS_PER_SEQ: u32 = 8;

// Lints know helpers of tests by this attribute only.
#[cfg(test)]
fn model() -> Model {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../e2e/golden/models/gguf-q4_1-untied");
    let checkpoint = Checkpoint::open(&folder).unwrap();
    let config = ModelConfig::from_checkpoint(&checkpoint).unwrap();
    let kv = KvOptions {
        block_size: 16,
        num_blocks: 64,
        dtype: Some(KvDType::F16),
    };
    let options = LoadOptions {
        max_num_tokens: 64,
        max_model_len: 128,
        kv,
        progress: None,
    };
    // Everything runs in the executor's thread, which counts.
    let backend = CpuBackend::new(CpuOptions {
        threads: 1,
        isa: None,
    })
    .unwrap();
    load(backend, &checkpoint, config, options).unwrap()
}

/// Fills the plan with one token for each sequence, each at `position`.
fn plan_decode(plan: &mut StepPlan, position: u32) {
    plan.step = StepId(u64::from(position));
    plan.seqs.clear();
    plan.tokens.clear();
    plan.blocks.clear();
    for seq in 0..NUM_SEQS {
        let blocks_before = plan.blocks.len();
        if position == 0 {
            let first = 1 + seq as u32 * BLOCKS_PER_SEQ;
            plan.blocks.extend((first..first + BLOCKS_PER_SEQ).map(BlockId));
        }
        plan.tokens.push(5);
        plan.seqs.push(SeqPlan {
            seq: SeqId(seq),
            first_position: position,
            tokens: plan.tokens.len() - 1..plan.tokens.len(),
            blocks_from: if position == 0 { 0 } else { BLOCKS_PER_SEQ },
            blocks: blocks_before..plan.blocks.len(),
            samples: true,
            output_index: position,
        });
    }
}

#[test]
fn decoding_allocates_only_its_result() {
    let mut model = model();
    COUNTS.set(true);
    // The observer is called on the executor's thread.
    model.observe_logits(Some(Box::new(|_, _, _| COUNTS.set(true))));
    for seq in 0..NUM_SEQS {
        let temperature = if seq % 2 == 0 { 0.0 } else { 0.8 };
        let sampling = Arc::new(SamplingParams {
            temperature,
            top_p: 0.9,
            seed: seq,
            ..SamplingParams::default()
        });
        model.admit(NewSequence {
            seq: SeqId(seq),
            prompt: vec![5].into(),
            sampling,
            prompt_logprobs: None,
        });
    }
    let mut plan = StepPlan::new();
    // Lists of outputs double at powers of two, so the steps between 65 and 120 should see no growth at all.
    let mut in_steady_state = 0;
    for position in 0..120 {
        plan_decode(&mut plan, position);
        let before = NUM_ALLOCATIONS.load(Ordering::Relaxed);
        let ticket = model.submit(&plan).unwrap();
        let result = model.sample(ticket).unwrap();
        let allocations = NUM_ALLOCATIONS.load(Ordering::Relaxed) - before;
        assert_eq!(result.sampled.len(), NUM_SEQS as usize);
        if position > 65 {
            in_steady_state += allocations;
        }
    }
    // One list of sampled tokens per step.
    assert_eq!(in_steady_state, 120 - 66);
}
