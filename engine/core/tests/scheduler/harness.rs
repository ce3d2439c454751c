//! An engine without a model: the scheduler, and an executor that remembers what each KV slot holds.
//!
//! The KV of a position is a digest of the cache root and of all tokens up to it, so a slot that was never written, or was written for another
//! sequence, is seen when it is read. A sampled token is a function of the digest, so the output of a sequence is known without running it.

use std::collections::{BTreeMap, VecDeque};

use kvasir_cache_key::CacheRoot;
use kvasir_engine_core::{
    BlockId, Event, FinishReason, GroupId, KvGroup, Micros, Policies, Reject, Request, RequestOptions,
    Scheduler, SchedulerConfig, SeqId, StepId, StepOutcome, StepPlan, StopConditions, TokenId,
};

use crate::known::{Known, extend_digest};

/// Sampled tokens are below it.
pub(crate) const VOCAB: u32 = 8;

/// More than any test takes; a scheduler that goes round in circles is noticed soon.
const MAX_STEPS: usize = 5_000;

/// Limits that bind nowhere, with blocks of four tokens.
pub(crate) fn roomy() -> SchedulerConfig {
    SchedulerConfig {
        max_num_batched_tokens: 1000,
        max_num_seqs: 64,
        max_num_active_seqs: 64,
        max_model_len: 1000,
        block_size: 4,
        num_blocks: 1001,
        groups: vec![KvGroup::Full],
        enable_prefix_caching: true,
        long_prefill_token_threshold: 0,
        max_num_queued_reqs: 1000,
        max_num_queued_tokens: 100_000,
    }
}

/// Ten usable blocks of sixteen tokens.
pub(crate) fn ten_blocks() -> SchedulerConfig {
    SchedulerConfig {
        block_size: 16,
        num_blocks: 11,
        ..roomy()
    }
}

/// A request that ends after `max_tokens` tokens and by nothing else.
pub(crate) fn request(prompt: impl IntoIterator<Item = TokenId>, max_tokens: u32) -> Request {
    Request {
        prompt: prompt.into_iter().collect(),
        stop: StopConditions {
            max_tokens,
            ..StopConditions::default()
        },
        priority: 0,
        cache_root: CacheRoot([0; 32]),
        reads_prefix_cache: true,
    }
}

fn root_digest(root: CacheRoot) -> u64 {
    root.0
        .iter()
        .fold(1, |digest, &byte| extend_digest(digest, u32::from(byte)))
}

/// The token sampled after a position.
fn sample(digest: u64) -> TokenId {
    (digest >> 40) as u32 % VOCAB
}

/// The most positions of one sequence that the pool can hold, found by trying: every group holds the whole sequence, or as many blocks as a
/// window and a step's positions can touch.
pub(crate) fn longest(config: &SchedulerConfig, policies: &Policies) -> u32 {
    let size = config.block_size;
    let input = config.max_num_batched_tokens - policies.draft_slots;
    let budget = policies
        .max_num_scheduled_tokens
        .map_or(input, |budget| budget.min(input));
    let held = |group: &KvGroup, len: u32| match *group {
        KvGroup::Full => len.div_ceil(size),
        KvGroup::Window { positions } => {
            let chunk = len.min(budget);
            let touched = positions - 1 + chunk;
            // The worst place to begin is the last position of a block.
            len.div_ceil(size).min(1 + (touched - 1).div_ceil(size))
        }
    };
    let needed = |len: u32| config.groups.iter().map(|group| held(group, len)).sum::<u32>();
    (1..=config.max_model_len)
        .take_while(|&len| needed(len) < config.num_blocks)
        .last()
        .expect("one position fits")
}

/// What a request generates when nothing interferes, with the reason of its end.
pub(crate) fn expected_output(request: &Request, config: &SchedulerConfig) -> (Vec<TokenId>, FinishReason) {
    expected_output_with(request, config, &Policies::vllm())
}

