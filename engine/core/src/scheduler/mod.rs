//! Decides which sequences compute how many tokens in the next step, and which KV blocks they get.
//!
//! # Inputs and outputs
//!
//! Requests (token ids and limits), aborts, `now` (microseconds on the caller's clock) and the outcome of each step come in. A
//! [`StepPlan`] (input positions, at most `max_num_batched_tokens` of them, in at most `max_num_seqs` sequences, and the change of
//! each block table) and [`Event`]s go out. Memory is counted in blocks of `block_size` tokens.
//!
//! # The policy, and why
//!
//! There are no phases. Each sequence has tokens (prompt and output so far) and a count of those whose KV is computed; a step hands out
//! positions until the budget is used up (S1). A decode wants one position, a prompt many; both draw from one budget, so a step is
//! never longer than the budget allows and the time between two tokens of a running sequence is bounded.
//!
//! 1. **Running before waiting** (S2, `running.rs`). A sequence that streams to a client keeps its pace; prompts take what is left of the
//!    budget in chunks. The obvious other policy, whole prompts first, gives a better time to first token and stalls every stream.
//! 2. **Admission reserves the whole sequence** (S13, `admit.rs`): a waiting sequence starts only if all of its tokens fit in the
//!    free blocks now, though blocks are given out chunk by chunk. Admission by chunk starts more and then preempts them.
//! 3. **Preemption by recompute** (S6, S16, `preempt.rs`): when a running sequence can't get a block, the one that started last gives
//!    all of its blocks back and waits at the front of the queue, with its output. Surviving cached blocks spare most of the work. Nothing
//!    is admitted in that step (S7), or the blocks just freed would go to a sequence that will be preempted next.
//!    (In arrival order the head was preempted just now and can't fit: S7 matters to policies that let others pass it.)
//! 4. **Prefix caching by full blocks** (S11, `block/`): a sequence starts behind the longest run of cached blocks of its tokens, but
//!    always computes at least one position, since the cache holds KV and not logits: `min(shared, tokens - 1) / block_size` blocks.
//!    A block can be found from the moment the step that wrote its last position has *completed*. Sharing within a step would depend
//!    on the executor's order of writes; the price is that two equal prompts that start in one step are both computed (B7).
//!
//! # Nothing waits for ever
//!
//! vLLM queues a request that is larger than the pool, and it blocks all that follow it (vllm#39734, vllm#35541). Here [`Scheduler::submit`]
//! refuses a prompt that the pool can't hold and says what it can. A sequence whose *output* outgrows the pool is no reason to refuse it:
//! its `max_tokens` is clipped so that it ends with [`FinishReason::Length`](crate::FinishReason::Length) when it has filled the pool. The last token of a sequence is sampled but
//! never computed, so a pool of `u` usable blocks holds sequences of `u * block_size + 1` tokens, if all layers attend to everything
//! (`layout.rs` has the general case). The clip depends on the configuration alone,
//! so a sequence gives the same output whether it ran alone or not. It follows that the first sequence of the running set always gets its
//! blocks, by preempting the others if need be, and that the first of the queue is admitted when nothing runs: every
//! step makes progress, and every sequence ends within `max_tokens`.
//!
//! # KV groups
//!
//! Layers that attend to a window need less than those that attend to everything, so a model's layers are divided into [`KvGroup`]s. Each has a
//! block table per sequence; all draw from one pool and are granted blocks together or not at all. A block holds `block_size` tokens of one
//! group, and groups are taken to be equally large (in bytes per token): whoever divides the layers sees to that. In a group with a window:
//!
//! - Blocks that lie wholly behind the window of the next position are free when the step that passed them completes (`complete.rs`), and the
//!   null block takes their place. Steps in flight begin behind them, so nothing is parked; their content can still be found.
//! - A cached prefix needs only the blocks that the window reaches from its end. The hit is the longest one that serves every group (`lookup.rs`).
//! - A sequence needs at most the blocks that one step touches, however long it is: that is what admission and the limit at submit count
//!   (`layout.rs`).
//!
//! With one group of full attention nothing of this shows.
//!
//! # Invariants
//!
//! [`Scheduler::check`] verifies 1 to 7 between calls; property tests and the search call it after every action and hold the others.
//!
//! 1. A block's reference count is the number of handles in block tables and parked in steps.
//! 2. The free queue holds exactly the blocks without references, once each; never the null block.
//! 3. Every findable or shared block is full, complete, holds what its hash says, and is written by nobody.
//! 4. A block that is still written belongs to one sequence and can't be found.
//! 5. A sequence is in exactly one queue; waiting ones hold no blocks; at most `max_num_active_seqs` run.
//! 6. Every block table covers exactly the computed positions, but for those behind its group's window, which have the null block: no position is
//!    planned without a block behind it in every group.
//! 7. A step has at most `max_num_batched_tokens` positions and `max_num_seqs` sequences.
//! 8. No position is read before it is written (`laws.rs`: an executor that remembers what each slot holds).
//! 9. `schedule` returns false only when a step is in flight or every sequence is deferred (`laws.rs`).
//! 10. A sequence's output is the same alone, chunked, preempted and with a cached prefix (`laws.rs`).
//! 11. Equal inputs give equal plans and events (`laws.rs`).
//!
//! # Steps in flight
//!
//! Up to `max_in_flight` steps are planned before the oldest one completes, so that the device never waits for the host. A plan then has
//! [`PENDING_TOKEN`](crate::PENDING_TOKEN) where the input is a token that an earlier step is still sampling, and a sequence that turns out to have ended
//! has a part in the next step that is dropped. Two rules make that safe. Blocks that a step in flight touches are *parked* in the newest such
//! step when their sequence ends or is preempted, and are free when it completes (`preempt.rs`). And a sequence that needs blocks which are
//! parked, or are about to lie behind a window, waits for them instead of preempting others for nothing (`running.rs`). What a step samples for a sequence preempted meanwhile
//! is its next token all the same. So a sequence's tokens are those of a run with one step at a time, and no token is lost or sent twice
//! (vllm#47900, vllm#48245).
//!
//! # Policies
//!
//! Each is a module with its law at the top, switched by [`Policies`]: `queue.rs` (order of the queue), `ageing.rs` (passing a sequence
//! that doesn't fit, for a while), `reserve.rs` (hysteresis after preemption, watermark), `victim.rs` (who gives way), `seats.rs` (a higher class
//! displaces a lower one), `shares.rs` (weighted fair shares of tenants), `adapters.rs`, `deadline.rs`, `group.rs` (sequences of one
//! request share their prompt). [`Policies::vllm`] has all of them off, and the decisions are then those of a slow model written from the
//! rules (`tests/scheduler/reference.rs`). [`Policies::serve`] is for a server.
//!
//! # How it is checked
//!
//! Worked cases; laws over generated runs with any policies (`laws.rs`); the model of vLLM's rules; and a search of every order of
//! actions at small scope (`tests/search`), which also shows that no order goes round in circles, so that without new requests every run
//! ends. What went in can be recorded and replayed ([`Scheduler::record`]).
//!
//! # What it doesn't do
//!
//! It knows no text, no logits, no devices and no time of its own. It doesn't divide layers into groups: an executor that keeps all layers' KV
//! in one group is served with one. A step that fails ends its sequences; retrying is the caller's business.
//!
//! # Differences from vLLM
//!
//! - Oversized prompts are refused and oversized outputs clipped, as said above.
//! - A group of sequences is queued whole or not at all; the queue's limits count sequences and their prompt tokens.
//! - A stop token doesn't end a sequence before `min_tokens`, even if a sampler without a mask gives one.
//! - Cached content becomes findable when its step completes; vLLM lets a later request of the same step share it.
//! - Blocks behind a window are free when their step completes; vLLM frees them when the sequence is next scheduled.
//! - A step in which the only sequence that could run had to give way itself is not empty: the next one is planned in its place.
//! - Events about blocks tell of contents, not of copies: stored with the first block, removed with the last one.
//!
//! Sources: the document the project was founded on (scheduler and block pool parts), rules S1 to S21 and B1 to B9 of the engine research
//! (vLLM 0.32 `v1/core/sched/scheduler.py`), *Efficient Memory Management for Large Language Model Serving with PagedAttention* (2023),
//! *Orca* (2022) for batching between steps.

