//! An executor whose tokens depend on everything a sequence's KV holds, and on nothing else.
//!
//! Each KV slot holds a hash of its position, its token and the slot before it, read back through the block table. So a block that is
//! shared, moved or overwritten wrongly changes the tokens, while batching, chunking, preemption and caching don't.
//!
//! Steps are computed when they are submitted and wait, where the test holds them, when their result is asked for.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use kvasir_backend::{ExecError, Executor, NewSequence, Sampled, StepResult, Ticket};
use kvasir_engine_core::{BlockId, PENDING_TOKEN, SeqId, SeqPlan, StepPlan};
use kvasir_sampling::TokenLogprobs;

pub const VOCAB_SIZE: u32 = 1000;

/// Sequences with this seed fail alone when they would sample their third token.
pub const FAILING_SEED: u64 = 0xbad;

/// Nothing in these tests takes this long unless it hangs.
pub const DEADLINE: Duration = Duration::from_mins(1);

/// The tokens that any engine must give.
pub fn expected(prompt: &[u32], seed: u64, num_tokens: usize) -> Vec<u32> {
    let mut slot = 0;
    for (position, &token) in prompt.iter().enumerate() {
        slot = hash([slot, position as u64, u64::from(token)]);
    }
    (0..num_tokens)
        .map(|index| {
            let token = draw(slot, seed, index as u32);
            slot = hash([slot, (prompt.len() + index) as u64, u64::from(token)]);
            token
        })
        .collect()
}

fn draw(slot: u64, seed: u64, index: u32) -> u32 {
    (hash([slot, seed, u64::from(index)]) % u64::from(VOCAB_SIZE)) as u32
}

fn hash(parts: [u64; 3]) -> u64 {
    parts.iter().fold(0x9e37_79b9_7f4a_7c15, |state, part| {
        let mixed = (state ^ part).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed ^ (mixed >> 29)).wrapping_mul(0x94d0_49bb_1331_11eb) ^ (mixed >> 31)
    })
}

/// How a test steers the executor and looks at it.
#[derive(Debug, Default)]
pub struct Control {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Steps that may end; None is all.
    allowed: Option<u64>,
    entered: u64,
    kv_writes: u64,
    known: usize,
    fail_next: Option<String>,
    refuse_next: Option<String>,
    most_in_flight: usize,
    panic_next: bool,
}

impl Control {
    /// From now on each step waits until it is allowed.
    pub fn hold(&self) {
        let mut state = self.state.lock().unwrap();
        state.allowed = Some(state.entered);
    }

    /// Allows this many steps more.
    pub fn allow(&self, steps: u64) {
        if let Some(allowed) = &mut self.state.lock().unwrap().allowed {
            *allowed += steps;
        }
        self.changed.notify_all();
    }

    /// Allows all steps.
    pub fn open(&self) {
        self.state.lock().unwrap().allowed = None;
        self.changed.notify_all();
    }

    /// Waits until this many steps were begun since the start.
    pub fn wait_entered(&self, steps: u64) {
        let state = self.state.lock().unwrap();
        let (_state, timeout) = self
            .changed
            .wait_timeout_while(state, DEADLINE, |state| state.entered < steps)
            .unwrap();
        assert!(!timeout.timed_out(), "the executor never began step {steps}");
    }

    pub fn entered(&self) -> u64 {
        self.state.lock().unwrap().entered
    }

    pub fn kv_writes(&self) -> u64 {
        self.state.lock().unwrap().kv_writes
    }

    /// Sequences that were admitted and not released.
    pub fn known(&self) -> usize {
        self.state.lock().unwrap().known
    }

    pub fn fail_next(&self, message: &str) {
        self.state.lock().unwrap().fail_next = Some(message.to_owned());
    }

    /// The next step isn't even taken.
    pub fn refuse_next(&self, message: &str) {
        self.state.lock().unwrap().refuse_next = Some(message.to_owned());
    }

    /// Most steps that were submitted and not sampled.
    pub fn most_in_flight(&self) -> usize {
        self.state.lock().unwrap().most_in_flight
    }

    pub fn panic_next(&self) {
        self.state.lock().unwrap().panic_next = true;
    }
}

pub struct FakeExecutor {
    control: Arc<Control>,
    block_size: usize,
    seqs: BTreeMap<SeqId, Seq>,
    slots: HashMap<(BlockId, usize), u64>,
    /// With the number of each step, from 1.
    steps: VecDeque<(u64, Ticket, StepResult)>,
}

struct Seq {
    new: NewSequence,
    blocks: Vec<BlockId>,
    last_sampled: u32,
    is_lost: bool,
}

impl FakeExecutor {
    pub fn new(control: Arc<Control>, block_size: u32) -> Self {
        Self {
            control,
            block_size: block_size as usize,
            seqs: BTreeMap::new(),
            slots: HashMap::new(),
            steps: VecDeque::new(),
        }
    }

