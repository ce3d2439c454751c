//! What clients ask for.

use std::sync::Arc;

use kvasir_backend::NewSequence;
use kvasir_client::types::{Error, ErrorCode};
use kvasir_client::{invalid, refusal};
use kvasir_engine_core::{Micros, Reject, Request, RequestOptions, SeqId};

use super::Worker;
use crate::mailbox::Command;
use crate::names::RequestKey;
use crate::sink::Submission;
use crate::validate::ValidRequest;

/// An answer that waits for the load report to be up to date.
pub(super) enum Answer {
    Admitted(RequestKey),
    Refused(Box<Submission>, Error),
}

impl Worker {
    /// Says whether to stop.
    pub(super) fn run_commands(&mut self) -> bool {
        if self.commands.is_empty() {
            return false;
        }
        self.beat(None);
        while let Some(command) = self.commands.pop_front() {
            match command {
                Command::Submit(submission) => self.submit(submission),
                Command::Abort(key, index) => self.abort(key, index),
                Command::Forget(seq) => self.shared.host.scheduler().abort(seq, &mut self.events),
                // The blocks are looked at in every turn.
                Command::Look => {}
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
        let request = &submission.request;
        let deadline = request
            .timeout
            .map(|timeout| Micros(now.0.saturating_add(timeout.0)));
        let options = RequestOptions {
            deadline,
            ..RequestOptions::default()
        };
        let submitted = self
            .shared
            .host
            .scheduler()
            .submit_group_with(now, sequences(request), options);
        match submitted {
            Ok(seqs) => {
                self.admit(&submission.request, &seqs);
                self.answers.push(Answer::Admitted(submission.place.key));
                self.shared.host.live().insert(*submission, &seqs);
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
        let seqs = self.shared.host.live().open_seqs(key, index);
        let mut scheduler = self.shared.host.scheduler();
        for seq in seqs {
            scheduler.abort(seq, &mut self.events);
        }
        drop(scheduler);
        self.apply_events();
    }

    pub(super) fn send_answers(&mut self) {
        for answer in self.answers.drain(..) {
            match answer {
                Answer::Admitted(key) => self.shared.host.live().answer_admitted(key),
                Answer::Refused(submission, error) => submission.refuse(error),
            }
        }
    }

    /// Ends all requests without touching scheduler or executor.
    pub(super) fn fail_everything(&mut self, error: &Error) {
        self.send_answers();
        for command in self.commands.drain(..) {
            if let Command::Submit(submission) = command {
                submission.refuse(error.clone());
            }
        }
        self.shared.host.live().fail_all(error);
        self.shared.publish(&self.counters, None);
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