mod abort;
mod adapters;
mod admit;
mod ageing;
mod complete;
mod deadline;
mod group;
mod image;
mod layout;
mod lookup;
mod preempt;
mod queue;
mod reserve;
mod restore;
mod running;
mod seats;
mod shares;
mod stats;
mod step;
mod submit;
mod victim;

use std::collections::{BTreeSet, VecDeque};

pub use complete::CompleteError;
pub(crate) use layout::KvLayout;
pub(crate) use queue::QueueKey;
pub use stats::Stats;
pub(crate) use step::Step;
pub use submit::Reject;

use crate::arena::{Arena, Slot};
use crate::block::{BlockEventDetail, BlockEvents, BlockPool, CachedBlock};
use crate::config::{ConfigError, SchedulerConfig};
use crate::event::Event;
use crate::ids::{Micros, SeqId};
#[cfg(doc)]
use crate::kv_group::KvGroup;
use crate::plan::StepPlan;
use crate::policy::Policies;
use crate::trace::{Input, Recorder};
use adapters::Adapters;
use lookup::Hits;
use queue::WaitingQueue;
use shares::Shares;
use stats::Counters;
use step::Pass;

/// The scheduler of one data-parallel rank; see [the module](self) for what it decides and why.
#[derive(Debug)]
#[cfg_attr(feature = "model", derive(Clone))]
pub struct Scheduler {
    pub(crate) config: SchedulerConfig,
    pub(crate) policies: Policies,
    pub(crate) layout: KvLayout,
    pub(crate) pool: BlockPool,
    /// Every sequence that hasn't ended.
    pub(crate) seqs: Arena,
    /// In the order they started.
    pub(crate) running: Vec<Slot>,
    pub(crate) waiting: WaitingQueue,
    pub(crate) adapters: Adapters,
    pub(crate) shares: Shares,
    /// Of the sequences that have one.
    deadlines: BTreeSet<(Micros, SeqId)>,
    /// Planned and not completed, oldest first.
    pub(crate) in_flight: VecDeque<Step>,
    /// Buffers of retired steps.
    spare: Vec<Step>,
    hits: Hits,
    /// Whether a sequence gets room for all it may become when it starts, so that no step allocates.
    pub(crate) reserves_ahead: bool,
    pub(crate) next_seq: u64,
    next_step: u64,
    pub(crate) now: Micros,
    counters: Counters,
    pub(crate) recorder: Option<Recorder>,
}

