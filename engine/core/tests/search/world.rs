//! One state: a scheduler, an executor that remembers what each slot holds, and what is still to come.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};

use kvasir_engine_core::{
    BlockId, Event, KvGroup, Micros, Policies, Request, RequestOptions, Scheduler, SchedulerConfig, SeqId,
    StepId, StepOutcome, StepPlan, StopConditions, TokenId,
};

use crate::known::Known;

/// The token that ends a sequence.
pub(crate) const EOS: TokenId = 9;

/// What may happen within a scope.
#[derive(Clone)]
pub(crate) struct Scope {
    pub(crate) name: &'static str,
    pub(crate) config: SchedulerConfig,
    pub(crate) policies: Policies,
    /// Submitted in any order, each once. Several of them are one group.
    pub(crate) requests: Vec<(Vec<Request>, RequestOptions)>,
    pub(crate) may_abort: bool,
    pub(crate) may_fail: bool,
    /// Whether any sampled token may be the end of its sequence.
    pub(crate) may_end: bool,
    /// How often time passes, by one unit.
    pub(crate) num_ticks: u8,
}

/// One thing that can happen.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Action {
    Submit(usize),
    Abort(usize),
    Undefer(usize),
    /// Bit `i`: the `i`-th sequence that samples ends.
    Schedule {
        ends: u8,
    },
    Complete,
    Fail,
    Tick,
}

#[derive(Clone, Hash)]
struct Sequence {
    seq: SeqId,
    known: Known,
    is_over: bool,
}

#[derive(Clone)]
struct Started {
    step: StepId,
    sampled: Vec<(SeqId, TokenId)>,
    /// Blocks, up to which offset, and for whom.
    touched: Vec<(BlockId, u32, SeqId)>,
}

#[derive(Clone)]
pub(crate) struct World {
    scheduler: Scheduler,
    submitted: u8,
    seqs: Vec<Sequence>,
    /// Digest of each slot.
    memory: Vec<u64>,
    in_flight: VecDeque<Started>,
    clock: u8,
}

impl World {
    pub(crate) fn new(scope: &Scope) -> Self {
        let num_slots = scope.config.num_blocks * scope.config.block_size;
        Self {
            scheduler: Scheduler::with_policies(scope.config.clone(), scope.policies.clone())
                .expect("the scope's limits work"),
            submitted: 0,
            seqs: Vec::new(),
            memory: vec![0; num_slots as usize],
            in_flight: VecDeque::new(),
            clock: 0,
        }
    }

    pub(crate) fn actions(&self, scope: &Scope) -> Vec<Action> {
        let mut actions = Vec::new();
        for index in 0..scope.requests.len() {
            if self.submitted >> index & 1 == 0 {
                actions.push(Action::Submit(index));
            }
        }
        for index in (0..self.seqs.len()).filter(|&index| !self.seqs[index].is_over) {
            if scope.may_abort {
                actions.push(Action::Abort(index));
            }
            if scope
                .requests
                .iter()
                .any(|(_, options)| options.deferral.is_some())
            {
                actions.push(Action::Undefer(index));
            }
        }
        let num_running = self.seqs.iter().filter(|seq| !seq.is_over).count();
        let choices = if scope.may_end { 1 << num_running } else { 1 };
        actions.extend((0..choices).map(|ends| Action::Schedule { ends }));
        if !self.in_flight.is_empty() {
            actions.push(Action::Complete);
            if scope.may_fail {
                actions.push(Action::Fail);
            }
        }
        if self.clock < scope.num_ticks {
            actions.push(Action::Tick);
        }
        actions
    }

