//! Plans that break the contract and calls out of order: an error each, and the executor goes on.

use std::ops::Range;
use std::sync::Arc;

use kvasir_backend::{ExecError, Executor, NewSequence, Ticket};
use kvasir_engine_core::{
    BlockCopy, BlockId, GroupId, PENDING_TOKEN, SeqId, SeqPlan, StepId, StepPlan, TokenId,
};
use kvasir_model::Model;
use kvasir_sampling::SamplingParams;
use proptest::prelude::*;

use crate::driver::{Driver, roomy};
use crate::fidelity::run_golden;
use crate::fixture::{Golden, MAX_MODEL_LEN, Setup, load_tiny};
use crate::naive::{Naive, Sabotage};

const NAME: &str = "llama-mqa-llama3";

pub(crate) fn tiny() -> (Model, Sabotage) {
    let backend = Naive::default();
    let sabotage = backend.sabotage.clone();
    (
        load_tiny(
            backend,
            NAME,
            Setup {
                max_num_tokens: 100,
                num_blocks: 20,
                ..Setup::default()
            },
        ),
        sabotage,
    )
}

pub(crate) fn admit(model: &mut Model, seq: u64, prompt: &[u32]) {
    let sampling = SamplingParams {
        temperature: 0.0,
        logprobs: Some(2),
        ..SamplingParams::default()
    };
    let sampling = Arc::new(sampling);
    model.admit(NewSequence {
        seq: SeqId(seq),
        prompt: prompt.into(),
        sampling,
        prompt_logprobs: Some(1),
    });
}

/// A good plan for a sequence with the prompt 5, 6, 7.
pub(crate) fn good_plan(seq: u64) -> StepPlan {
    StepPlan {
        step: StepId(9),
        seqs: vec![SeqPlan {
            seq: SeqId(seq),
            first_position: 0,
            tokens: 0..3,
            blocks_from: 0,
            blocks: 0..1,
            samples: true,
            output_index: 0,
        }],
        tokens: vec![5, 6, 7],
        blocks: vec![BlockId(3)],
        ..StepPlan::new()
    }
}

/// A plan for one more token of a sequence that has `num_outputs` behind the prompt 5, 6, 7; the input token is the last of them.
pub(crate) fn next_plan(seq: u64, step: u64, num_outputs: u32, token: TokenId) -> StepPlan {
    StepPlan {
        step: StepId(step),
        seqs: vec![SeqPlan {
            seq: SeqId(seq),
            first_position: 2 + num_outputs,
            tokens: 0..1,
            blocks_from: 1,
            blocks: 0..0,
            samples: true,
            output_index: num_outputs,
        }],
        tokens: vec![token],
        ..StepPlan::new()
    }
}

/// The executor still computes the golden tokens.
pub(crate) fn assert_usable(model: Model) {
    let golden = Golden::of(NAME);
    let mut driver = Driver::new(model, roomy(16, 20, MAX_MODEL_LEN));
    assert_eq!(run_golden(&mut driver, &golden).tokens, golden.greedy);
}

fn refused(change: impl Fn(&mut StepPlan), reason: &str) {
    let (mut model, _) = tiny();
    admit(&mut model, 1, &[5, 6, 7]);
    let mut plan = good_plan(1);
    change(&mut plan);
    let error = model.submit(&plan).expect_err(reason);
    assert!(error.to_string().contains(reason), "{error}");
    // Nothing of it was carried out.
    let ticket = model.submit(&good_plan(1)).unwrap();
    assert_eq!(model.sample(ticket).unwrap().sampled.len(), 1);
}

#[test]
fn plan_of_unknown_sequence_is_refused() {
    let (mut model, _) = tiny();
    assert!(matches!(
        model.submit(&good_plan(4)),
        Err(ExecError::UnknownSequence(SeqId(4)))
    ));
    admit(&mut model, 4, &[5, 6, 7]);
    model.release(SeqId(4));
    assert!(matches!(
        model.submit(&good_plan(4)),
        Err(ExecError::UnknownSequence(SeqId(4)))
    ));
    model.release(SeqId(1000));
}