/// The same under any policies: they bound what a step computes, and with that what a window group holds.
pub(crate) fn expected_output_with(
    request: &Request,
    config: &SchedulerConfig,
    policies: &Policies,
) -> (Vec<TokenId>, FinishReason) {
    let mut digest = request
        .prompt
        .iter()
        .fold(root_digest(request.cache_root), |d, &token| {
            extend_digest(d, token)
        });
    let room = config.max_model_len.min(longest(config, policies) + 1) as usize - request.prompt.len();
    let mut output = Vec::new();
    loop {
        let token = sample(digest);
        digest = extend_digest(digest, token);
        output.push(token);
        if output.len() >= request.stop.min_tokens as usize {
            if request.stop.eos_token_ids.contains(&token) {
                return (output, FinishReason::Eos);
            }
            if request.stop.stop_token_ids.contains(&token) {
                return (output, FinishReason::StopToken(token));
            }
        }
        if output.len() >= room.min(request.stop.max_tokens as usize) {
            return (output, FinishReason::Length);
        }
    }
}

/// Scheduler and executor, with everything that happened.
pub(crate) struct Engine {
    pub(crate) config: SchedulerConfig,
    pub(crate) policies: Policies,
    pub(crate) scheduler: Scheduler,
    pub(crate) plan: StepPlan,
    pub(crate) events: Vec<Event>,
    /// Every plan so far.
    pub(crate) plans: Vec<StepPlan>,
    /// How many events there were with each of them.
    pub(crate) events_at_plan: Vec<usize>,
    pub(crate) clock: u64,
    known: BTreeMap<SeqId, Known>,
    /// Digest per block and offset.
    slots: BTreeMap<(BlockId, u32), u64>,
    in_flight: VecDeque<Started>,
}

/// A step that was run and not reported.
struct Started {
    step: StepId,
    outcome: StepOutcome,
    /// Every block that it reads or writes, up to which offset, and for whom.
    touched: Vec<(BlockId, u32, SeqId)>,
}

impl Engine {
    pub(crate) fn new(config: SchedulerConfig) -> Self {
        Self::with_policies(config, Policies::vllm())
    }

    pub(crate) fn with_policies(config: SchedulerConfig, policies: Policies) -> Self {
        Self {
            scheduler: Scheduler::with_policies(config.clone(), policies.clone()).expect("the limits work"),
            config,
            policies,
            plan: StepPlan::new(),
            events: Vec::new(),
            plans: Vec::new(),
            events_at_plan: Vec::new(),
            clock: 0,
            known: BTreeMap::new(),
            slots: BTreeMap::new(),
            in_flight: VecDeque::new(),
        }
    }

    #[expect(clippy::needless_pass_by_value, reason = "tests build a request in the call")]
    pub(crate) fn submit(&mut self, request: Request) -> SeqId {
        self.try_submit(&request).expect("the request is taken")
    }

    pub(crate) fn try_submit(&mut self, request: &Request) -> Result<SeqId, Reject> {
        let id = self.scheduler.submit(Micros(self.clock), request.clone())?;
        self.learn(id, request);
        Ok(id)
    }

    #[expect(clippy::needless_pass_by_value, reason = "tests build a request in the call")]
    pub(crate) fn submit_with(&mut self, request: Request, options: RequestOptions) -> SeqId {
        self.try_submit_with(&request, options)
            .expect("the request is taken")
    }

    pub(crate) fn try_submit_with(
        &mut self,
        request: &Request,
        options: RequestOptions,
    ) -> Result<SeqId, Reject> {
        let now = Micros(self.clock);
        let id = self.scheduler.submit_with(now, request.clone(), options)?;
        self.learn(id, request);
        Ok(id)
    }

    pub(crate) fn try_submit_group(&mut self, requests: &[Request]) -> Result<Vec<SeqId>, Reject> {
        let ids = self
            .scheduler
            .submit_group(Micros(self.clock), requests.to_vec())?;
        for (&id, request) in ids.iter().zip(requests) {
            self.learn(id, request);
        }
        Ok(ids)
    }

    fn learn(&mut self, id: SeqId, request: &Request) {
        let root = root_digest(request.cache_root);
        let known = Known::new(root, &request.prompt, self.config.groups.len());
        assert!(self.known.insert(id, known).is_none(), "{id:?} was given twice");
    }

    /// Plans a step and runs it, so that its outcome is ready. Says whether there was one; a scheduler that makes no progress fails.
    pub(crate) fn start(&mut self) -> bool {
        self.clock += 1000;
        if !self
            .scheduler
            .schedule(Micros(self.clock), &mut self.plan, &mut self.events)
        {
            assert_eq!(self.plan.num_tokens(), 0, "a plan without a step is empty");
            return false;
        }
        self.assert_within_limits();
        assert!(self.plans.len() < MAX_STEPS, "the engine makes no progress");
        self.plans.push(self.plan.clone());
        self.events_at_plan.push(self.events.len());
        let started = self.execute();
        self.in_flight.push_back(started);
        true
    }

