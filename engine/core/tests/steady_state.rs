//! A step in steady state allocates nothing, and a replay no more than its recording is worth.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use kvasir_cache_key::CacheRoot;
use kvasir_engine_core::{
    BlockEventDetail, BlockEvents, Input, KvGroup, Micros, Policies, Request, RequestOptions, Scheduler,
    SchedulerConfig, StepOutcome, StepPlan, StopConditions,
};

thread_local! {
    static NUM_ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    static NUM_BYTES: Cell<usize> = const { Cell::new(0) };
}

/// The system's allocator, counting what each thread asks of it.
struct Counting;

// SAFETY: every call is passed on unchanged.
#[expect(unsafe_code, reason = "a global allocator is unsafe to write")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // A thread that is ending has no counter any more.
        NUM_ALLOCATIONS.try_with(|count| count.set(count.get() + 1)).ok();
        NUM_BYTES
            .try_with(|count| count.set(count.get() + layout.size()))
            .ok();
        // SAFETY: the caller keeps to `alloc`'s contract, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: `ptr` came from `System` with this layout.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const NUM_SEQS: u32 = 64;

fn scheduler(max_in_flight: u32, block_events: BlockEventDetail, groups: &[KvGroup]) -> Scheduler {
    let config = SchedulerConfig {
        max_num_batched_tokens: 4096,
        max_num_seqs: NUM_SEQS,
        max_num_active_seqs: NUM_SEQS,
        max_model_len: 4096,
        block_size: 16,
        num_blocks: 20_000,
        groups: groups.to_vec(),
        enable_prefix_caching: true,
        long_prefill_token_threshold: 0,
        max_num_queued_reqs: 1000,
        max_num_queued_tokens: 1_000_000,
    };
    let policies = Policies {
        max_in_flight,
        fair_share: true,
        block_events,
        ..Policies::serve()
    };
    let mut scheduler = Scheduler::with_policies(config, policies).expect("the limits work");
    for i in 0..NUM_SEQS {
        let request = Request {
            prompt: (1000 * i..1000 * i + 40).collect(),
            stop: StopConditions {
                max_tokens: 3000,
                eos_token_ids: vec![7],
                ..StopConditions::default()
            },
            priority: 0,
            cache_root: CacheRoot([0; 32]),
            reads_prefix_cache: true,
        };
        scheduler.submit(Micros(0), request).expect("it fits");
    }
    scheduler
}

/// Allocations of the second half of 600 steps.
fn allocations(max_in_flight: u32, block_events: BlockEventDetail, groups: &[KvGroup]) -> u64 {
    let mut scheduler = scheduler(max_in_flight, block_events, groups);
    let mut taken = BlockEvents::new();
    let mut plans: Vec<_> = (0..max_in_flight).map(|_| StepPlan::new()).collect();
    let (mut outcome, mut events) = (StepOutcome::default(), Vec::with_capacity(10_000));
    let mut before = 0;
    for step in 0..600 {
        if step == 300 {
            before = NUM_ALLOCATIONS.get();
        }
        events.clear();
        for plan in &mut plans {
            assert!(
                scheduler.schedule(Micros(step), plan, &mut events),
                "everybody decodes"
            );
        }
        for plan in &plans {
            outcome.sampled.clear();
            let samples = plan.seqs.iter().filter(|part| part.samples);
            outcome.sampled.extend(samples.map(|part| (part.seq, 100)));
            scheduler
                .complete(plan.step, &outcome, &mut events)
                .expect("the outcome is the plan's");
        }
        scheduler.take_block_events(&mut taken);
    }
    assert_eq!(scheduler.stats().num_running, NUM_SEQS);
    NUM_ALLOCATIONS.get() - before
}

#[test]
fn a_step_in_steady_state_allocates_nothing() {
    for max_in_flight in [1, 2] {
        let allocated = allocations(max_in_flight, BlockEventDetail::Off, &[KvGroup::Full]);
        assert_eq!(allocated, 0, "{max_in_flight} steps in flight");
    }
}

#[test]
fn block_events_with_tokens_allocate_nothing_in_steady_state() {
    assert_eq!(allocations(1, BlockEventDetail::Tokens, &[KvGroup::Full]), 0);
}

#[test]
fn a_step_with_several_kv_groups_allocates_nothing_in_steady_state() {
    let groups = [KvGroup::Full, KvGroup::Window { positions: 100 }];
    for max_in_flight in [1, 2] {
        let allocated = allocations(max_in_flight, BlockEventDetail::Off, &groups);
        assert_eq!(allocated, 0, "{max_in_flight} steps in flight");
    }
}

/// A short file may say that each of many sequences becomes very long.
#[test]
fn a_replay_reserves_nothing_for_what_its_sequences_might_become() {
    const NUM_SEQS: u32 = 200;
    let request = |token| Request {
        prompt: [token].into(),
        stop: StopConditions {
            max_tokens: 1 << 19,
            ..StopConditions::default()
        },
        priority: 0,
        cache_root: CacheRoot([0; 32]),
        reads_prefix_cache: true,
    };
    let now = Micros(0);
    let options = RequestOptions::default();
    let requests: Vec<Request> = (0..NUM_SEQS).map(request).collect();
    let mut recorded = Scheduler::new(SchedulerConfig::default()).expect("the limits work");
    recorded.record(10);
    let mut trace = recorded.trace().expect("it records");
    trace.config.max_model_len = 1 << 20;
    trace.config.num_blocks = 1 << 16;
    trace.config.max_num_seqs = NUM_SEQS;
    trace.config.max_num_active_seqs = NUM_SEQS;
    trace.inputs = vec![
        Input::Submit {
            now,
            requests,
            options,
        },
        Input::Schedule(now),
    ];
    trace.start = kvasir_engine_core::Image::default();
    let (before, mut num_started) = (NUM_BYTES.get(), 0);
    trace
        .replay(|plan, _| num_started += plan.seqs.len())
        .expect("it can be run");
    assert_eq!(num_started, NUM_SEQS as usize);
    // The pool's books take 100 bytes a block. Half a million tokens for each sequence would be 600 MB.
    let allocated = NUM_BYTES.get() - before;
    assert!(allocated < 32 << 20, "{allocated} bytes");
}
