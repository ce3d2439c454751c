//! Who asked for what, and what it got: the requests of a recording, for running them again under other rules.

use super::{Input, MAX_REPLAYED_BLOCKS, MAX_REPLAYED_MODEL_LEN, ReplayError, Trace};
use crate::event::Event;
use crate::ids::{Micros, TokenId};
use crate::plan::StepPlan;
use crate::request::{Request, RequestOptions};
use crate::scheduler::Scheduler;

/// One sequence that was submitted.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct RecordedRequest {
    /// When, on the recording's clock.
    pub now: Micros,
    /// What was asked for.
    pub request: Request,
    /// With what beside the prompt.
    pub options: RequestOptions,
    /// Whether it was refused when it was submitted.
    pub is_refused: bool,
    /// Its output as far as the recording goes; empty if it was refused.
    pub output: Vec<TokenId>,
}

impl Trace {
    /// Every sequence that was submitted, in order, with the output that it got until the recording ends. Those that were there when it begins
    /// are left out.
    ///
    /// # Errors
    /// As for [`Trace::replay`], which is how the outputs are found.
    pub fn requests(&self) -> Result<Vec<RecordedRequest>, ReplayError> {
        let mut scheduler = self.restore()?;
        // Sequences are numbered in the order in which they are accepted.
        let first = scheduler.next_seq;
        let mut accepted = Vec::new();
        let mut requests = Vec::new();
        let (mut plan, mut events) = (StepPlan::new(), Vec::new());
        for input in &self.inputs {
            let before = scheduler.next_seq;
            scheduler.apply(input, &mut plan, &mut events);
            if let Input::Submit {
                now,
                requests: submitted,
                options,
            } = input
            {
                let index = requests.len();
                // All of them or none.
                let is_refused = scheduler.next_seq == before;
                requests.extend(submitted.iter().map(|request| RecordedRequest {
                    now: *now,
                    request: request.clone(),
                    options: *options,
                    is_refused,
                    output: Vec::new(),
                }));
                if !is_refused {
                    accepted.extend(index..requests.len());
                }
            }
            for event in events.drain(..) {
                if let Event::Token { seq, token } = event {
                    let number = seq
                        .0
                        .checked_sub(first)
                        .and_then(|number| usize::try_from(number).ok());
                    let index = number.and_then(|number| accepted.get(number));
                    if let Some(request) = index.and_then(|&index| requests.get_mut(index)) {
                        request.output.push(token);
                    }
                }
            }
        }
        Ok(requests)
    }

    /// A scheduler in the state that the recording starts from.
    pub(super) fn restore(&self) -> Result<Scheduler, ReplayError> {
        let at_most = [
            ("num_blocks", self.config.num_blocks, MAX_REPLAYED_BLOCKS),
            ("max_model_len", self.config.max_model_len, MAX_REPLAYED_MODEL_LEN),
        ];
        for (name, value, limit) in at_most {
            if value > limit {
                return Err(ReplayError::TooLarge { name, value, limit });
            }
        }
        let mut scheduler = Scheduler::with_policies(self.config.clone(), self.policies.clone())?;
        // Memory grows with what the recording has, not with what it says that its sequences may become.
        scheduler.reserves_ahead = false;
        scheduler.restore(&self.start).map_err(ReplayError::Start)?;
        Ok(scheduler)
    }
}
