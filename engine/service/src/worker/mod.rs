//! The scheduler thread.
//!
//! Each turn takes the commands that came, runs at most one step, and routes what happened; without work it sleeps in the mailbox.
//! Within a turn the order is: commands, load report, answers, outputs of the commands; then step, load report, outputs of the step. So whoever was answered
//! sees itself in the load report, and what a client dropped is free before the next step is planned.
//!
//! A step that fails ends its sequences and nothing else. A panic ends all requests and the thread: the state of scheduler and
//! executor is unknown then.

mod counters;
mod live;
mod records;
mod times;

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kvasir_backend::{ExecError, Executor, NewSequence, StepResult};
use kvasir_client::types::{Error, ErrorCode};
use kvasir_client::{invalid, refusal};
use kvasir_engine_core::{Event, Micros, Reject, Request, Scheduler, SeqId, StepOutcome, StepPlan};

pub(crate) use self::counters::Counters;
use self::live::LiveRequests;
use self::times::StepTime;
use crate::mailbox::Command;
use crate::names::RequestKey;
use crate::shared::{EngineState, Shared};
use crate::sink::{Sink, Submission};
use crate::validate::ValidRequest;

/// Owns scheduler and executor.
pub(crate) struct Worker {
    shared: Arc<Shared>,
    scheduler: Scheduler,
    executor: Box<dyn Executor>,
    epoch: Instant,
    live: LiveRequests,
    counters: Counters,
    /// When the last step completed, or work came to an idle engine.
    progress: Option<Instant>,
    commands: VecDeque<Command>,
    answers: Vec<Answer>,
    plan: StepPlan,
    events: Vec<Event>,
    outcome: StepOutcome,
}

/// An answer that waits for the load report to be up to date.
enum Answer {
    Admitted(RequestKey),
    Refused(Box<Submission>, Error),
}

impl Worker {
    pub(crate) fn new(shared: Arc<Shared>, scheduler: Scheduler, executor: Box<dyn Executor>) -> Self {
        let mut worker = Self {
            shared,
            scheduler,
            executor,
            epoch: Instant::now(),
            live: LiveRequests::default(),
            counters: Counters::default(),
            progress: None,
            commands: VecDeque::new(),
            answers: Vec::new(),
            plan: StepPlan::new(),
            events: Vec::new(),
            outcome: StepOutcome::default(),
        };
        worker.publish();
        worker
    }

    /// Runs until it is told to stop.
    pub(crate) fn run(mut self) {
        let mut failed = None;
        let end = catch_unwind(AssertUnwindSafe(|| self.turns()));
        let error = match end {
            Ok(()) => refusal(ErrorCode::Unavailable, "the engine was stopped"),
            Err(panic) => {
                let message = panic_message(&*panic);
                tracing::error!(message, "the scheduler thread panicked; all requests fail");
                failed = Some(EngineState::Failed(message));
                refusal(ErrorCode::Internal, "the engine failed; its log says why")
            }
        };
        self.shared.mailbox.close(&mut self.commands);
        self.fail_everything(&error);
        // Last, so that whoever ends the process on it finds the requests answered.
        if let Some(state) = failed {
            self.shared.advance(state);
        }
    }

    fn turns(&mut self) {
        loop {
            self.shared.mailbox.take(&mut self.commands, self.live.is_empty());
            if self.run_commands() {
                return;
            }
            self.step();
        }
    }

    /// Says whether to stop.
    fn run_commands(&mut self) -> bool {
        if self.commands.is_empty() {
            return false;
        }
        while let Some(command) = self.commands.pop_front() {
            match command {
                Command::Submit(submission) => self.submit(submission),
                Command::Abort(key, index) => self.abort(key, index),
                Command::Stop => return true,
            }
        }
        self.apply_events();
        self.publish();
        self.send_answers();
        self.flush();
        false
    }