    /// Completes the oldest step that was started.
    pub(crate) fn finish(&mut self) {
        let Started { step, outcome, .. } = self.in_flight.pop_front().expect("a step was started");
        self.scheduler
            .complete(step, &outcome, &mut self.events)
            .expect("the outcome belongs to the plan");
        for (id, _) in &outcome.sampled {
            self.known
                .get_mut(id)
                .expect("sampled sequences are known")
                .num_reported += 1;
        }
    }

    /// Fails the oldest step that was started.
    pub(crate) fn fail(&mut self) {
        let Started { step, .. } = self.in_flight.pop_front().expect("a step was started");
        self.scheduler.fail_step(step, &mut self.events);
    }

    pub(crate) fn is_step_in_flight(&self) -> bool {
        !self.in_flight.is_empty()
    }

    /// What the oldest step in flight sampled.
    pub(crate) fn sampled(&self) -> Vec<(SeqId, TokenId)> {
        self.in_flight
            .front()
            .map(|started| started.outcome.sampled.clone())
            .unwrap_or_default()
    }

    pub(crate) fn num_in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// One whole step. Says whether there was one.
    pub(crate) fn step(&mut self) -> bool {
        let started = self.start();
        if started {
            self.finish();
            self.check();
        }
        started
    }

    /// Keeps as many steps in flight as the scheduler takes, and runs until nothing is left.
    pub(crate) fn run_ahead(&mut self) {
        loop {
            while self.start() {
                self.check();
            }
            if self.in_flight.is_empty() {
                return;
            }
            self.finish();
            self.check();
        }
    }

    /// Runs until nothing is left.
    pub(crate) fn run(&mut self) {
        while self.step() {}
    }

    pub(crate) fn abort(&mut self, id: SeqId) {
        self.scheduler.abort(id, &mut self.events);
    }

    pub(crate) fn check(&self) {
        assert_eq!(self.scheduler.check(), Ok(()));
    }

    /// Sequence and number of positions for each part of the last plan.
    pub(crate) fn shares(&self) -> Vec<(SeqId, usize)> {
        self.plan
            .seqs
            .iter()
            .map(|seq| (seq.seq, seq.tokens.len()))
            .collect()
    }

    /// The blocks of a sequence in the first group, as its plans told them.
    pub(crate) fn table(&self, id: SeqId) -> Vec<BlockId> {
        self.known[&id].tables[0].clone()
    }

    /// Output tokens reported for a sequence.
    pub(crate) fn output(&self, id: SeqId) -> Vec<TokenId> {
        let tokens = self.events.iter().filter_map(|event| match event {
            Event::Token { seq, token } if *seq == id => Some(*token),
            _ => None,
        });
        tokens.collect()
    }

    /// Why a sequence ended, if it has; it ends once, and nothing follows.
    pub(crate) fn finish_reason(&self, id: SeqId) -> Option<FinishReason> {
        let mut reason = None;
        for event in &self.events {
            let (seq, ended) = match *event {
                Event::Finished { seq, reason } => (seq, Some(reason)),
                Event::Scheduled { seq, .. } | Event::Preempted { seq } | Event::Token { seq, .. } => {
                    (seq, None)
                }
            };
            if seq == id {
                assert_eq!(reason, None, "{event:?} follows the end of {id:?}");
                reason = ended;
            }
        }
        reason
    }

    /// Cached tokens of each time a sequence was scheduled.
    pub(crate) fn cached_tokens(&self, id: SeqId) -> Vec<u32> {
        let cached = self.events.iter().filter_map(|event| match event {
            Event::Scheduled {
                seq, cached_tokens, ..
            } if *seq == id => Some(*cached_tokens),
            _ => None,
        });
        cached.collect()
    }

    pub(crate) fn num_used_blocks(&self) -> u32 {
        let stats = self.scheduler.stats();
        stats.num_usable_blocks - stats.num_free_blocks
    }