impl Scheduler {
    /// An idle scheduler with an empty cache, and vLLM's rules.
    ///
    /// # Errors
    /// If the limits can't work, see [`SchedulerConfig::validate`].
    pub fn new(config: SchedulerConfig) -> Result<Self, ConfigError> {
        Self::with_policies(config, Policies::vllm())
    }

    /// An idle scheduler with an empty cache.
    ///
    /// # Errors
    /// If the limits or the policies can't work, see [`SchedulerConfig::validate`] and [`Policies::validate`].
    pub fn with_policies(config: SchedulerConfig, policies: Policies) -> Result<Self, ConfigError> {
        config.validate()?;
        policies.validate(&config)?;
        // Nobody has more than a few; a recording may say anything.
        let max_in_flight = policies.max_in_flight.min(64) as usize;
        let mut pool = BlockPool::new(config.num_blocks);
        pool.log().set_detail(policies.block_events);
        Ok(Self {
            layout: KvLayout::new(&config, &policies),
            pool,
            seqs: Arena::default(),
            // Each of them holds a block of its own.
            running: Vec::with_capacity(config.max_num_active_seqs.min(config.num_blocks) as usize),
            waiting: WaitingQueue::new(policies.fair_share),
            adapters: Adapters::default(),
            shares: Shares::new(policies.fair_share),
            deadlines: BTreeSet::new(),
            in_flight: VecDeque::with_capacity(max_in_flight),
            spare: Vec::with_capacity(max_in_flight),
            hits: Hits::default(),
            reserves_ahead: true,
            next_seq: 0,
            next_step: 0,
            now: Micros(0),
            counters: Counters::default(),
            recorder: None,
            config,
            policies,
        })
    }

