//! Running a dump's recording again, and comparing it with what the engine did.

use std::collections::BTreeMap;

use kvasir_engine_core::{Event, StepPlan};

use super::{Dump, DumpError};
use crate::journal::plan_digest;

/// What a replay gave.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Replayed {
    /// Plans made.
    pub num_plans: usize,
    /// Those of them that the dump has a digest of.
    pub num_compared: usize,
    /// Steps whose plans differ from the engine's, in order. Not empty means that the scheduler here isn't the engine's, or isn't
    /// deterministic.
    pub differing: Vec<u64>,
}

impl Dump {
    /// Runs the recording, gives every plan and the events since the last one to `on_plan`, and compares the plans with those that the engine
    /// executed.
    ///
    /// # Errors
    /// If there is no recording that can be run.
    pub fn replay(&self, mut on_plan: impl FnMut(&StepPlan, &[Event])) -> Result<Replayed, DumpError> {
        let executed: BTreeMap<u64, u32> = self.plans.iter().map(|plan| (plan.step, plan.crc32)).collect();
        let mut replayed = Replayed::default();
        let mut scratch = Vec::new();
        self.trace()?
            .replay(|plan, events| {
                replayed.num_plans += 1;
                if let Some(&digest) = executed.get(&plan.step.0) {
                    replayed.num_compared += 1;
                    if digest != plan_digest(plan, &mut scratch) {
                        replayed.differing.push(plan.step.0);
                    }
                }
                on_plan(plan, events);
            })
            .map_err(DumpError::Replay)?;
        Ok(replayed)
    }
}
