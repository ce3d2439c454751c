//! Runs steps on one device, one after the other, on the executor's own thread.
//!
//! A step: what changed since the last one, then block tables, copies of blocks, the layers over all rows, and logits and samples for just the rows that
//! need them. A step that fails loses its sequences, and logits that are no numbers lose theirs; a lost sequence is
//! skipped, and reported, by the steps that were already planned behind it.

use std::collections::BTreeMap;
use std::mem;
use std::sync::mpsc::{Receiver, SyncSender};

use kvasir_backend::{AttentionBatch, AttentionSeq, Backend, BackendError, ExecError, Sampled, StepResult};
use kvasir_engine_core::{BlockId, SeqId, StepPlan, TokenId};
use kvasir_sampling::Scratch;

use crate::job::{Changes, Command, Job, Observe, Reply};
use crate::sequence::Sequence;
use crate::transformer::{HEAD_ROWS, Transformer};

/// Sees the logits of a row before anything is done to them: sequence, position of the row's token, logits. Called on the executor's thread.
pub type LogitsObserver = Box<dyn FnMut(SeqId, usize, &[f32]) + Send>;

/// Everything that a step touches.
pub(crate) struct Runner<B: Backend> {
    backend: B,
    transformer: Transformer<B>,
    kv: B::Kv,
    block_size: usize,
    sequences: BTreeMap<SeqId, Sequence>,
    observer: Option<LogitsObserver>,
    /// Rows of the step whose logits are needed, in order.
    wanted: Vec<WantedRow>,
    memory: StepMemory,
}

/// Memory that is reused from step to step; its content means nothing between steps.
#[derive(Default)]
struct StepMemory {
    tokens: Vec<TokenId>,
    seqs: Vec<AttentionSeq<'static>>,
    rows: Vec<usize>,
    logits: Vec<f32>,
    sampling: Scratch,
}

/// A row whose logits are needed.
#[derive(Clone, Copy, Debug)]
struct WantedRow {
    row: usize,
    seq: SeqId,
    position: usize,
    /// For its sample, or for the log probability of the prompt's next token.
    samples: bool,
}

impl<B: Backend> Runner<B> {
    pub(crate) fn new(
        backend: B,
        transformer: Transformer<B>,
        kv: B::Kv,
        block_size: usize,
        vocab_size: usize,
    ) -> Self {
        Self {
            backend,
            transformer,
            kv,
            block_size,
            sequences: BTreeMap::new(),
            observer: None,
            wanted: Vec::new(),
            memory: StepMemory {
                logits: vec![0.0; vocab_size],
                ..StepMemory::default()
            },
        }
    }

    /// Carries out commands until nobody is left to give or to hear.
    pub(crate) fn serve(mut self, commands: &Receiver<Command>, replies: &SyncSender<Reply>) {
        for command in commands {
            let reply = match command {
                Command::Step(mut job) => {
                    self.apply(&mut job.changes);
                    let result = self.step(&job.plan);
                    Reply { job, result }
                }
                Command::Warmup(num_tokens) => {
                    let result = self.warm_up(num_tokens).map(|()| StepResult::default());
                    Reply {
                        job: Job::default(),
                        result: result.map_err(|error| device(&error)),
                    }
                }
            };
            if replies.send(reply).is_err() {
                return;
            }
        }
    }

    fn apply(&mut self, changes: &mut Changes) {
        for seq in changes.released.drain(..) {
            self.sequences.remove(&seq);
        }
        self.sequences.append(&mut changes.admitted);
        if let Some(Observe(observer)) = changes.observer.take() {
            self.observer = observer;
        }
    }

    fn step(&mut self, plan: &StepPlan) -> Result<StepResult, ExecError> {
        let mut result = StepResult::default();
        self.update_tables(plan, &mut result);
        let computed = self
            .copy_blocks(plan)
            .and_then(|()| self.run_layers(plan))
            .and_then(|()| self.run_head(&mut result));
        match computed {
            Ok(()) => Ok(result),
            Err(error) => {
                let reason = format!("step {}, which computed it before, failed: {error}", plan.step.0);
                for planned in &plan.seqs {
                    if let Some(sequence) = self.sequences.get_mut(&planned.seq) {
                        sequence.lost.get_or_insert_with(|| reason.clone());
                    }
                }
                Err(device(&error))
            }
        }
    }

    fn update_tables(&mut self, plan: &StepPlan, result: &mut StepResult) {
        for planned in &plan.seqs {
            let Some(sequence) = self.sequences.get_mut(&planned.seq) else {
                continue;
            };
            if let Some(reason) = &sequence.lost {
                result.failed.push((planned.seq, reason.clone()));
            }
            sequence.blocks.truncate(planned.blocks_from as usize);
            sequence
                .blocks
                .extend_from_slice(&plan.blocks[planned.blocks.clone()]);
        }
    }

    fn copy_blocks(&mut self, plan: &StepPlan) -> Result<(), BackendError> {
        if plan.copies.is_empty() {
            return Ok(());
        }
        self.backend.copy_blocks(&plan.copies, &mut self.kv)
    }