/// The sequence starts at position 18, behind a whole block and a copy of two positions.
fn copying_plan() -> StepPlan {
    StepPlan {
        step: StepId(9),
        seqs: vec![SeqPlan {
            seq: SeqId(1),
            first_position: 18,
            tokens: 0..1,
            blocks_from: 0,
            blocks: 0..2,
            samples: false,
            output_index: 0,
        }],
        tokens: vec![5],
        blocks: vec![BlockId(3), BlockId(4)],
        copies: vec![BlockCopy {
            seq: SeqId(1),
            group: GroupId(0),
            from: BlockId(7),
            to: BlockId(4),
            num_positions: 2,
        }],
        ..StepPlan::new()
    }
}

#[test]
fn copies_that_break_the_contract_are_refused() {
    let refused = |change: fn(&mut BlockCopy), reason: &str| {
        let (mut model, _) = tiny();
        admit(&mut model, 1, &[5; 30]);
        let mut plan = copying_plan();
        change(&mut plan.copies[0]);
        let error = model.submit(&plan).expect_err(reason);
        assert!(error.to_string().contains(reason), "{error}");
    };
    refused(|copy| copy.seq = SeqId(2), "the sequence has no part in the step");
    refused(|copy| copy.group = GroupId(1), "KV group 1 doesn't exist");
    refused(|copy| copy.from = BlockId(0), "block 0 is not one of 1..20");
    refused(|copy| copy.from = BlockId(20), "block 20 is not one of 1..20");
    refused(|copy| copy.to = BlockId(5), "block 5 is none of its new blocks");
    refused(|copy| copy.num_positions = 0, "0 positions are not in 1..16");
    refused(|copy| copy.num_positions = 16, "16 positions are not in 1..16");
    refused(
        |copy| copy.num_positions = 3,
        "it ends before position 19, and the step begins at 18",
    );
    refused(
        |copy| copy.to = BlockId(3),
        "it ends before position 2, and the step begins at 18",
    );
    let (mut model, _) = tiny();
    admit(&mut model, 1, &[5; 30]);
    let ticket = model.submit(&copying_plan()).unwrap();
    model.sample(ticket).unwrap();
}

#[test]
fn plan_with_several_kv_groups_is_refused() {
    for num_groups in [0, 2, u32::MAX] {
        refused(
            |plan| plan.num_groups = num_groups,
            "KV groups, this executor has one",
        );
    }
}

#[test]
fn plans_that_break_the_contract_are_refused() {
    refused(
        |plan| plan.tokens[1] = 97,
        "token 97 is outside the vocabulary of 97",
    );
    refused(
        |plan| plan.tokens[1] = PENDING_TOKEN,
        "the token at position 1 is to be taken from a step in flight, but none samples it",
    );
    refused(
        |plan| plan.seqs[0].tokens = 0..4,
        "its tokens lie outside the plan",
    );
    refused(
        |plan| plan.seqs[0].blocks = 0..2,
        "its blocks lie outside the plan",
    );
    refused(|plan| plan.seqs[0].tokens = 1..1, "it has no tokens");
    refused(
        |plan| plan.seqs[0].blocks_from = 1,
        "its block table is cut at 1 but has 0 entries",
    );
    refused(
        |plan| plan.seqs[0].blocks = 0..0,
        "its block table holds 0 positions, but 3 are needed",
    );
    refused(
        |plan| plan.seqs[0].first_position = 14,
        "its block table holds 16 positions, but 17 are needed",
    );
    refused(
        |plan| plan.seqs[0].first_position = u32::MAX,
        "exceeds the model length 128",
    );
    refused(|plan| plan.blocks[0] = BlockId(0), "block 0 is not one of 1..20");
    refused(
        |plan| plan.blocks[0] = BlockId(20),
        "block 20 is not one of 1..20",
    );
    refused(
        |plan| plan.seqs[0].output_index = 1,
        "output 1 is asked for, but 0 tokens were sampled",
    );
    refused(|plan| plan.seqs[0].tokens = 0..2, "it samples after position 1");
    refused(
        |plan| plan.seqs.push(plan.seqs[0].clone()),
        "sequence 1 appears twice",
    );
    refused(
        |plan| {
            plan.tokens = vec![1; 101];
            plan.blocks = (1..8).map(BlockId).collect();
            plan.seqs[0] = SeqPlan {
                tokens: 0..101,
                blocks: 0..7,
                samples: false,
                ..plan.seqs[0].clone()
            };
        },
        "101 tokens exceed the budget of 100",
    );
}