    fn assert_within_limits(&self) {
        let (plan, config) = (&self.plan, &self.config);
        assert!(
            plan.num_tokens() <= config.max_num_batched_tokens as usize,
            "the token budget is exceeded"
        );
        assert!(
            plan.seqs.len() <= config.max_num_seqs as usize,
            "too many sequences in a step"
        );
        assert!(
            self.scheduler.stats().num_running <= config.max_num_active_seqs,
            "too many sequences run"
        );
        let mut next_token = 0;
        let mut next_block = 0;
        for seq in &plan.seqs {
            assert!(!seq.tokens.is_empty(), "a sequence without work is in the plan");
            assert_eq!(
                (seq.tokens.start, seq.blocks.start),
                (next_token, next_block),
                "ranges must not overlap or leave gaps"
            );
            (next_token, next_block) = (seq.tokens.end, seq.blocks.end);
        }
        assert_eq!((next_token, next_block), (plan.tokens.len(), plan.blocks.len()));
    }

    fn copy(&mut self) {
        let copies = self.plan.copies.iter().flat_map(|copy| {
            let offsets = 0..copy.num_positions;
            offsets.map(|offset| ((copy.to, offset), self.slots[&(copy.from, offset)]))
        });
        let copied: Vec<_> = copies.collect();
        self.slots.extend(copied);
    }

    /// Copies come first. Then all reads see the state before the step, and then all writes happen: sharing within a step would be caught.
    fn execute(&mut self) -> Started {
        self.copy();
        let mut touched: Vec<_> = self
            .plan
            .copies
            .iter()
            .map(|copy| (copy.from, copy.num_positions, copy.seq))
            .collect();
        let mut writes = Vec::new();
        let mut sampled = Vec::new();
        for seq in &self.plan.seqs {
            let known = self
                .known
                .get_mut(&seq.seq)
                .expect("only submitted sequences are planned");
            let digests = known.follow(seq, &self.plan);
            let first = seq.first_position;
            for (group, &kind) in (0..).map(GroupId).zip(&self.config.groups) {
                for (position, digest) in (0..).zip(&digests).skip(first_read(kind, first) as usize) {
                    let slot = slot(known, group, position, &self.config);
                    let digest = mark(*digest, group);
                    if position < first {
                        assert_eq!(
                            self.slots.get(&slot),
                            Some(&digest),
                            "{:?} reads position {position} of {group:?}, which holds something else",
                            seq.seq
                        );
                    } else {
                        writes.push((slot, digest));
                        assert_unused(&self.in_flight, slot, seq.seq);
                    }
                }
                let first_block = kind.num_behind(first, self.config.block_size);
                let used = &known.tables[usize::from(group.0)][first_block as usize..];
                touched.extend(used.iter().map(|&block| (block, u32::MAX, seq.seq)));
            }
            if seq.samples {
                let token = sample(digests[digests.len() - 1]);
                known.tokens.push(token);
                sampled.push((seq.seq, token));
            }
        }
        let num_writes = writes.len();
        let step: BTreeMap<_, _> = writes.into_iter().collect();
        assert_eq!(step.len(), num_writes, "two sequences write to one slot");
        self.slots.extend(step);
        Started {
            step: self.plan.step,
            outcome: StepOutcome { sampled },
            touched,
        }
    }
}

/// What a step in flight touches for one sequence isn't written by a later step for another one.
fn assert_unused(in_flight: &VecDeque<Started>, (block, offset): (BlockId, u32), writer: SeqId) {
    for started in in_flight {
        let user = started
            .touched
            .iter()
            .find(|&&(used, end, user)| used == block && offset < end && user != writer);
        assert_eq!(
            user, None,
            "{writer:?} writes to what {:?} still uses",
            started.step
        );
    }
}

/// Where a position's KV lies; not asked for what lies behind a window.
fn slot(known: &Known, group: GroupId, position: u32, config: &SchedulerConfig) -> (BlockId, u32) {
    let table = &known.tables[usize::from(group.0)];
    let block = table[(position / config.block_size) as usize];
    assert!(
        block.0 > 0 && block.0 < config.num_blocks,
        "{block:?} is not a block of the pool"
    );
    (block, position % config.block_size)
}

/// The first position that a step beginning at `first` reads.
fn first_read(group: KvGroup, first: u32) -> u32 {
    match group {
        KvGroup::Full => 0,
        KvGroup::Window { positions } => (first + 1).saturating_sub(positions),
    }
}

/// KV of another group is other KV.
fn mark(digest: u64, group: GroupId) -> u64 {
    digest ^ u64::from(group.0)
}