    /// Computes one sequence's part; gives the last slot.
    fn forward(&mut self, plan: &StepPlan, planned: &SeqPlan) -> u64 {
        let seq = self.seqs.get_mut(&planned.seq).expect("checked by the caller");
        seq.blocks.truncate(planned.blocks_from as usize);
        seq.blocks.extend_from_slice(&plan.blocks[planned.blocks.clone()]);
        let blocks = &seq.blocks;
        let address = |position: usize| (blocks[position / self.block_size], position % self.block_size);
        let mut slot = 0;
        for (offset, &token) in plan.tokens[planned.tokens.clone()].iter().enumerate() {
            let position = planned.first_position as usize + offset;
            let token = if token == PENDING_TOKEN {
                seq.last_sampled
            } else {
                token
            };
            assert_ne!(
                token, PENDING_TOKEN,
                "nothing was sampled for position {position}"
            );
            if let Some(&known) = seq.new.prompt.get(position) {
                assert_eq!(
                    token, known,
                    "the plan and the prompt differ at position {position}"
                );
            }
            let before = if position == 0 {
                0
            } else {
                self.slots[&address(position - 1)]
            };
            slot = hash([before, position as u64, u64::from(token)]);
            self.slots.insert(address(position), slot);
        }
        slot
    }
}

impl Executor for FakeExecutor {
    fn max_in_flight(&self) -> usize {
        2
    }

    fn admit(&mut self, sequence: NewSequence) {
        let previous = self.seqs.insert(
            sequence.seq,
            Seq {
                new: sequence,
                blocks: Vec::new(),
                last_sampled: PENDING_TOKEN,
                is_lost: false,
            },
        );
        assert!(previous.is_none(), "a sequence was admitted twice");
        self.control.state.lock().unwrap().known = self.seqs.len();
    }

    fn release(&mut self, seq: SeqId) {
        self.seqs.remove(&seq);
        self.control.state.lock().unwrap().known = self.seqs.len();
    }

    fn submit(&mut self, plan: &StepPlan) -> Result<Ticket, ExecError> {
        let mut state = self.control.state.lock().unwrap();
        state.entered += 1;
        let number = state.entered;
        state.kv_writes += plan.num_tokens() as u64;
        let refused = state.refuse_next.take();
        state.most_in_flight = state.most_in_flight.max(self.steps.len() + 1);
        drop(state);
        self.control.changed.notify_all();
        if let Some(message) = refused {
            return Err(ExecError::Device(message));
        }
        let mut result = StepResult::default();
        for planned in &plan.seqs {
            if !self.seqs.contains_key(&planned.seq) {
                return Err(ExecError::UnknownSequence(planned.seq));
            }
            if self.seqs[&planned.seq].is_lost {
                let reason = "a step before lost it".to_owned();
                result.failed.push((planned.seq, reason));
                continue;
            }
            let slot = self.forward(plan, planned);
            let new = &self.seqs[&planned.seq].new;
            if let Some(k) = new.prompt_logprobs {
                result
                    .prompt_logprobs
                    .push((planned.seq, prompt_logprobs(new, planned, k)));
            }
            if planned.samples && new.sampling.seed == FAILING_SEED && planned.output_index >= 2 {
                let reason = "its logits are not numbers".to_owned();
                result.failed.push((planned.seq, reason));
                if let Some(seq) = self.seqs.get_mut(&planned.seq) {
                    seq.is_lost = true;
                }
            } else if planned.samples {
                let token = draw(slot, new.sampling.seed, planned.output_index);
                let logprobs = new.sampling.logprobs.map(|k| logprobs_of(token, k));
                if let Some(seq) = self.seqs.get_mut(&planned.seq) {
                    seq.last_sampled = token;
                }
                result.sampled.push(Sampled {
                    seq: planned.seq,
                    token,
                    logprobs,
                });
            }
        }
        self.steps.push_back((number, Ticket(plan.step), result));
        Ok(Ticket(plan.step))
    }

    fn sample(&mut self, ticket: Ticket) -> Result<StepResult, ExecError> {
        let (number, submitted, result) = self.steps.pop_front().expect("a step was submitted");
        assert_eq!(submitted, ticket, "results are taken in order");
        let state = self.control.state.lock().unwrap();
        let (mut state, _) = self
            .control
            .changed
            .wait_timeout_while(state, DEADLINE, |state| {
                state.allowed.is_some_and(|allowed| allowed < number)
            })
            .unwrap();
        let (fail, panic) = (state.fail_next.take(), std::mem::take(&mut state.panic_next));
        drop(state);
        assert!(!panic, "the test asked for a panic");
        match fail {
            Some(message) => Err(ExecError::Device(message)),
            None => Ok(result),
        }
    }

    fn warmup(&mut self, _: usize) -> Result<(), ExecError> {
        match self.control.state.lock().unwrap().fail_next.take() {
            Some(message) => Err(ExecError::Device(message)),
            None => Ok(()),
        }
    }
}

fn prompt_logprobs(new: &NewSequence, planned: &SeqPlan, k: u32) -> Vec<TokenLogprobs> {
    let first = planned.first_position as usize + 1;
    let end = (first + planned.tokens.len()).min(new.prompt.len());
    new.prompt
        .get(first..end)
        .unwrap_or_default()
        .iter()
        .map(|&token| logprobs_of(token, k))
        .collect()
}

/// Recognizable log probabilities.
pub fn logprobs_of(token: u32, k: u32) -> TokenLogprobs {
    let top = (0..k).map(|i| ((token + i) % VOCAB_SIZE, -(i as f32))).collect();
    TokenLogprobs {
        token,
        logprob: -(token as f32),
        rank: token + 1,
        top,
    }
}