#[test]
#[expect(clippy::reversed_empty_ranges, reason = "a plan from outside may hold one")]
fn reversed_ranges_are_refused() {
    refused(
        |plan| plan.seqs[0].tokens = 3..1,
        "its tokens lie outside the plan",
    );
    refused(
        |plan| plan.seqs[0].blocks = 1..0,
        "its blocks lie outside the plan",
    );
}

#[test]
fn first_position_beyond_the_model_length_is_refused() {
    refused(
        |plan| {
            plan.blocks = (1..10).map(BlockId).collect();
            plan.seqs[0].blocks = 0..9;
            plan.seqs[0].first_position = 126;
        },
        "position 128 exceeds the model length 128",
    );
}

#[test]
fn prompt_outside_the_vocabulary_is_refused() {
    let (mut model, _) = tiny();
    admit(&mut model, 1, &[5, 6, 97]);
    let error = model.submit(&good_plan(1)).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("prompt has tokens outside the vocabulary"),
        "{error}"
    );
}

#[test]
fn tickets_are_taken_once_and_in_order() {
    let (mut model, _) = tiny();
    admit(&mut model, 1, &[5, 6, 7]);
    assert!(model.sample(Ticket(StepId(9))).is_err());
    let ticket = model.submit(&good_plan(1)).unwrap();
    let again = model.submit(&good_plan(1)).unwrap_err().to_string();
    assert!(again.contains("it is in flight already"), "{again}");
    assert!(model.warmup(4).is_err());
    assert!(model.sample(Ticket(StepId(8))).is_err());
    assert_eq!(model.sample(ticket).unwrap().sampled.len(), 1);
    assert!(model.sample(Ticket(StepId(9))).is_err());
}

#[test]
fn sequence_released_in_flight_still_gives_its_token() {
    let (mut model, _) = tiny();
    admit(&mut model, 1, &[5, 6, 7]);
    let ticket = model.submit(&good_plan(1)).unwrap();
    model.release(SeqId(1));
    assert_eq!(model.sample(ticket).unwrap().sampled.len(), 1);
    assert!(matches!(
        model.submit(&good_plan(1)),
        Err(ExecError::UnknownSequence(_))
    ));
}

#[test]
fn empty_plan_gives_nothing() {
    let (mut model, _) = tiny();
    let ticket = model.submit(&StepPlan::new()).unwrap();
    assert!(model.sample(ticket).unwrap().sampled.is_empty());
}

#[test]
fn no_more_steps_are_taken_than_may_be_in_flight() {
    let (mut model, _) = tiny();
    assert_eq!(model.max_in_flight(), 2);
    admit(&mut model, 1, &[5, 6, 7]);
    let first = model.submit(&good_plan(1)).unwrap();
    let second = model.submit(&next_plan(1, 10, 1, PENDING_TOKEN)).unwrap();
    let error = model.submit(&next_plan(1, 11, 2, PENDING_TOKEN)).unwrap_err();
    assert!(error.to_string().contains("2 steps are in flight"), "{error}");
    assert!(
        model.sample(Ticket(StepId(10))).is_err(),
        "the oldest comes first"
    );
    model.sample(first).unwrap();
    let third = model.submit(&next_plan(1, 11, 2, PENDING_TOKEN)).unwrap();
    assert_eq!(model.sample(second).unwrap().sampled.len(), 1);
    assert_eq!(model.sample(third).unwrap().sampled.len(), 1);
}

