//! The executor of one engine: checks plans on the caller's thread and has them run on its own, so that the next step is planned while one is computed.
//!
//! `submit` compares the plan with what the steps before it have planned, also those in flight, and hands a copy to the thread; a plan that fails its
//! checks changes nothing. `sample` waits for the oldest step. A panic of the thread surfaces as a panic of the next call that hears of it.

use std::collections::{BTreeMap, VecDeque};
use std::mem;
use std::panic::resume_unwind;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{Builder, JoinHandle};

use kvasir_backend::{Backend, ExecError, Executor, NewSequence, StepResult, Ticket};
use kvasir_engine_core::{SeqId, StepId, StepPlan};

use crate::config::ModelConfig;
use crate::error::ModelError;
use crate::job::{Changes, Command, Job, Observe, Reply};
use crate::plan::{Limits, Seen, validate};
use crate::runner::{LogitsObserver, Runner};
use crate::sequence::{Planned, Sequence};

/// One step runs and one waits for it: more would only be planned on older news.
const MAX_IN_FLIGHT: usize = 2;

/// A loaded model: the executor of one engine. Dropping it waits for the steps in flight.
pub struct Model {
    config: ModelConfig,
    limits: Limits,
    planned: BTreeMap<SeqId, Planned>,
    changes: Changes,
    in_flight: VecDeque<StepId>,
    /// Jobs that came back.
    spare: Vec<Job>,
    seen: Seen,
    /// None when the model is being dropped.
    commands: Option<SyncSender<Command>>,
    replies: Receiver<Reply>,
    /// None once it has ended.
    thread: Option<JoinHandle<()>>,
}

impl Model {
    /// Starts the executor's thread.
    pub(crate) fn start<B: Backend>(
        runner: Runner<B>,
        config: ModelConfig,
        limits: Limits,
    ) -> Result<Self, ModelError> {
        // As large as what can be under way, so that no side ever waits to send.
        let (commands, to_run) = sync_channel(MAX_IN_FLIGHT);
        let (done, replies) = sync_channel(MAX_IN_FLIGHT);
        let thread = Builder::new()
            .name("kvasir-executor".to_owned())
            .spawn(move || runner.serve(&to_run, &done))
            .map_err(ModelError::StartThread)?;
        Ok(Self {
            config,
            limits,
            planned: BTreeMap::new(),
            changes: Changes::default(),
            in_flight: VecDeque::with_capacity(MAX_IN_FLIGHT),
            spare: Vec::with_capacity(MAX_IN_FLIGHT),
            seen: Seen::new(),
            commands: Some(commands),
            replies,
            thread: Some(thread),
        })
    }

    /// The description that the model was loaded from.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Calls `observer` with all logits that later steps compute: for fidelity tests and diagnosis.
    pub fn observe_logits(&mut self, observer: Option<LogitsObserver>) {
        self.changes.observer = Some(Observe(observer));
    }

    fn check_room(&self, step: StepId) -> Result<(), ExecError> {
        let reason = if self.in_flight.contains(&step) {
            "it is in flight already".to_owned()
        } else if self.in_flight.len() >= MAX_IN_FLIGHT {
            format!("{MAX_IN_FLIGHT} steps are in flight, and the oldest was not sampled yet")
        } else {
            return Ok(());
        };
        Err(ExecError::InvalidPlan { step, reason })
    }

    fn send(&mut self, command: Command) -> Result<(), ExecError> {
        match &self.commands {
            Some(commands) if commands.send(command).is_ok() => Ok(()),
            _ => Err(self.thread_ended()),
        }
    }

    fn receive(&mut self) -> Result<Reply, ExecError> {
        self.replies.recv().map_err(|_| self.thread_ended())
    }

    /// Nothing ends the thread but a panic, which goes on here; later calls get an error.
    fn thread_ended(&mut self) -> ExecError {
        if let Some(Err(panic)) = self.thread.take().map(JoinHandle::join) {
            resume_unwind(panic);
        }
        ExecError::Device("the executor's thread has ended".to_owned())
    }

    fn note_submitted(&mut self, plan: &StepPlan) {
        for part in &plan.seqs {
            if let Some(planned) = self.planned.get_mut(&part.seq) {
                planned.num_blocks = part.blocks_from as usize + part.blocks.len();
                planned.num_outputs += usize::from(part.samples);
            }
        }
    }

    fn note_done(&mut self, plan: &StepPlan, result: Result<&StepResult, &ExecError>) {
        match result {
            Ok(result) => {
                for sampled in &result.sampled {
                    if let Some(planned) = self.planned.get_mut(&sampled.seq) {
                        planned.num_told += 1;
                    }
                }
                result.failed.iter().for_each(|(seq, _)| self.release(*seq));
            }
            Err(_) => plan.seqs.iter().for_each(|part| self.release(part.seq)),
        }
    }
}

impl Executor for Model {
    fn max_in_flight(&self) -> usize {
        MAX_IN_FLIGHT
    }

    fn admit(&mut self, sequence: NewSequence) {
        // An id that comes again means another sequence.
        self.release(sequence.seq);
        let vocab_size = self.limits.vocab_size;
        let planned = Planned::new(&sequence, vocab_size);
        self.planned.insert(sequence.seq, planned);
        let admitted = Sequence::new(&sequence, vocab_size);
        self.changes.admitted.insert(sequence.seq, admitted);
    }

    fn release(&mut self, seq: SeqId) {
        let is_known = self.planned.remove(&seq).is_some();
        let was_unheard_of = self.changes.admitted.remove(&seq).is_some();
        if is_known && !was_unheard_of {
            self.changes.released.push(seq);
        }
    }

    fn submit(&mut self, plan: &StepPlan) -> Result<Ticket, ExecError> {
        self.check_room(plan.step)?;
        validate(plan, &self.limits, &self.planned, &mut self.seen)?;
        let mut job = self.spare.pop().unwrap_or_default();
        job.set_plan(plan);
        job.changes = mem::take(&mut self.changes);
        self.note_submitted(plan);
        self.send(Command::Step(job))?;
        self.in_flight.push_back(plan.step);
        Ok(Ticket(plan.step))
    }

    fn sample(&mut self, ticket: Ticket) -> Result<StepResult, ExecError> {
        let oldest = self.in_flight.front();
        if oldest != Some(&ticket.0) {
            let reason = format!("its ticket is not that of the oldest step in flight, {oldest:?}");
            return Err(ExecError::InvalidPlan {
                step: ticket.0,
                reason,
            });
        }
        self.in_flight.pop_front();
        let Reply { job, result } = self.receive()?;
        self.note_done(&job.plan, result.as_ref());
        self.spare.push(job);
        result
    }

    fn warmup(&mut self, max_num_tokens: usize) -> Result<(), ExecError> {
        if let Some(&step) = self.in_flight.front() {
            let reason = "it is in flight, and warming up waits for nothing".to_owned();
            return Err(ExecError::InvalidPlan { step, reason });
        }
        let num_tokens = max_num_tokens
            .min(self.limits.max_num_tokens)
            .min(self.limits.max_model_len);
        if num_tokens == 0 {
            return Ok(());
        }
        self.send(Command::Warmup(num_tokens))?;
        self.receive()?.result.map(drop)
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        // The thread ends when nobody can send any more.
        self.commands = None;
        if let Some(thread) = self.thread.take() {
            // Its panic is of no use to anybody who didn't ask for a result.
            thread.join().ok();
        }
    }
}