    fn submit(&mut self, submission: Box<Submission>) {
        if submission.place.names.is_closed() {
            // Its session ended after it was sent, and the abort has found nothing.
            return;
        }
        if let Err(error) = self.shared.check_open() {
            self.answers.push(Answer::Refused(submission, error));
            return;
        }
        let now = self.now();
        match self.scheduler.submit_group(now, sequences(&submission.request)) {
            Ok(seqs) => {
                self.admit(&submission.request, &seqs);
                self.answers.push(Answer::Admitted(submission.place.key));
                self.live.insert(*submission, &seqs);
            }
            Err(reject) => {
                self.counters.count_reject(&reject);
                self.answers.push(Answer::Refused(submission, refuse(&reject)));
            }
        }
    }

    fn admit(&mut self, request: &ValidRequest, seqs: &[SeqId]) {
        for (index, &seq) in seqs.iter().enumerate() {
            let mut sampling = request.sampling.clone();
            sampling.seed = sampling.seed.wrapping_add(index as u64);
            self.executor.admit(NewSequence {
                seq,
                prompt: Arc::clone(&request.prompt),
                sampling: Arc::new(sampling),
                prompt_logprobs: request.prompt_logprobs.filter(|_| index == 0),
            });
        }
    }

    fn abort(&mut self, key: RequestKey, index: Option<u32>) {
        for seq in self.live.open_seqs(key, index) {
            self.scheduler.abort(seq, &mut self.events);
        }
        self.apply_events();
    }

    fn step(&mut self) {
        let mut laps = Laps::start();
        let mut time = StepTime::default();
        let now = self.now();
        let planned = self.scheduler.schedule(now, &mut self.plan, &mut self.events);
        self.apply_events();
        time.schedule = laps.lap();
        if !planned {
            // The scheduler plans something whenever a sequence exists and no step is in flight.
            assert!(
                self.live.is_empty(),
                "the scheduler has sequences and plans no step"
            );
            return;
        }
        let ticket = self.executor.submit(&self.plan);
        time.launch = laps.lap();
        let result = ticket.and_then(|ticket| self.executor.sample(ticket));
        time.wait = laps.lap();
        time.execute = time.launch + time.wait;
        match result {
            Ok(result) => self.complete(result),
            Err(error) => self.fail_step(&error),
        }
        self.apply_events();
        time.complete = laps.lap();
        self.progress = Some(Instant::now());
        self.publish();
        self.flush();
        time.deliver = laps.lap();
        self.counters.count_step(&time);
        self.shared.publish(&self.counters, self.progress);
    }

    fn complete(&mut self, result: StepResult) {
        self.live.note_step(&self.plan);
        let StepResult {
            sampled,
            prompt_logprobs,
            failed,
        } = result;
        for (seq, logprobs) in prompt_logprobs {
            self.live.note_prompt_logprobs(&self.plan, seq, logprobs);
        }
        for (seq, reason) in &failed {
            self.fail_sequence(*seq, reason);
        }
        self.outcome.sampled.clear();
        let mut sampled = sampled.into_iter().peekable();
        for planned in self.plan.seqs.iter().filter(|planned| planned.samples) {
            if let Some(sampled) = sampled.next_if(|sampled| sampled.seq == planned.seq) {
                self.outcome.sampled.push((sampled.seq, sampled.token));
                self.live.note_logprobs(sampled.seq, sampled.logprobs);
            } else if failed.iter().any(|(seq, _)| *seq == planned.seq) {
                // The scheduler drops what an ended sequence sampled.
                self.outcome.sampled.push((planned.seq, 0));
            }
        }
        let step = self.plan.step;
        if let Err(error) = self.scheduler.complete(step, &self.outcome, &mut self.events) {
            self.fail_step(&ExecError::Device(error.to_string()));
        }
    }

    /// Ends a sequence that failed alone; the others of its step go on.
    fn fail_sequence(&mut self, seq: SeqId, reason: &str) {
        tracing::error!(sequence = seq.0, reason, "a sequence failed and ends");
        let fault = refusal(
            ErrorCode::Internal,
            format!("this sequence can't go on: {reason}"),
        );
        self.live.blame(seq, &fault);
        self.scheduler.abort(seq, &mut self.events);
    }

