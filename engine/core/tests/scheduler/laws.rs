//! Laws that hold for any order of actions, checked after each of them by generation.
//!
//! Vocabulary, pools and budgets are tiny, so that prefixes are shared, blocks run out and chunks are cut all the time. The harness asserts
//! on the way that plans keep to the limits and that no position is read before it was written for this very sequence.

use kvasir_cache_key::CacheRoot;
use kvasir_engine_core::{
    AdapterId, BlockEventDetail, Deferral, Event, FinishReason, KvGroup, Micros, Order, PENDING_TOKEN,
    Policies, Request, RequestOptions, SchedulerConfig, SeqId, StopConditions, TenantId, Victim,
};
use proptest::prelude::*;

use crate::harness::{Engine, expected_output_with, roomy};

#[derive(Clone, Debug)]
pub(crate) enum Action {
    Submit(Request, RequestOptions),
    /// One of all sequences so far need no longer be deferred.
    Undefer(usize),
    SubmitGroup(Request, usize),
    /// Which of all sequences so far, modulo their number.
    Abort(usize),
    Start,
    Finish,
    Fail,
    Reset,
}

prop_compose! {
    fn request()(
        prompt in proptest::collection::vec(0_u32..2, 1..24),
        root in 0_u8..2,
        max_tokens in 1_u32..24,
        min_tokens in 0_u32..4,
        eos in 0_u32..64,
        stop in 0_u32..64,
        reads_prefix_cache in proptest::bool::weighted(0.9),
        priority in -1_i64..2,
    ) -> Request {
        let stop = StopConditions { max_tokens, min_tokens, eos_token_ids: vec![eos], stop_token_ids: vec![stop] };
        Request { prompt: prompt.into(), stop, priority, cache_root: CacheRoot([root; 32]), reads_prefix_cache }
    }
}

prop_compose! {
    fn options()(
        tenant in 0_u32..3,
        adapter in proptest::option::weighted(0.3, 0_u32..3),
        deadline in proptest::option::weighted(0.1, 0_u64..40),
        is_deferred in proptest::bool::weighted(0.1),
    ) -> RequestOptions {
        RequestOptions {
            tenant: TenantId(tenant),
            weight: tenant + 1,
            adapter: adapter.map(AdapterId),
            deadline: deadline.map(|step| Micros(1000 * step)),
            deferral: is_deferred.then_some(Deferral::StructuredOutput),
        }
    }
}

pub(crate) fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        4 => request().prop_map(|request| Action::Submit(request, RequestOptions::default())),
        2 => (request(), options()).prop_map(|(request, options)| Action::Submit(request, options)),
        1 => any::<usize>().prop_map(Action::Undefer),
        2 => (request(), 0_usize..4).prop_map(|(request, n)| Action::SubmitGroup(request, n)),
        1 => any::<usize>().prop_map(Action::Abort),
        14 => Just(Action::Start),
        16 => Just(Action::Finish),
        1 => Just(Action::Fail),
        1 => Just(Action::Reset),
    ]
}

/// Mostly the one group that most models have.
fn groups() -> impl Strategy<Value = Vec<KvGroup>> {
    let group = || prop_oneof![1 => Just(KvGroup::Full), 2 => (1_u32..12).prop_map(|positions| KvGroup::Window { positions })];
    prop_oneof![
        3 => Just(vec![KvGroup::Full]),
        2 => proptest::collection::vec(group(), 1..4),
    ]
}

prop_compose! {
    fn limits()(
        block_size in 1_u32..5,
        num_blocks in prop_oneof![1 => 2_u32..6, 4 => 6_u32..16],
        max_num_seqs in 1_u32..5,
        active in 1_u32..5,
        spare_budget in 0_u32..12,
        max_model_len in prop_oneof![1 => 2_u32..20, 4 => 30_u32..60],
        long_prefill_token_threshold in prop_oneof![Just(0_u32), 1_u32..6],
        enable_prefix_caching in proptest::bool::weighted(0.8),
        max_num_queued_reqs in 1_u32..16,
        max_num_queued_tokens in prop_oneof![1 => 1_u64..60, 4 => 60_u64..400],
        groups in groups(),
    ) -> SchedulerConfig {
        // Each group wants its share of the pool.
        let num_blocks = (num_blocks - 1) * groups.len() as u32 + 1;
        SchedulerConfig {
            max_num_batched_tokens: max_num_seqs + spare_budget,
            max_num_seqs,
            max_num_active_seqs: active.min(max_num_seqs),
            max_model_len,
            block_size,
            num_blocks,
            groups,
            enable_prefix_caching,
            long_prefill_token_threshold,
            max_num_queued_reqs,
            max_num_queued_tokens,
        }
    }
}

