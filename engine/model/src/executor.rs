//! Runs the scheduler's plans on one device.
//!
//! One step is in flight at a time: `submit` checks the plan, updates block tables and runs the layers over all rows;
//! `sample` computes logits for just the rows that need them. A plan that fails its checks changes nothing; a device
//! error loses the step but not the executor.

use std::mem;

use kvasir_backend::{
    AttentionBatch, AttentionSeq, Backend, BackendError, ExecError, Executor, NewSequence, Sampled,
    StepResult, Ticket,
};
use kvasir_engine_core::{BlockId, SeqId, StepId, StepPlan, TokenId};
use kvasir_sampling::Scratch;

use crate::config::ModelConfig;
use crate::plan::{Limits, validate};
use crate::sequence::{Sequence, Sequences};
use crate::transformer::{HEAD_ROWS, Transformer};

/// Sees the logits of a row before anything is done to them: sequence, position of the row's token, logits.
pub type LogitsObserver = Box<dyn FnMut(SeqId, usize, &[f32]) + Send>;

/// A loaded model: the executor of one engine.
pub struct Model<B: Backend> {
    backend: B,
    transformer: Transformer<B>,
    kv: B::Kv,
    config: ModelConfig,
    limits: Limits,
    sequences: Sequences,
    in_flight: Option<StepId>,
    /// Rows of the step in flight whose logits are needed, in order.
    wanted: Vec<WantedRow>,
    observer: Option<LogitsObserver>,
    memory: StepMemory,
}

/// Memory that is reused from step to step; its content means nothing between calls.
#[derive(Default)]
struct StepMemory {
    tokens: Vec<TokenId>,
    seqs: Vec<AttentionSeq<'static>>,
    seen: Vec<SeqId>,
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

impl<B: Backend> Model<B> {
    pub(crate) fn new(
        backend: B,
        transformer: Transformer<B>,
        kv: B::Kv,
        config: ModelConfig,
        limits: Limits,
    ) -> Self {
        let memory = StepMemory {
            logits: vec![0.0; config.vocab_size],
            ..StepMemory::default()
        };
        Self {
            backend,
            transformer,
            kv,
            config,
            limits,
            sequences: Sequences::new(),
            in_flight: None,
            wanted: Vec::new(),
            observer: None,
            memory,
        }
    }

    /// The description that the model was loaded from.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Calls `observer` with all logits that later steps compute: for fidelity tests and diagnosis.
    pub fn observe_logits(&mut self, observer: Option<LogitsObserver>) {
        self.observer = observer;
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
            // `validate` has looked it up.
            let Some(sequence) = sequences.get(&planned.seq) else {
                continue;
            };
            let first_row = memory.tokens.len();
            memory
                .tokens
                .extend_from_slice(&plan.tokens[planned.tokens.clone()]);
            let first_position = planned.first_position as usize;
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

    fn run_head(&mut self) -> Result<StepResult, BackendError> {
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
        let mut result = StepResult {
            sampled: Vec::with_capacity(num_samples),
            ..StepResult::default()
        };
        for chunk in wanted.chunks(HEAD_ROWS) {
            memory.rows.clear();
            memory.rows.extend(chunk.iter().map(|wanted| wanted.row));
            transformer.head(backend, &memory.rows)?;
            for (index, wanted) in chunk.iter().enumerate() {
                transformer.read_logits(backend, index, &mut memory.logits)?;
                if let Some(observer) = observer {
                    observer(wanted.seq, wanted.position, &memory.logits);
                }
                let Some(sequence) = sequences.get_mut(&wanted.seq) else {
                    continue;
                };
                if wanted.samples {
                    let choice = sequence.sampler.sample(&mut memory.logits, &mut memory.sampling);
                    let sampled = Sampled {
                        seq: wanted.seq,
                        token: choice.token,
                        logprobs: choice.logprobs,
                    };
                    result.sampled.push(sampled);
                } else if let Some(logprobs) = sequence.prompt_logprobs_after(wanted.position, &memory.logits)
                {
                    match result.prompt_logprobs.last_mut() {
                        Some((seq, list)) if *seq == wanted.seq => list.push(logprobs),
                        _ => result.prompt_logprobs.push((wanted.seq, vec![logprobs])),
                    }
                }
            }
        }
        Ok(result)
    }

    /// Computes tokens at positions from 0 in the null block, whose content nobody reads.
    fn run_warmup(&mut self, num_tokens: usize) -> Result<(), BackendError> {
        let Self {
            backend,
            transformer,
            kv,
            limits,
            memory,
            ..
        } = self;
        memory.tokens.clear();
        memory.tokens.resize(num_tokens, 0);
        let blocks = vec![BlockId(0); num_tokens.div_ceil(limits.block_size)];
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

    /// Forgets sequences that were released while the step was in flight.
    fn end_step(&mut self) {
        self.in_flight = None;
        self.wanted.clear();
        self.sequences.retain(|_, sequence| !sequence.is_released);
    }
}

impl<B: Backend> Executor for Model<B> {
    fn admit(&mut self, sequence: NewSequence) {
        self.sequences
            .insert(sequence.seq, Sequence::new(&sequence, self.limits.vocab_size));
    }

    fn release(&mut self, seq: SeqId) {
        if self.in_flight.is_none() {
            self.sequences.remove(&seq);
        } else if let Some(sequence) = self.sequences.get_mut(&seq) {
            sequence.is_released = true;
        }
    }

    fn submit(&mut self, plan: &StepPlan) -> Result<Ticket, ExecError> {
        if let Some(step) = self.in_flight {
            let reason = format!("step {} is in flight and was not sampled yet", step.0);
            return Err(ExecError::InvalidPlan {
                step: plan.step,
                reason,
            });
        }
        validate(plan, &self.limits, &self.sequences, &mut self.memory.seen)?;
        for planned in &plan.seqs {
            if let Some(sequence) = self.sequences.get_mut(&planned.seq) {
                sequence.blocks.truncate(planned.blocks_from as usize);
                sequence
                    .blocks
                    .extend_from_slice(&plan.blocks[planned.blocks.clone()]);
            }
        }
        if let Err(error) = self.run_layers(plan) {
            self.end_step();
            return Err(device(&error));
        }
        self.in_flight = Some(plan.step);
        Ok(Ticket(plan.step))
    }

    fn sample(&mut self, ticket: Ticket) -> Result<StepResult, ExecError> {
        if self.in_flight != Some(ticket.0) {
            let reason = format!("its ticket is not the one in flight, {:?}", self.in_flight);
            return Err(ExecError::InvalidPlan {
                step: ticket.0,
                reason,
            });
        }
        let result = self.run_head();
        self.end_step();
        result.map_err(|error| device(&error))
    }

    fn warmup(&mut self, max_num_tokens: usize) -> Result<(), ExecError> {
        if let Some(step) = self.in_flight {
            let reason = "warming up would overwrite it".to_owned();
            return Err(ExecError::InvalidPlan { step, reason });
        }
        let num_tokens = max_num_tokens
            .min(self.limits.max_num_tokens)
            .min(self.limits.max_model_len);
        if num_tokens == 0 {
            return Ok(());
        }
        self.run_warmup(num_tokens).map_err(|error| device(&error))
    }
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
