//! Sequences of one request that share their prompt's blocks. The harness makes the copies and checks every read.

use kvasir_engine_core::{Policies, Request, SchedulerConfig, SeqId};

use crate::harness::{Engine, expected_output, request, roomy};

fn sharing(caching: bool) -> Engine {
    let config = SchedulerConfig {
        enable_prefix_caching: caching,
        ..roomy()
    };
    let policies = Policies {
        share_group_prompts: true,
        ..Policies::vllm()
    };
    Engine::with_policies(config, policies)
}

fn group(engine: &mut Engine, request: &Request, n: usize) -> Vec<SeqId> {
    engine
        .try_submit_group(&vec![request.clone(); n])
        .expect("the group is taken")
}

#[test]
fn children_share_whole_blocks_and_copy_the_last_one() {
    for caching in [false, true] {
        let mut engine = sharing(caching);
        let prompt = request(0..11, 3);
        let ids = group(&mut engine, &prompt, 3);
        engine.step();
        assert_eq!(
            engine.shares(),
            [(ids[0], 11)],
            "the others wait for the first one"
        );
        engine.step();
        assert_eq!(engine.shares(), [(ids[0], 1), (ids[1], 1), (ids[2], 1)]);
        let tables: Vec<_> = ids.iter().map(|&id| engine.table(id)).collect();
        assert_eq!(tables[0][..2], tables[1][..2]);
        assert_ne!(tables[0][2], tables[1][2]);
        let copies: Vec<_> = engine
            .plan
            .copies
            .iter()
            .map(|copy| (copy.seq, copy.from, copy.to, copy.num_positions))
            .collect();
        assert_eq!(
            copies,
            [
                (ids[1], tables[0][2], tables[1][2], 2),
                (ids[2], tables[0][2], tables[2][2], 2)
            ]
        );
        assert_eq!(engine.num_used_blocks(), 2 + 3);
        engine.run();
        let (output, _) = expected_output(&prompt, &engine.config);
        assert!(ids.iter().all(|&id| engine.output(id) == output));
        assert_eq!(engine.num_used_blocks(), 0);
    }
}

#[test]
fn a_prompt_that_ends_in_front_of_a_blocks_start_needs_no_copy() {
    let mut engine = sharing(false);
    let ids = group(&mut engine, &request(0..9, 2), 2);
    engine.step();
    engine.step();
    assert!(engine.plan.copies.is_empty());
    assert_eq!(engine.table(ids[0])[..2], engine.table(ids[1])[..2]);
    engine.run();
}

#[test]
fn children_start_by_themselves_when_their_leader_is_gone() {
    let mut engine = sharing(false);
    let ids = group(&mut engine, &request(0..11, 3), 2);
    assert!(engine.start());
    engine.abort(ids[0]);
    engine.finish();
    engine.run();
    assert_eq!(engine.output(ids[1]).len(), 3);
}

#[test]
fn the_source_of_a_copy_is_not_reused_before_the_copy_is_made() {
    let mut engine = sharing(false);
    let ids = group(&mut engine, &request(0..11, 3), 2);
    engine.step();
    assert!(engine.start());
    assert_eq!(engine.plan.copies.len(), 1);
    engine.abort(ids[0]);
    engine.check();
    assert_eq!(
        engine.num_used_blocks(),
        4,
        "the step in flight still reads the leader's last block"
    );
    engine.finish();
    engine.check();
    assert_eq!(engine.num_used_blocks(), 3);
    engine.run();
    assert_eq!(engine.output(ids[1]).len(), 3);
}

#[test]
fn other_prompts_and_identities_in_a_group_share_nothing() {
    let mut engine = sharing(false);
    let mut other_root = request(0..11, 1);
    other_root.cache_root = kvasir_cache_key::CacheRoot([7; 32]);
    let requests = [request(0..11, 1), request(1..12, 1), other_root];
    engine.try_submit_group(&requests).expect("the group is taken");
    engine.step();
    assert_eq!(engine.plan.num_tokens(), 33);
}