prop_compose! {
    /// Everything switched one way or the other; the limits are raised where the policies need it.
    fn any_policies()(
        max_in_flight in 1_u32..4,
        by_priority in any::<bool>(),
        by_cost in any::<bool>(),
        ageing_bound in proptest::option::of(0_u64..8),
        readmission_reserve in 0_u32..3,
        watermark in 0_u32..3,
        seats in any::<bool>(),
        fair_share in any::<bool>(),
        adaptive_prefill_threshold in any::<bool>(),
        max_num_scheduled_tokens in proptest::option::of(5_u32..12),
        draft_slots in 0_u32..3,
        max_active_adapters in proptest::option::of(1_u32..3),
        share_group_prompts in proptest::bool::weighted(0.8),
    ) -> Policies {
        Policies {
            max_in_flight,
            order: if by_priority { Order::Priority } else { Order::Arrival },
            victim: if by_cost { Victim::CheapestToRestore } else { Victim::Last },
            ageing_bound: ageing_bound.map(|steps| Micros(1000 * steps)),
            readmission_reserve,
            watermark,
            seat_preemption: by_priority && seats,
            fair_share,
            adaptive_prefill_threshold,
            max_num_scheduled_tokens,
            draft_slots,
            max_active_adapters,
            share_group_prompts,
            block_events: BlockEventDetail::Off,
        }
    }
}

fn policies() -> impl Strategy<Value = Policies> {
    prop_oneof![1 => Just(Policies::vllm()), 1 => Just(Policies::serve()), 4 => any_policies()]
}

/// Limits and policies that go together.
pub(crate) fn setup() -> impl Strategy<Value = (SchedulerConfig, Policies)> {
    (limits(), policies()).prop_map(|(mut config, policies)| {
        config.max_num_batched_tokens += config.max_num_seqs * policies.draft_slots;
        (config, policies)
    })
}

/// An engine under test, and what was asked of it.
pub(crate) struct World {
    pub(crate) engine: Engine,
    max_in_flight: usize,
    submitted: Vec<(SeqId, Request)>,
}

impl World {
    pub(crate) fn new((config, policies): (SchedulerConfig, Policies)) -> Self {
        Self {
            max_in_flight: policies.max_in_flight as usize,
            engine: Engine::with_policies(config, policies),
            submitted: Vec::new(),
        }
    }

    pub(crate) fn act(&mut self, action: Action) -> Result<(), TestCaseError> {
        let engine = &mut self.engine;
        match action {
            Action::Submit(request, mut options) => {
                options.deadline = options.deadline.map(|wait| Micros(engine.clock + wait.0));
                if let Ok(id) = engine.try_submit_with(&request, options) {
                    self.submitted.push((id, request));
                }
            }
            Action::Undefer(at) => {
                if let Some((id, _)) = self.submitted.get(at % self.submitted.len().max(1)) {
                    engine.scheduler.undefer(*id);
                }
            }
            Action::SubmitGroup(request, n) => {
                let waiting = engine.scheduler.stats().num_waiting;
                let ids = engine
                    .try_submit_group(&vec![request.clone(); n])
                    .unwrap_or_default();
                prop_assert!(ids.is_empty() || ids.len() == n, "a group was queued in part");
                prop_assert_eq!(engine.scheduler.stats().num_waiting, waiting + ids.len() as u32);
                self.submitted
                    .extend(ids.into_iter().map(|id| (id, request.clone())));
            }
            Action::Abort(at) => {
                if let Some((id, _)) = self.submitted.get(at % self.submitted.len().max(1)) {
                    engine.abort(*id);
                }
            }
            Action::Start => self.start()?,
            Action::Finish if engine.is_step_in_flight() => engine.finish(),
            Action::Fail if engine.is_step_in_flight() => engine.fail(),
            Action::Reset => {
                let was_idle = self.engine.num_used_blocks() == 0;
                prop_assert_eq!(self.engine.scheduler.reset_prefix_cache(), was_idle);
            }
            Action::Finish | Action::Fail => {}
        }
        prop_assert_eq!(self.engine.scheduler.check(), Ok(()));
        Ok(())
    }

    /// Nothing waits for ever: a step comes whenever there is a sequence that may run and no step in flight.
    fn start(&mut self) -> Result<(), TestCaseError> {
        let num_in_flight = self.engine.num_in_flight();
        let started = self.engine.start();
        let stats = self.engine.scheduler.stats();
        if num_in_flight == self.max_in_flight {
            prop_assert!(!started);
        } else if num_in_flight == 0 && stats.num_running + stats.num_waiting > stats.num_deferred {
            prop_assert!(started, "something could run and nothing does");
        }
        Ok(())
    }