    /// Acts, and says whether anything changed. Panics where a law is broken.
    pub(crate) fn act(&mut self, action: Action, scope: &Scope) -> bool {
        let before = self.scheduler.fingerprint();
        let mut events = Vec::new();
        match action {
            Action::Submit(index) => self.submit(index, scope),
            Action::Abort(index) => self.scheduler.abort(self.seqs[index].seq, &mut events),
            Action::Undefer(index) => self.scheduler.undefer(self.seqs[index].seq),
            Action::Schedule { ends } => {
                let mut plan = StepPlan::new();
                let now = Micros(self.clock.into());
                if self.scheduler.schedule(now, &mut plan, &mut events) {
                    self.note(&events);
                    events.clear();
                    let num_sampled = plan.seqs.iter().filter(|seq| seq.samples).count();
                    if usize::from(ends) >= 1 << num_sampled {
                        // The same as without the bits that nobody reads.
                        return false;
                    }
                    self.execute(&plan, ends, scope);
                }
            }
            Action::Complete => {
                let Started { step, sampled, .. } = self.in_flight.pop_front().expect("a step is in flight");
                for (seq, _) in &sampled {
                    self.find(*seq).known.num_reported += 1;
                }
                self.scheduler
                    .complete(step, &StepOutcome { sampled }, &mut events)
                    .expect("the outcome is the step's");
            }
            Action::Fail => {
                let Started { step, .. } = self.in_flight.pop_front().expect("a step is in flight");
                self.scheduler.fail_step(step, &mut events);
            }
            Action::Tick => self.clock += 1,
        }
        self.note(&events);
        self.forget_free_blocks(scope);
        assert_eq!(self.scheduler.check(), Ok(()));
        matches!(action, Action::Tick | Action::Submit(_)) || self.scheduler.fingerprint() != before
    }

    fn submit(&mut self, index: usize, scope: &Scope) {
        let (group, options) = scope.requests[index].clone();
        self.submitted |= 1 << index;
        let prompts: Vec<_> = group.iter().map(|request| request.prompt.to_vec()).collect();
        let now = Micros(self.clock.into());
        let seqs = self
            .scheduler
            .submit_group_with(now, group, options)
            .expect("the scope's requests fit");
        let num_groups = scope.config.groups.len();
        self.seqs
            .extend(seqs.into_iter().zip(prompts).map(|(seq, prompt)| Sequence {
                seq,
                known: Known::new(1, &prompt, num_groups),
                is_over: false,
            }));
    }

    fn find(&mut self, seq: SeqId) -> &mut Sequence {
        self.seqs
            .iter_mut()
            .find(|other| other.seq == seq)
            .expect("it was submitted")
    }

    fn note(&mut self, events: &[Event]) {
        for event in events {
            match *event {
                Event::Finished { seq, .. } => {
                    let ended = self.find(seq);
                    assert!(!ended.is_over, "{seq:?} ends twice");
                    ended.is_over = true;
                    ended.known.tables.iter_mut().for_each(Vec::clear);
                }
                Event::Token { seq, .. } | Event::Scheduled { seq, .. } | Event::Preempted { seq } => {
                    assert!(!self.find(seq).is_over, "{event:?} follows the end");
                }
            }
        }
    }

    /// Nobody can read them, so what they hold is no part of the state.
    fn forget_free_blocks(&mut self, scope: &Scope) {
        let size = scope.config.block_size as usize;
        for block in 0..scope.config.num_blocks {
            if self.scheduler.block_state(BlockId(block)) == (0, false) {
                self.memory[block as usize * size..][..size].fill(0);
            }
        }
    }

    fn copy(&mut self, plan: &StepPlan, scope: &Scope) {
        let slot = |block: BlockId, offset: u32| (block.0 * scope.config.block_size + offset) as usize;
        let copied: Vec<_> = plan
            .copies
            .iter()
            .flat_map(|copy| (0..copy.num_positions).map(|at| (slot(copy.to, at), slot(copy.from, at))))
            .map(|(to, from)| (to, self.memory[from]))
            .collect();
        for (to, digest) in copied {
            self.memory[to] = digest;
        }
    }

