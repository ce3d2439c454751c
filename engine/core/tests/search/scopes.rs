//! The scopes: each makes one group of rules meet every order of actions.

use kvasir_engine_core::{
    AdapterId, Deferral, KvGroup, Micros, Order, Policies, RequestOptions, SchedulerConfig, TenantId, Victim,
};

use crate::explore::explore;
use crate::world::{Scope, request};

/// Three usable blocks of two tokens, and a budget that cuts prompts.
fn limits() -> SchedulerConfig {
    SchedulerConfig {
        max_num_batched_tokens: 3,
        max_num_seqs: 3,
        max_num_active_seqs: 3,
        max_model_len: 16,
        block_size: 2,
        num_blocks: 4,
        groups: vec![KvGroup::Full],
        enable_prefix_caching: true,
        long_prefill_token_threshold: 0,
        max_num_queued_reqs: 8,
        max_num_queued_tokens: 100,
    }
}

/// Three requests, two of which share a block of their prompts.
fn base(name: &'static str) -> Scope {
    let none = RequestOptions::default();
    Scope {
        name,
        config: limits(),
        policies: Policies::vllm(),
        requests: vec![
            (vec![request(&[0, 1, 0], 3, 1)], none),
            (vec![request(&[0, 1, 1], 3, 0)], none),
            (vec![request(&[1], 4, 0)], none),
        ],
        may_abort: false,
        may_fail: false,
        may_end: false,
        num_ticks: 0,
    }
}

/// Nothing but the order of arrival, ever more steps in flight.
fn plain_scopes() -> Vec<Scope> {
    let mut all = Vec::new();
    all.push(Scope {
        may_abort: true,
        may_fail: true,
        may_end: true,
        ..base("arrival order, one step in flight")
    });
    let mut two = base("arrival order, two steps in flight");
    two.policies.max_in_flight = 2;
    (two.may_abort, two.may_fail, two.may_end) = (true, true, true);
    all.push(two);
    let mut three = base("three steps in flight without a cache");
    three.policies.max_in_flight = 3;
    three.config.enable_prefix_caching = false;
    (three.may_abort, three.may_end) = (true, true);
    all.push(three);
    all
}

/// What displaces, passes or weighs sequences.
fn policy_scopes() -> Vec<Scope> {
    let mut all = Vec::new();
    let mut priority = base("classes that displace each other, two steps in flight");
    priority.policies = Policies {
        max_in_flight: 2,
        order: Order::Priority,
        seat_preemption: true,
        ..Policies::vllm()
    };
    priority.config.max_num_active_seqs = 2;
    (priority.may_abort, priority.may_end) = (true, true);
    all.push(priority);
    let mut ageing = base("ageing bound and reserve");
    ageing.policies = Policies {
        max_in_flight: 2,
        ageing_bound: Some(Micros(2)),
        readmission_reserve: 1,
        ..Policies::vllm()
    };
    ageing.requests[0].0[0] = request(&[0, 1, 0, 1, 1], 2, 0);
    ageing.num_ticks = 3;
    ageing.may_abort = true;
    all.push(ageing);
    let mut fair = base("fair shares, the cheapest gives way");
    fair.policies = Policies {
        max_in_flight: 2,
        victim: Victim::CheapestToRestore,
        fair_share: true,
        ..Policies::vllm()
    };
    for (tenant, (_, options)) in (0..).zip(&mut fair.requests) {
        options.tenant = TenantId(tenant % 2);
        options.weight = tenant % 2 + 1;
    }
    (fair.may_abort, fair.may_end) = (true, true);
    all.push(fair);
    all
}

/// What sequences carry beside their prompts.
fn option_scopes() -> Vec<Scope> {
    let none = RequestOptions::default();
    let mut all = Vec::new();
    let mut group = base("a group shares its prompt beside another sequence");
    group.policies = Policies {
        max_in_flight: 2,
        share_group_prompts: true,
        ..Policies::vllm()
    };
    group.config.num_blocks = 6;
    group.config.block_size = 3;
    group.config.max_num_batched_tokens = 4;
    group.requests = vec![
        (
            vec![request(&[0, 1, 0, 0, 1], 3, 0), request(&[0, 1, 0, 0, 1], 2, 0)],
            none,
        ),
        (vec![request(&[1, 1], 4, 0)], none),
    ];
    (group.may_abort, group.may_fail, group.may_end) = (true, true, true);
    all.push(group);
    let mut late = base("deadlines, adapters and deferred sequences");
    late.policies = Policies {
        max_in_flight: 2,
        max_active_adapters: Some(1),
        ..Policies::vllm()
    };
    late.num_ticks = 3;
    late.requests[0].1.deadline = Some(Micros(2));
    late.requests[0].1.adapter = Some(AdapterId(1));
    late.requests[1].1.adapter = Some(AdapterId(2));
    late.requests[2].1.deferral = Some(Deferral::StructuredOutput);
    all.push(late);
    all
}

/// Layers that need different blocks.
fn kv_group_scopes() -> Vec<Scope> {
    let window = |positions| KvGroup::Window { positions };
    let mut all = Vec::new();
    let mut sliding = base("a group with a window, two steps in flight");
    sliding.policies.max_in_flight = 2;
    // A chunk and its window fill the pool: what comes behind them waits for the step in flight to leave blocks behind.
    sliding.config.groups = vec![window(2)];
    sliding.config.block_size = 1;
    sliding.config.num_blocks = 5;
    sliding.requests[0].0[0] = request(&[0, 1, 0, 0, 1], 2, 1);
    (sliding.may_abort, sliding.may_fail, sliding.may_end) = (true, true, true);
    all.push(sliding);
    let mut mixed = base("full attention beside a window");
    mixed.config.groups = vec![KvGroup::Full, window(2)];
    mixed.config.num_blocks = 7;
    mixed.policies.max_in_flight = 2;
    (mixed.may_abort, mixed.may_end) = (true, true);
    all.push(mixed);
    let mut windows = base("two windows, a request that shares its prompt, reserve and ageing");
    windows.config.groups = vec![window(1), window(4)];
    windows.config.num_blocks = 7;
    windows.config.max_num_batched_tokens = 4;
    windows.policies = Policies {
        max_in_flight: 2,
        share_group_prompts: true,
        readmission_reserve: 1,
        ageing_bound: Some(Micros(1)),
        ..Policies::vllm()
    };
    windows.requests[0].0 = vec![request(&[0, 1, 0, 1], 3, 0), request(&[0, 1, 0, 1], 2, 0)];
    windows.requests.pop();
    windows.num_ticks = 2;
    (windows.may_abort, windows.may_fail, windows.may_end) = (true, true, true);
    all.push(windows);
    all
}

/// States that all scopes have together, at least.
const MIN_STATES: usize = 250_000;

#[test]
fn every_order_of_actions_keeps_the_laws_and_ends() {
    let mut num_states = 0;
    for scope in [
        plain_scopes(),
        policy_scopes(),
        option_scopes(),
        kv_group_scopes(),
    ]
    .concat()
    {
        let report = explore(&scope);
        assert!(
            report.num_transitions > report.num_states,
            "{}: {report:?}",
            scope.name
        );
        num_states += report.num_states;
    }
    assert!(num_states >= MIN_STATES, "only {num_states} states");
}