    /// Runs to the end and looks at what came out.
    pub(crate) fn settle(mut self) -> Result<Engine, TestCaseError> {
        for (id, _) in &self.submitted {
            self.engine.scheduler.undefer(*id);
        }
        self.engine.run_ahead();
        for (id, request) in &self.submitted {
            let (expected, expected_reason) =
                expected_output_with(request, &self.engine.config, &self.engine.policies);
            let output = self.engine.output(*id);
            match self.engine.finish_reason(*id) {
                Some(FinishReason::Abort | FinishReason::Error | FinishReason::Deadline) => {
                    prop_assert!(expected.starts_with(&output));
                }
                reason => prop_assert_eq!((reason, output), (Some(expected_reason), expected)),
            }
        }
        prop_assert_eq!(
            self.engine.num_used_blocks(),
            0,
            "the pool is whole after all sequences ended"
        );
        let stats = self.engine.scheduler.stats();
        prop_assert_eq!(
            (stats.num_running, stats.num_waiting, stats.num_queued_tokens),
            (0, 0, 0)
        );
        Ok(self.engine)
    }
}

fn run(setup: (SchedulerConfig, Policies), actions: Vec<Action>) -> Result<Engine, TestCaseError> {
    let mut world = World::new(setup);
    for action in actions {
        world.act(action)?;
    }
    world.settle()
}

proptest! {
    #[test]
    fn any_order_of_actions_keeps_the_invariants_and_gives_every_sequence_its_output(
        setup in setup(),
        actions in proptest::collection::vec(action(), 0..100),
    ) {
        run(setup, actions)?;
    }

    #[test]
    fn equal_actions_give_equal_plans_and_events(
        setup in setup(),
        actions in proptest::collection::vec(action(), 0..60),
    ) {
        let (a, b) = (run(setup.clone(), actions.clone())?, run(setup, actions)?);
        prop_assert_eq!(a.plans, b.plans);
        prop_assert_eq!(a.events, b.events);
    }

    #[test]
    fn pool_chunks_cache_and_policies_never_show_in_the_output(
        requests in proptest::collection::vec(request(), 1..8),
        num_blocks in 13_u32..20,
        chunk in 1_u32..8,
        caching in any::<bool>(),
        policies in policies(),
    ) {
        // Limits by which no output is clipped: 46 tokens are the most, 49 fit.
        let tight = SchedulerConfig {
            block_size: 4,
            num_blocks,
            max_num_batched_tokens: chunk.max(4) + 4 * policies.draft_slots,
            max_num_seqs: 4,
            max_num_active_seqs: 4,
            enable_prefix_caching: caching,
            ..roomy()
        };
        let outputs = |config: SchedulerConfig, policies: Policies| {
            let mut engine = Engine::with_policies(config, policies);
            let ids: Vec<_> = requests.iter().map(|request| engine.submit(request.clone())).collect();
            engine.run_ahead();
            ids.iter().map(|&id| (engine.output(id), engine.finish_reason(id))).collect::<Vec<_>>()
        };
        prop_assert_eq!(outputs(tight, policies), outputs(roomy(), Policies::vllm()));
    }
}

/// The generator has to reach the interesting states, or the laws above hold for nothing.
#[test]
fn the_generated_runs_reach_every_interesting_state() {
    use proptest::strategy::ValueTree as _;
    use proptest::test_runner::TestRunner;

    let mut runner = TestRunner::new(ProptestConfig::default());
    let strategy = (setup(), proptest::collection::vec(action(), 0..100));
    let mut reached = [0_u32; 8];
    for _ in 0..2000 {
        let (setup, actions) = strategy.new_tree(&mut runner).expect("a case").current();
        let engine = run(setup, actions).expect("the laws hold");
        for (runs, is_reached) in reached.iter_mut().zip(interesting(&engine)) {
            *runs += u32::from(is_reached);
        }
        if reached.iter().all(|&runs| runs >= 5) {
            return;
        }
    }
    panic!("the generator reaches too little: {reached:?}");
}

/// Preempted, shared, cut into chunks, aborted, failed, late, copied, planned ahead of a token.
fn interesting(engine: &Engine) -> [bool; 8] {
    let stats = engine.scheduler.stats();
    let parts = || engine.plans.iter().flat_map(|plan| &plan.seqs);
    let ended = |wanted: FinishReason| {
        let is_end = |event: &Event| matches!(event, Event::Finished { reason, .. } if *reason == wanted);
        engine.events.iter().any(is_end)
    };
    [
        stats.num_preemptions > 0,
        stats.prefix_cache_hits > 0,
        parts().any(|seq| !seq.samples),
        ended(FinishReason::Abort),
        ended(FinishReason::Error),
        ended(FinishReason::Deadline),
        engine.plans.iter().any(|plan| !plan.copies.is_empty()),
        engine
            .plans
            .iter()
            .any(|plan| plan.tokens.contains(&PENDING_TOKEN)),
    ]
}