    /// Plans the next step into `plan`, whose former content is dropped, and appends what happened to `events`.
    ///
    /// False, with an empty plan, if there is nothing to run: nothing can start, or as many steps as may be are in flight, or
    /// everything waits for one of them. After true, the plan's step must be given to [`Scheduler::complete`] or [`Scheduler::fail_step`].
    pub fn schedule(&mut self, now: Micros, plan: &mut StepPlan, events: &mut Vec<Event>) -> bool {
        self.note(|| Input::Schedule(now));
        plan.clear();
        self.advance_clock(now);
        self.pool.settle_slice();
        self.expire(events);
        if self.in_flight.len() >= self.policies.max_in_flight as usize {
            return false;
        }
        let mut step = self.spare.pop().unwrap_or_default();
        loop {
            let mut pass = Pass::new(self, &mut step, events);
            self.schedule_running(&mut pass);
            let Pass {
                preempted,
                waits_for_blocks,
                ..
            } = pass;
            if !preempted && !waits_for_blocks {
                self.admit_waiting(&mut pass);
            }
            // A pass in which somebody had to give way to himself may leave nothing to run; then the next one plans without him.
            if !step.work.is_empty() || !preempted {
                break;
            }
        }
        if step.work.is_empty() {
            self.spare.push(step);
            return false;
        }
        self.commit(step, plan);
        true
    }

    /// Forgets all cached content, if no block is in use. Says whether it did (rule S20).
    pub fn reset_prefix_cache(&mut self) -> bool {
        self.note(|| Input::ResetPrefixCache);
        self.pool.reset()
    }

    /// Fills `into`, whose former content is dropped, with how the content that can be found has changed since the last call. Costs nothing
    /// that grows with their number: buffers are exchanged.
    ///
    /// Events are kept until they are taken, so whoever turns them on with [`block_events`](Policies::block_events) or
    /// [`Scheduler::set_block_events`] takes them after every step.
    pub fn take_block_events(&mut self, into: &mut BlockEvents) {
        self.pool.log().take(into);
    }

    /// Records block events from now on, in this detail. What was recorded and not taken stays, but turning events off drops it.
    ///
    /// A reader that comes later begins with [`Scheduler::cached_blocks`].
    pub fn set_block_events(&mut self, detail: BlockEventDetail) {
        self.policies.block_events = detail;
        self.pool.log().set_detail(detail);
    }

    /// All content that can be found now, each once, in an order that depends on the inputs alone. Takes time for what is there, however large
    /// the pool.
    pub fn cached_blocks(&self) -> impl ExactSizeIterator<Item = CachedBlock> {
        self.pool.cached()
    }

    /// Entry `index` of [`Scheduler::cached_blocks`], for a reader that looks at a few of them between steps. When a content leaves, the last
    /// one takes its place, so whoever goes from the back to the front misses nothing but what is stored meanwhile, which events tell.
    pub fn cached_block(&self, index: usize) -> Option<CachedBlock> {
        self.pool.cached_at(index)
    }

    /// The largest piece of one sequence in this step. The threshold keeps long prompts from crowding out others, so it doesn't apply to a
    /// sequence that is alone (S4).
    fn max_chunk(&self) -> u32 {
        let num_eligible = self.running.len() + self.waiting.num_ready();
        match self.config.long_prefill_token_threshold {
            0 => u32::MAX,
            _ if num_eligible <= 1 => u32::MAX,
            threshold if self.policies.adaptive_prefill_threshold => {
                threshold.max(self.config.max_num_batched_tokens / num_eligible as u32)
            }
            threshold => threshold,
        }
    }

    /// The caller's clock may stand still; it never runs backwards here.
    fn advance_clock(&mut self, now: Micros) {
        self.now = self.now.max(now);
    }
}