    fn fail_step(&mut self, error: &ExecError) {
        tracing::error!(step = self.plan.step.0, sequences = self.plan.seqs.len(), %error, "a step failed; its sequences end");
        let fault = refusal(
            ErrorCode::Internal,
            format!("the step that computed this sequence failed: {error}"),
        );
        for planned in &self.plan.seqs {
            self.live.blame(planned.seq, &fault);
        }
        self.scheduler.fail_step(self.plan.step, &mut self.events);
    }

    /// Notes what the scheduler told, and lets the executor forget what ended.
    fn apply_events(&mut self) {
        let now = Instant::now();
        for event in self.events.drain(..) {
            if let Event::Finished { seq, .. } = event {
                self.executor.release(seq);
            }
            self.live.note_event(event, now);
        }
    }

    /// Sends outputs. Requests whose reader is too slow or gone end, which gives more outputs.
    fn flush(&mut self) {
        let mut ended = self.live.flush();
        while !ended.is_empty() {
            for seq in ended {
                self.scheduler.abort(seq, &mut self.events);
            }
            self.apply_events();
            self.publish();
            ended = self.live.flush();
        }
    }

    fn send_answers(&mut self) {
        for answer in self.answers.drain(..) {
            match answer {
                Answer::Admitted(key) => self.live.answer_admitted(key),
                Answer::Refused(submission, error) => answer_refused(*submission, error),
            }
        }
    }

    fn publish(&mut self) {
        let stats = self.scheduler.stats();
        let idle = stats.num_running + stats.num_waiting == 0;
        self.progress = if idle {
            None
        } else {
            Some(self.progress.unwrap_or_else(Instant::now))
        };
        self.counters.update(&stats);
        self.shared.publish(&self.counters, self.progress);
    }

    /// Ends all requests without touching scheduler or executor.
    fn fail_everything(&mut self, error: &Error) {
        self.send_answers();
        for command in self.commands.drain(..) {
            if let Command::Submit(submission) = command {
                answer_refused(*submission, error.clone());
            }
        }
        self.live.fail_all(error);
        self.shared.publish(&self.counters, None);
    }

    fn now(&self) -> Micros {
        Micros(u64::try_from(self.epoch.elapsed().as_micros()).unwrap_or(u64::MAX))
    }
}

/// Times one thing after another.
struct Laps(Instant);

impl Laps {
    fn start() -> Self {
        Self(Instant::now())
    }

    fn lap(&mut self) -> Duration {
        let now = Instant::now();
        now.duration_since(std::mem::replace(&mut self.0, now))
    }
}

/// The scheduler's view of a request: one entry per sequence.
fn sequences(request: &ValidRequest) -> Vec<Request> {
    (0..request.n)
        .map(|index| Request {
            prompt: Arc::clone(&request.prompt),
            stop: request.stop.clone(),
            priority: request.priority,
            cache_root: request.cache_root,
            reads_prefix_cache: request.prompt_logprobs.is_none() || index > 0,
        })
        .collect()
}

/// Answers a refused request; its id is free before the client can know.
fn answer_refused(submission: Submission, error: Error) {
    let Submission { mut sink, place, .. } = submission;
    place.free_name();
    sink.answer(&place.request_id, Err(error));
    if let Sink::Session { outbox } = sink {
        outbox.commit();
    }
}

fn refuse(reject: &Reject) -> Error {
    if reject.is_retryable() {
        return refusal(ErrorCode::QueueFull, reject.to_string());
    }
    let param = match reject {
        Reject::EmptyPrompt
        | Reject::PromptTooLong { .. }
        | Reject::NeverFits { .. }
        | Reject::QueuedTokensFull { .. } => "prompt_token_ids",
        Reject::ZeroMaxTokens => "max_tokens",
        Reject::QueueFull { .. } => "n",
    };
    invalid(param, reject.to_string())
}

fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    panic
        .downcast_ref::<&str>()
        .map(|message| (*message).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without a message".to_owned())
}