#[test]
fn a_token_is_pending_only_until_its_step_was_sampled() {
    let (mut model, _) = tiny();
    admit(&mut model, 1, &[5, 6, 7]);
    let ticket = model.submit(&good_plan(1)).unwrap();
    let early = model.submit(&next_plan(1, 10, 2, PENDING_TOKEN)).unwrap_err();
    assert!(early.to_string().contains("position 4"), "{early}");
    model.sample(ticket).unwrap();
    let late = model.submit(&next_plan(1, 10, 1, PENDING_TOKEN)).unwrap_err();
    assert!(late.to_string().contains("position 3"), "{late}");
}

#[test]
fn warmup_leaves_no_trace() {
    let (mut model, _) = tiny();
    model.warmup(0).unwrap();
    model.warmup(usize::MAX).unwrap();
    assert_usable(model);
}

fn range(limit: usize) -> impl Strategy<Value = Range<usize>> {
    (0..=limit, 0..=limit).prop_map(|(start, end)| start..end)
}

fn seq_plan() -> impl Strategy<Value = SeqPlan> {
    let position = prop_oneof![0..20_u32, 100..140_u32, Just(u32::MAX)];
    let table = prop_oneof![0..4_u32, Just(u32::MAX)];
    (
        0..4_u64,
        position,
        range(12),
        table,
        range(6),
        any::<bool>(),
        0..3_u32,
    )
        .prop_map(
            |(seq, first_position, tokens, blocks_from, blocks, samples, output_index)| SeqPlan {
                seq: SeqId(seq),
                first_position,
                tokens,
                blocks_from,
                blocks,
                samples,
                output_index,
            },
        )
}

fn block_copy() -> impl Strategy<Value = BlockCopy> {
    (0..4_u64, 1..21_u32, 1..21_u32, 0..18_u32).prop_map(|(seq, from, to, num_positions)| BlockCopy {
        seq: SeqId(seq),
        group: GroupId(0),
        from: BlockId(from),
        to: BlockId(to),
        num_positions,
    })
}

fn any_plan() -> impl Strategy<Value = StepPlan> {
    let token = prop_oneof![8 => 0..97_u32, 1 => any::<u32>(), 2 => Just(PENDING_TOKEN)];
    let block = prop_oneof![8 => 1..20_u32, 1 => any::<u32>()].prop_map(BlockId);
    (
        0..3_u64,
        prop::collection::vec(seq_plan(), 0..4),
        prop::collection::vec(token, 0..12),
        prop::collection::vec(block, 0..6),
        prop::collection::vec(block_copy(), 0..2),
    )
        .prop_map(|(step, seqs, tokens, blocks, copies)| StepPlan {
            step: StepId(step),
            seqs,
            tokens,
            blocks,
            copies,
            ..StepPlan::new()
        })
}

#[derive(Clone, Debug)]
enum Action {
    Admit(u64, Vec<u32>),
    Release(u64),
    Submit(StepPlan),
    Sample(u64),
}

fn action() -> impl Strategy<Value = Action> {
    let prompt = prop::collection::vec(prop_oneof![9 => 0..97_u32, 1 => any::<u32>()], 0..6);
    prop_oneof![
        1 => (0..4_u64, prompt).prop_map(|(seq, prompt)| Action::Admit(seq, prompt)),
        1 => (0..4_u64).prop_map(Action::Release),
        6 => any_plan().prop_map(Action::Submit),
        2 => (0..3_u64).prop_map(Action::Sample),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_sequence_of_calls_panics_or_breaks_the_executor(actions in prop::collection::vec(action(), 0..60)) {
        let (mut model, _) = tiny();
        (0..4).for_each(|seq| admit(&mut model, seq, &[5, 6, 7]));
        for action in actions {
            match action {
                Action::Admit(seq, prompt) => admit(&mut model, seq, &prompt),
                Action::Release(seq) => model.release(SeqId(seq)),
                // A result or an error; what matters is that there is one.
                Action::Submit(plan) => drop(model.submit(&plan)),
                Action::Sample(step) => drop(model.sample(Ticket(StepId(step)))),
            }
        }
        // Twice, since the oldest may be any of them.
        (0..6).for_each(|step| drop(model.sample(Ticket(StepId(step % 3)))));
        (0..4).for_each(|seq| model.release(SeqId(seq)));
        assert_usable(model);
    }
}
