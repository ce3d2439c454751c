//! Checks a plan against the contract before anything of it is carried out, so that a bad plan changes nothing.

use std::collections::BTreeMap;

use kvasir_backend::ExecError;
use kvasir_engine_core::{BlockCopy, BlockId, PENDING_TOKEN, SeqId, SeqPlan, StepPlan, TokenId};

use crate::sequence::Planned;

/// Scratch memory: the sequences of a plan, and where in the plan they are.
pub(crate) type Seen = Vec<(SeqId, usize)>;

/// What plans have to keep within.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Tokens of one step.
    pub(crate) max_num_tokens: usize,
    /// Positions of one sequence.
    pub(crate) max_model_len: usize,
    /// Token ids are below it.
    pub(crate) vocab_size: usize,
    /// Tokens per block.
    pub(crate) block_size: usize,
    /// Block ids are below it.
    pub(crate) num_blocks: usize,
}

/// Whether the plan keeps the contract. `seen` is scratch memory.
///
/// # Errors
/// The first violation.
pub(crate) fn validate(
    plan: &StepPlan,
    limits: &Limits,
    sequences: &BTreeMap<SeqId, Planned>,
    seen: &mut Seen,
) -> Result<(), ExecError> {
    let invalid = |reason: String| ExecError::InvalidPlan {
        step: plan.step,
        reason,
    };
    if plan.num_groups != 1 {
        return Err(invalid(format!(
            "it has block tables for {} KV groups, this executor has one",
            plan.num_groups
        )));
    }
    seen.clear();
    let mut num_tokens = 0_usize;
    for (index, seq) in plan.seqs.iter().enumerate() {
        let sequence = sequences
            .get(&seq.seq)
            .ok_or(ExecError::UnknownSequence(seq.seq))?;
        check_sequence(plan, seq, limits, sequence)
            .map_err(|reason| invalid(format!("sequence {}: {reason}", seq.seq.0)))?;
        num_tokens = num_tokens.saturating_add(seq.tokens.len());
        seen.push((seq.seq, index));
    }
    if num_tokens > limits.max_num_tokens {
        return Err(invalid(format!(
            "{num_tokens} tokens exceed the budget of {}",
            limits.max_num_tokens
        )));
    }
    seen.sort_unstable();
    if let Some(pair) = seen.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        return Err(invalid(format!("sequence {} appears twice", pair[0].0.0)));
    }
    for copy in &plan.copies {
        check_copy(plan, copy, limits, seen)
            .map_err(|reason| invalid(format!("the copy for sequence {}: {reason}", copy.seq.0)))?;
    }
    Ok(())
}

fn check_sequence(plan: &StepPlan, seq: &SeqPlan, limits: &Limits, sequence: &Planned) -> Result<(), String> {
    let tokens = plan
        .tokens
        .get(seq.tokens.clone())
        .ok_or("its tokens lie outside the plan")?;
    let blocks = plan
        .blocks
        .get(seq.blocks.clone())
        .ok_or("its blocks lie outside the plan")?;
    if tokens.is_empty() {
        return Err("it has no tokens".to_owned());
    }
    if !sequence.prompt_is_in_vocab {
        return Err(format!(
            "its prompt has tokens outside the vocabulary of {}",
            limits.vocab_size
        ));
    }
    check_tokens(seq, tokens, limits, sequence)?;
    // Both addends are far below the range of usize.
    let end = seq.first_position as usize + tokens.len();
    if end > limits.max_model_len {
        return Err(format!(
            "position {} exceeds the model length {}",
            end - 1,
            limits.max_model_len
        ));
    }
    check_blocks(seq, blocks, end, limits, sequence)?;
    if seq.samples {
        check_sample(seq, end, sequence)
    } else {
        Ok(())
    }
}

fn check_tokens(
    seq: &SeqPlan,
    tokens: &[TokenId],
    limits: &Limits,
    sequence: &Planned,
) -> Result<(), String> {
    for (position, &token) in (seq.first_position as usize..).zip(tokens) {
        if token == PENDING_TOKEN {
            if !sequence.is_being_sampled(position) {
                return Err(format!(
                    "the token at position {position} is to be taken from a step in flight, but none samples it"
                ));
            }
        } else if token as usize >= limits.vocab_size {
            return Err(format!(
                "token {token} is outside the vocabulary of {}",
                limits.vocab_size
            ));
        }
    }
    Ok(())
}

fn check_blocks(
    seq: &SeqPlan,
    blocks: &[BlockId],
    end: usize,
    limits: &Limits,
    sequence: &Planned,
) -> Result<(), String> {
    let kept = seq.blocks_from as usize;
    if kept > sequence.num_blocks {
        return Err(format!(
            "its block table is cut at {kept} but has {} entries",
            sequence.num_blocks
        ));
    }
    blocks.iter().try_for_each(|block| check_block(*block, limits))?;
    let room = (kept + blocks.len()).saturating_mul(limits.block_size);
    if room < end {
        return Err(format!(
            "its block table holds {room} positions, but {end} are needed"
        ));
    }
    Ok(())
}

/// The null block belongs to nobody, so nothing may be written to it or read from it.
fn check_block(block: BlockId, limits: &Limits) -> Result<(), String> {
    if (1..limits.num_blocks).contains(&(block.0 as usize)) {
        Ok(())
    } else {
        Err(format!(
            "block {} is not one of 1..{}",
            block.0, limits.num_blocks
        ))
    }
}

/// A copy fills a new block of its sequence up to the first position that the step computes.
fn check_copy(plan: &StepPlan, copy: &BlockCopy, limits: &Limits, seen: &Seen) -> Result<(), String> {
    if copy.group.0 != 0 {
        return Err(format!("KV group {} doesn't exist", copy.group.0));
    }
    check_block(copy.from, limits)?;
    let Ok(at) = seen.binary_search_by_key(&copy.seq, |(seq, _)| *seq) else {
        return Err("the sequence has no part in the step".to_owned());
    };
    let seq = &plan.seqs[seen[at].1];
    let new = &plan.blocks[seq.blocks.clone()];
    let Some(index) = new.iter().position(|block| *block == copy.to) else {
        return Err(format!("block {} is none of its new blocks", copy.to.0));
    };
    let num_positions = copy.num_positions as usize;
    if !(1..limits.block_size).contains(&num_positions) {
        let size = limits.block_size;
        return Err(format!("{num_positions} positions are not in 1..{size}"));
    }
    let end = (seq.blocks_from as usize + index) * limits.block_size + num_positions;
    if end != seq.first_position as usize {
        return Err(format!(
            "it ends before position {end}, and the step begins at {}",
            seq.first_position
        ));
    }
    Ok(())
}

fn check_sample(seq: &SeqPlan, end: usize, sequence: &Planned) -> Result<(), String> {
    let num_sampled = sequence.num_outputs;
    if seq.output_index as usize != num_sampled {
        return Err(format!(
            "output {} is asked for, but {num_sampled} tokens were sampled",
            seq.output_index
        ));
    }
    if end != sequence.prompt.len() + num_sampled {
        return Err(format!(
            "it samples after position {}, but its prompt of {} tokens and {num_sampled} outputs end elsewhere",
            end - 1,
            sequence.prompt.len()
        ));
    }
    Ok(())
}