    fn run_layers(&mut self, plan: &StepPlan) -> Result<(), BackendError> {
        let Self {
            backend,
            transformer,
            kv,
            sequences,
            wanted,
            memory,
            ..
        } = self;
        memory.tokens.clear();
        wanted.clear();
        let mut seqs = reuse(mem::take(&mut memory.seqs));
        for planned in &plan.seqs {
            let Some(sequence) = sequences.get(&planned.seq).filter(|seq| seq.lost.is_none()) else {
                continue;
            };
            let first_row = memory.tokens.len();
            let first_position = planned.first_position as usize;
            let tokens = (first_position..).zip(&plan.tokens[planned.tokens.clone()]);
            memory
                .tokens
                .extend(tokens.map(|(position, &token)| sequence.resolve(token, position)));
            let num_rows = planned.tokens.len();
            seqs.push(AttentionSeq {
                first_row,
                num_rows,
                first_position,
                blocks: &sequence.blocks,
            });
            let last = if planned.samples { Some(num_rows - 1) } else { None };
            let for_prompt = (0..num_rows).filter(|row| sequence.wants_logprobs_after(first_position + row));
            wanted.extend(for_prompt.chain(last).map(|row| WantedRow {
                row: first_row + row,
                seq: planned.seq,
                position: first_position + row,
                samples: Some(row) == last,
            }));
        }
        let result = if seqs.is_empty() {
            Ok(())
        } else {
            transformer.forward(backend, kv, &memory.tokens, &AttentionBatch { seqs: &seqs })
        };
        memory.seqs = reuse(seqs);
        result
    }

    fn run_head(&mut self, result: &mut StepResult) -> Result<(), BackendError> {
        let Self {
            backend,
            transformer,
            sequences,
            wanted,
            observer,
            memory,
            ..
        } = self;
        let num_samples = wanted.iter().filter(|wanted| wanted.samples).count();
        result.sampled.reserve_exact(num_samples);
        for chunk in wanted.chunks(HEAD_ROWS) {
            memory.rows.clear();
            memory.rows.extend(chunk.iter().map(|wanted| wanted.row));
            transformer.head(backend, &memory.rows)?;
            for (index, wanted) in chunk.iter().enumerate() {
                transformer.read_logits(backend, index, &mut memory.logits)?;
                if let Some(observer) = observer {
                    observer(wanted.seq, wanted.position, &memory.logits);
                }
                if let Some(sequence) = sequences.get_mut(&wanted.seq) {
                    use_logits(sequence, *wanted, memory, result);
                }
            }
        }
        Ok(())
    }

    /// Computes tokens at positions from 0 in the null block, whose content nobody reads.
    fn warm_up(&mut self, num_tokens: usize) -> Result<(), BackendError> {
        let Self {
            backend,
            transformer,
            kv,
            block_size,
            memory,
            ..
        } = self;
        memory.tokens.clear();
        memory.tokens.resize(num_tokens, 0);
        let blocks = vec![BlockId(0); num_tokens.div_ceil(*block_size)];
        let seqs = [AttentionSeq {
            first_row: 0,
            num_rows: num_tokens,
            first_position: 0,
            blocks: &blocks,
        }];
        transformer.forward(backend, kv, &memory.tokens, &AttentionBatch { seqs: &seqs })?;
        transformer.head(backend, &[num_tokens - 1])?;
        transformer.read_logits(backend, 0, &mut memory.logits)
    }
}

/// Does with a row's logits what they are wanted for, or loses the sequence if they say nothing.
fn use_logits(sequence: &mut Sequence, wanted: WantedRow, memory: &mut StepMemory, result: &mut StepResult) {
    if sequence.lost.is_some() {
        return;
    }
    let WantedRow { seq, position, .. } = wanted;
    if !are_numbers(&memory.logits) {
        let reason = format!("the logits after position {position} are not numbers");
        result.failed.push((seq, reason.clone()));
        sequence.lost = Some(reason);
    } else if wanted.samples {
        let choice = sequence.sampler.sample(&mut memory.logits, &mut memory.sampling);
        result.sampled.push(Sampled {
            seq,
            token: choice.token,
            logprobs: choice.logprobs,
        });
    } else if let Some(logprobs) = sequence.prompt_logprobs_after(position, &memory.logits) {
        match result.prompt_logprobs.last_mut() {
            Some((last, list)) if *last == seq => list.push(logprobs),
            _ => result.prompt_logprobs.push((seq, vec![logprobs])),
        }
    }
}

/// Whether a distribution follows from the logits: none is NaN or positive infinity, and not all are negative infinity. It never stops early, so that it can become SIMD code.
fn are_numbers(logits: &[f32]) -> bool {
    let (mut any_bad, mut any_good) = (false, false);
    for &logit in logits {
        any_bad |= logit.is_nan() || logit == f32::INFINITY;
        any_good |= logit > f32::NEG_INFINITY;
    }
    any_good && !any_bad
}

/// Empties the list for another borrow but keeps its memory: collecting a vector's own iterator works in place.
fn reuse<'a>(mut list: Vec<AttentionSeq<'_>>) -> Vec<AttentionSeq<'a>> {
    list.clear();
    list.into_iter()
        .map(|_| AttentionSeq {
            first_row: 0,
            num_rows: 0,
            first_position: 0,
            blocks: &[],
        })
        .collect()
}

fn device(error: &BackendError) -> ExecError {
    ExecError::Device(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::are_numbers;

    #[test]
    fn logits_are_numbers_unless_no_distribution_follows_from_them() {
        const INF: f32 = f32::INFINITY;
        assert!(are_numbers(&[0.0, -1.0e30, 3.0]));
        assert!(are_numbers(&[-INF, -1.0]));
        assert!(!are_numbers(&[1.0, f32::NAN]));
        assert!(!are_numbers(&[1.0, INF]));
        assert!(!are_numbers(&[-INF, -INF]));
        assert!(!are_numbers(&[]));
    }
}