    /// What an earlier step in flight touches for one sequence isn't written by a later one for another.
    fn assert_unused(&self, block: BlockId, offset: u32, writer: SeqId) {
        let mut touched = self.in_flight.iter().flat_map(|step| &step.touched);
        let user = touched.find(|&&(used, end, user)| used == block && offset < end && user != writer);
        assert_eq!(user, None, "{writer:?} writes to a block in use");
    }

    fn execute(&mut self, plan: &StepPlan, ends: u8, scope: &Scope) {
        self.copy(plan, scope);
        let size = scope.config.block_size;
        let slot = |block: BlockId, offset: u32| (block.0 * size + offset) as usize;
        let mut started = Started {
            step: plan.step,
            sampled: Vec::new(),
            touched: plan
                .copies
                .iter()
                .map(|copy| (copy.from, copy.num_positions, copy.seq))
                .collect(),
        };
        let mut writes: Vec<(usize, u64)> = Vec::new();
        for seq in &plan.seqs {
            let known = &mut self.find(seq.seq).known;
            let digests = known.follow(seq, plan);
            let known = known.clone();
            for ((salt, table), group) in (0..).zip(&known.tables).zip(&scope.config.groups) {
                // What lies in front may be anybody's.
                let first_block = group.num_behind(seq.first_position, size);
                for (position, &digest) in (0_u32..).zip(&digests).skip((first_block * size) as usize) {
                    let digest = digest ^ salt;
                    let block = table[(position / size) as usize];
                    assert_ne!(block, BlockId(0), "{:?} needs what was dropped", seq.seq);
                    let at = slot(block, position % size);
                    if position >= seq.first_position {
                        self.assert_unused(block, position % size, seq.seq);
                        assert!(
                            writes.iter().all(|&(other, _)| other != at),
                            "two writers of a slot"
                        );
                        writes.push((at, digest));
                    } else if is_read(*group, position, seq.first_position) {
                        assert_eq!(self.memory[at], digest, "{:?} reads what isn't its own", seq.seq);
                    }
                }
                let used = &table[first_block as usize..];
                started
                    .touched
                    .extend(used.iter().map(|&block| (block, u32::MAX, seq.seq)));
            }
            if seq.samples {
                let is_end = ends >> started.sampled.len() & 1 == 1;
                let token = if is_end {
                    EOS
                } else {
                    (digests[digests.len() - 1] % 2) as u32
                };
                self.find(seq.seq).known.tokens.push(token);
                started.sampled.push((seq.seq, token));
            }
        }
        for (at, digest) in writes {
            self.memory[at] = digest;
        }
        self.in_flight.push_back(started);
    }

    /// Whether every sequence has ended.
    pub(crate) fn is_over(&self) -> bool {
        self.seqs.iter().all(|seq| seq.is_over) && self.in_flight.is_empty()
    }

    pub(crate) fn fingerprint(&self) -> u128 {
        let mut hasher = DefaultHasher::new();
        (self.submitted, self.clock, &self.memory).hash(&mut hasher);
        for seq in self.seqs.iter().filter(|seq| !seq.is_over) {
            seq.hash(&mut hasher);
        }
        for started in &self.in_flight {
            (&started.sampled, &started.touched).hash(&mut hasher);
        }
        self.scheduler.fingerprint().rotate_left(17) ^ u128::from(hasher.finish())
    }
}

/// Whether a step that begins at `first` reads an earlier position in a group.
fn is_read(group: KvGroup, position: u32, first: u32) -> bool {
    match group {
        KvGroup::Full => true,
        KvGroup::Window { positions } => position + positions > first,
    }
}

/// A request of a scope.
pub(crate) fn request(prompt: &[TokenId], max_tokens: u32, priority: i64) -> Request {
    Request {
        prompt: prompt.into(),
        stop: StopConditions {
            max_tokens,
            eos_token_ids: vec![EOS],
            ..StopConditions::default()
        },
        priority,
        cache_root: kvasir_cache_key::CacheRoot([0; 32]),
        reads_prefix_cache: true,
    }
}
