//! Checks a plan against the contract before anything of it is carried out, so that a bad plan changes nothing.

use kvasir_backend::ExecError;
use kvasir_engine_core::{BlockId, PENDING_TOKEN, SeqId, SeqPlan, StepPlan};

use crate::sequence::{Sequence, Sequences};

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
    sequences: &Sequences,
    seen: &mut Vec<SeqId>,
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
    if !plan.copies.is_empty() {
        return Err(invalid(
            "it copies blocks, which this executor doesn't".to_owned(),
        ));
    }
    seen.clear();
    let mut num_tokens = 0_usize;
    for seq in &plan.seqs {
        let sequence = sequences.get(&seq.seq).filter(|sequence| !sequence.is_released);
        let sequence = sequence.ok_or(ExecError::UnknownSequence(seq.seq))?;
        check_sequence(plan, seq, limits, sequence)
            .map_err(|reason| invalid(format!("sequence {}: {reason}", seq.seq.0)))?;
        num_tokens = num_tokens.saturating_add(seq.tokens.len());
        seen.push(seq.seq);
    }
    if num_tokens > limits.max_num_tokens {
        return Err(invalid(format!(
            "{num_tokens} tokens exceed the budget of {}",
            limits.max_num_tokens
        )));
    }
    seen.sort_unstable();
    match seen.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(invalid(format!("sequence {} appears twice", pair[0].0))),
        None => Ok(()),
    }
}

fn check_sequence(
    plan: &StepPlan,
    seq: &SeqPlan,
    limits: &Limits,
    sequence: &Sequence,
) -> Result<(), String> {
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
    if tokens.contains(&PENDING_TOKEN) {
        return Err("a token is still being sampled, but only one step can be in flight".to_owned());
    }
    if let Some(token) = tokens.iter().find(|token| **token as usize >= limits.vocab_size) {
        return Err(format!(
            "token {token} is outside the vocabulary of {}",
            limits.vocab_size
        ));
    }
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

fn check_blocks(
    seq: &SeqPlan,
    blocks: &[BlockId],
    end: usize,
    limits: &Limits,
    sequence: &Sequence,
) -> Result<(), String> {
    let kept = seq.blocks_from as usize;
    if kept > sequence.blocks.len() {
        return Err(format!(
            "its block table is cut at {kept} but has {} entries",
            sequence.blocks.len()
        ));
    }
    // The null block belongs to nobody, so nothing may be written to it or read from it.
    if let Some(block) = blocks
        .iter()
        .find(|block| block.0 == 0 || block.0 as usize >= limits.num_blocks)
    {
        return Err(format!(
            "block {} is not one of 1..{}",
            block.0, limits.num_blocks
        ));
    }
    let room = (kept + blocks.len()).saturating_mul(limits.block_size);
    if room < end {
        return Err(format!(
            "its block table holds {room} positions, but {end} are needed"
        ));
    }
    Ok(())
}

fn check_sample(seq: &SeqPlan, end: usize, sequence: &Sequence) -> Result<(), String> {
    let num_sampled = sequence.sampler.num_sampled();
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
