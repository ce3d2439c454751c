//! vLLM's rules as a slow model written from S1 to S21 and B1 to B8: lists that are searched, content as whole prefixes.
//!
//! With all policies off, the scheduler's plans equal the model's: who, from which position, how many, which blocks. The model follows the
//! differences that the scheduler's module doc lists (content is findable when its step completes, and what lies behind a window is free then; an
//! output is clipped to the pool).

use std::collections::VecDeque;

use kvasir_engine_core::{KvGroup, Order, Policies, Request, SchedulerConfig, SeqId, TokenId};

use crate::harness::longest;

/// One sequence's part of a step, comparable with a plan's.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Part {
    pub(crate) seq: SeqId,
    pub(crate) first_position: u32,
    pub(crate) num_tokens: u32,
    pub(crate) new_blocks: Vec<u32>,
    pub(crate) samples: bool,
}

struct Sequence {
    id: SeqId,
    place: (i64, u64, SeqId),
    prompt_len: usize,
    max_tokens: usize,
    tokens: Vec<TokenId>,
    root: [u8; 32],
    reads_cache: bool,
    num_computed: usize,
    /// One for each KV group; 0 for what was dropped.
    tables: Vec<Vec<u32>>,
}

/// Content of a full block: the KV of a group for everything from the sequence's start to the block's end.
type Content = (usize, [u8; 32], Vec<TokenId>);

pub(crate) struct Reference {
    config: SchedulerConfig,
    policies: Policies,
    waiting: VecDeque<Sequence>,
    running: Vec<Sequence>,
    free: VecDeque<u32>,
    num_refs: Vec<u32>,
    /// In the order of their storing.
    content: Vec<(Content, u32)>,
    /// Sequence, end of what is written, whether it samples.
    step: Vec<(SeqId, usize, bool)>,
    /// Blocks of sequences that were aborted while their step runs.
    parked: Vec<u32>,
    pub(crate) num_preemptions: u64,
}

impl Reference {
    pub(crate) fn new(config: SchedulerConfig, policies: Policies) -> Self {
        Self {
            free: (1..config.num_blocks).collect(),
            num_refs: vec![0; config.num_blocks as usize],
            config,
            policies,
            waiting: VecDeque::new(),
            running: Vec::new(),
            content: Vec::new(),
            step: Vec::new(),
            parked: Vec::new(),
            num_preemptions: 0,
        }
    }

    pub(crate) fn submit(&mut self, id: SeqId, arrival: u64, request: &Request) {
        let prompt_len = request.prompt.len();
        let fits = longest(&self.config, &self.policies) + 1;
        let room = self.config.max_model_len.min(fits) as usize - prompt_len;
        self.queue(Sequence {
            id,
            place: (request.priority, arrival, id),
            prompt_len,
            max_tokens: room.min(request.stop.max_tokens as usize),
            tokens: request.prompt.to_vec(),
            root: request.cache_root.0,
            reads_cache: request.reads_prefix_cache,
            num_computed: 0,
            tables: vec![Vec::new(); self.config.groups.len()],
        });
    }

    fn is_by_priority(&self) -> bool {
        self.policies.order == Order::Priority
    }

    /// S15.
    fn queue(&mut self, seq: Sequence) {
        self.waiting.push_back(seq);
        if self.is_by_priority() {
            self.waiting.make_contiguous().sort_by_key(|seq| seq.place);
        }
    }

    pub(crate) fn abort(&mut self, id: SeqId) {
        self.waiting.retain(|seq| seq.id != id);
        let Some(at) = self.running.iter().position(|seq| seq.id == id) else {
            return;
        };
        let seq = self.running.remove(at);
        if self.step.iter().any(|&(named, ..)| named == id) {
            self.parked.extend(seq.tables.concat());
        } else {
            seq.tables.into_iter().for_each(|table| self.release(table));
        }
    }

    /// B8. The null block has no references.
    fn release(&mut self, table: Vec<u32>) {
        for block in table.into_iter().rev().filter(|&block| block > 0) {
            self.num_refs[block as usize] -= 1;
            if self.num_refs[block as usize] == 0 {
                if self.content.iter().any(|&(_, holder)| holder == block) {
                    self.free.push_back(block);
                } else {
                    self.free.push_front(block);
                }
            }
        }
    }

    fn allocate(&mut self, count: usize) -> Option<Vec<u32>> {
        if count > self.free.len() {
            return None;
        }
        let blocks: Vec<u32> = self.free.drain(..count).collect();
        self.content.retain(|(_, holder)| !blocks.contains(holder));
        for &block in &blocks {
            self.num_refs[block as usize] = 1;
        }
        Some(blocks)
    }

    /// The next step that isn't empty.
    pub(crate) fn schedule(&mut self) -> Vec<Part> {
        loop {
            let before = self.num_preemptions;
            let parts = self.try_step();
            if !parts.is_empty() || self.num_preemptions == before {
                return parts;
            }
        }
    }

    fn try_step(&mut self) -> Vec<Part> {
        let mut parts: Vec<Part> = Vec::new();
        let mut input = self.config.max_num_batched_tokens as usize;
        let mut budget = self
            .policies
            .max_num_scheduled_tokens
            .map_or(input, |tokens| tokens as usize);
        let drafts = self.policies.draft_slots as usize;
        let size = self.config.block_size as usize;
        let before = self.num_preemptions;
        // S2.
        let frozen = (self.running.len(), self.waiting.len());
        let mut index = 0;
        while index < self.running.len() {
            let want = self.running[index].tokens.len() - self.running[index].num_computed;
            let count = self.chunk(frozen, want, budget, input);
            if count == 0 {
                index += 1;
                continue;
            }
            let id = self.running[index].id;
            let needed = (self.running[index].num_computed + count).div_ceil(size)
                - self.running[index].tables[0].len();
            let needed = needed * self.config.groups.len();
            let mut left = (budget, input);
            let Some(new_blocks) = self.make_room(id, needed, &mut parts, &mut left) else {
                break;
            };
            (budget, input) = left;
            index = self
                .running
                .iter()
                .position(|seq| seq.id == id)
                .expect("it wasn't the victim")
                + 1;
            budget -= count;
            input -= count + drafts;
            parts.push(self.advance(index - 1, count, new_blocks));
        }
        // S7.
        if self.num_preemptions == before {
            self.admit(&mut parts, frozen, budget, input);
        }
        self.step = parts
            .iter()
            .map(|part| {
                (
                    part.seq,
                    (part.first_position + part.num_tokens) as usize,
                    part.samples,
                )
            })
            .collect();
        parts
    }

    /// S6: blocks for a running sequence, or `None` if it had to give way itself.
    fn make_room(
        &mut self,
        id: SeqId,
        needed: usize,
        parts: &mut Vec<Part>,
        (budget, input): &mut (usize, usize),
    ) -> Option<Vec<u32>> {
        loop {
            if let Some(blocks) = self.allocate(needed) {
                return Some(blocks);
            }
            let last = self.running.len() - 1;
            let worst = (0..=last).max_by_key(|&at| self.running[at].place);
            let victim = if self.is_by_priority() { worst } else { None };
            let victim = self.preempt(victim.unwrap_or(last));
            if let Some(at) = parts.iter().position(|part| part.seq == victim) {
                let given_back = parts.remove(at).num_tokens as usize;
                *budget += given_back;
                *input += given_back + self.policies.draft_slots as usize;
            }
            if victim == id {
                return None;
            }
        }
    }

    /// S4 and S3. The requests are counted once, before anything is planned.
    fn chunk(&self, (running, waiting): (usize, usize), want: usize, budget: usize, input: usize) -> usize {
        let eligible = running + waiting;
        let mut threshold = self.config.long_prefill_token_threshold as usize;
        if threshold > 0 && self.policies.adaptive_prefill_threshold {
            threshold = threshold.max(self.config.max_num_batched_tokens as usize / eligible);
        }
        let capped = if threshold > 0 && eligible > 1 {
            want.min(threshold)
        } else {
            want
        };
        capped
            .min(budget)
            .min(input.saturating_sub(self.policies.draft_slots as usize))
    }

    fn advance(&mut self, index: usize, count: usize, new_blocks: Vec<u32>) -> Part {
        let seq = &mut self.running[index];
        let first_position = seq.num_computed as u32;
        seq.num_computed += count;
        let num_groups = seq.tables.len();
        for (group, table) in seq.tables.iter_mut().enumerate() {
            let len = new_blocks.len() / num_groups;
            table.extend(&new_blocks[group * len..(group + 1) * len]);
        }
        Part {
            seq: seq.id,
            first_position,
            num_tokens: count as u32,
            new_blocks,
            samples: seq.num_computed == seq.tokens.len(),
        }
    }

    /// S16.
    fn preempt(&mut self, index: usize) -> SeqId {
        let mut seq = self.running.remove(index);
        for table in &mut seq.tables {
            let table = std::mem::take(table);
            self.release(table);
        }
        seq.num_computed = 0;
        self.num_preemptions += 1;
        let id = seq.id;
        if self.is_by_priority() {
            self.queue(seq);
        } else {
            self.waiting.push_front(seq);
        }
        id
    }

    /// S8 to S14.
    fn admit(&mut self, parts: &mut Vec<Part>, frozen: (usize, usize), mut budget: usize, mut input: usize) {
        let size = self.config.block_size as usize;
        let drafts = self.policies.draft_slots as usize;
        while budget > 0 && input > drafts && self.running.len() < self.config.max_num_active_seqs as usize {
            let Some(head) = self.waiting.front() else { return };
            let hit = self.find(head);
            let watermark = if self.running.is_empty() {
                0
            } else {
                self.policies.watermark as usize
            };
            if self.num_needed(head, &hit) + watermark > self.free.len() {
                return;
            }
            let mut seq = self.waiting.pop_front().expect("it was looked at");
            for &block in hit.iter().flatten().filter(|&&block| block > 0) {
                self.free.retain(|&free| free != block);
                self.num_refs[block as usize] += 1;
            }
            seq.num_computed = hit[0].len() * size;
            let count = self.chunk(frozen, seq.tokens.len() - seq.num_computed, budget, input);
            let needed = (seq.num_computed + count).div_ceil(size) - hit[0].len();
            let new_blocks = self
                .allocate(needed * hit.len())
                .expect("the whole sequence fits");
            seq.tables.clone_from(&hit);
            self.running.push(seq);
            let mut part = self.advance(self.running.len() - 1, count, new_blocks);
            part.new_blocks = self.running[self.running.len() - 1].tables.concat();
            parts.push(part);
            budget -= count;
            input -= count + drafts;
        }
    }

    /// S13 for every group: what is left to compute, and what is found but free; a window needs no more than the longest step touches.
    fn num_needed(&self, seq: &Sequence, hit: &[Vec<u32>]) -> usize {
        let size = self.config.block_size as usize;
        let input = self.config.max_num_batched_tokens - self.policies.draft_slots;
        let budget = input.min(self.policies.max_num_scheduled_tokens.unwrap_or(u32::MAX)) as usize;
        let needed = self.config.groups.iter().zip(hit).map(|(group, hit)| {
            let num_free = hit.iter().filter(|block| self.free.contains(block)).count();
            let whole = seq.tokens.len().div_ceil(size) - hit.len() + num_free;
            match *group {
                KvGroup::Full => whole,
                KvGroup::Window { positions } => {
                    let left = seq.tokens.len() - hit.len() * size;
                    let touched = positions as usize - 1 + left.min(budget);
                    whole.min((touched - 1).div_ceil(size) + 1)
                }
            }
        });
        needed.sum()
    }

    /// S11: the longest hit that serves every group, with 0 for what the next position doesn't read.
    fn find(&self, seq: &Sequence) -> Vec<Vec<u32>> {
        let size = self.config.block_size as usize;
        let max_blocks = (seq.tokens.len() - 1) / size;
        let reads = self.config.enable_prefix_caching && seq.reads_cache;
        let lengths = if reads { 0..=max_blocks } else { 0..=0 };
        let hits = lengths.rev().find_map(|num_blocks| {
            let groups = 0..self.config.groups.len();
            let tables = groups.map(|group| self.find_in(group, seq, num_blocks));
            tables.collect::<Option<Vec<_>>>()
        });
        hits.expect("a hit of no blocks serves every group")
    }

    /// The blocks of one group for a hit of `num_blocks`, if the group has cached those that are read.
    fn find_in(&self, group: usize, seq: &Sequence, num_blocks: usize) -> Option<Vec<u32>> {
        let size = self.config.block_size as usize;
        let block = |index: usize| {
            if is_behind(self.config.groups[group], index, num_blocks * size, size) {
                return Some(0);
            }
            let wanted = (group, seq.root, seq.tokens[..(index + 1) * size].to_vec());
            let holder = self.content.iter().find(|(content, _)| *content == wanted);
            holder.map(|&(_, block)| block)
        };
        (0..num_blocks).map(block).collect()
    }

    /// Takes the sampled tokens, in the step's order. S17 but for length is the caller's: a token that ends a sequence comes with true.
    pub(crate) fn complete(&mut self, sampled: &[(TokenId, bool)]) {
        let size = self.config.block_size as usize;
        let mut sampled = sampled.iter();
        for (id, end, samples) in std::mem::take(&mut self.step) {
            let token = if samples { sampled.next() } else { None };
            let Some(at) = self.running.iter().position(|seq| seq.id == id) else {
                continue;
            };
            let seq = &mut self.running[at];
            if self.config.enable_prefix_caching {
                for index in 0..end / size {
                    for (group, table) in seq.tables.iter().enumerate() {
                        let block = table[index];
                        if block > 0 && self.content.iter().all(|&(_, holder)| holder != block) {
                            let tokens = seq.tokens[..(index + 1) * size].to_vec();
                            self.content.push(((group, seq.root, tokens), block));
                        }
                    }
                }
            }
            for group in 0..self.config.groups.len() {
                let dropped = self.drop_behind(at, group, end);
                self.release(dropped);
            }
            let seq = &mut self.running[at];
            let Some(&(token, is_end)) = token else { continue };
            seq.tokens.push(token);
            if is_end || seq.tokens.len() - seq.prompt_len >= seq.max_tokens {
                let seq = self.running.remove(at);
                seq.tables.into_iter().for_each(|table| self.release(table));
            }
        }
        let parked = std::mem::take(&mut self.parked);
        self.release(parked);
    }

    /// Replaces what position `next` and those behind it don't read by the null block.
    fn drop_behind(&mut self, at: usize, group: usize, next: usize) -> Vec<u32> {
        let (kind, size) = (self.config.groups[group], self.config.block_size as usize);
        let table = &mut self.running[at].tables[group];
        let entries = table.iter_mut().enumerate();
        let behind = entries.filter(|(index, _)| is_behind(kind, *index, next, size));
        behind.map(|(_, entry)| std::mem::take(entry)).collect()
    }
}

/// Whether no position from `next` on reads any of a block.
fn is_behind(group: KvGroup, index: usize, next: usize, size: usize) -> bool {
    let reads = |position: usize| match group {
        KvGroup::Full => true,
        KvGroup::Window { positions } => position + positions as usize > next,
    };
    !(index * size..(index + 1) * size).any(reads)
}

mod differential {
    use kvasir_engine_core::FinishReason;
    use proptest::prelude::*;

    use super::{Part, Reference};
    use crate::harness::Engine;
    use crate::laws::{Action, action, setup};
    use kvasir_engine_core::{Event, Order, Policies, SchedulerConfig};

    /// The engine's last plan as the model says it.
    fn parts(engine: &Engine) -> Vec<Part> {
        let plan = &engine.plan;
        let part = |seq: &kvasir_engine_core::SeqPlan| Part {
            seq: seq.seq,
            first_position: seq.first_position,
            num_tokens: seq.tokens.len() as u32,
            new_blocks: plan.blocks[seq.blocks.clone()]
                .iter()
                .map(|block| block.0)
                .collect(),
            samples: seq.samples,
        };
        plan.seqs.iter().map(part).collect()
    }

    /// Completes the step in both; the model learns from the events which tokens end a sequence.
    fn complete(engine: &mut Engine, model: &mut Reference, is_started: bool) {
        if !is_started {
            return;
        }
        let sampled = engine.sampled();
        let before = engine.events.len();
        engine.finish();
        let news = &engine.events[before..];
        let ends = |id| {
            news.iter().any(|event| {
                matches!(event, Event::Finished { seq, reason: FinishReason::Eos | FinishReason::StopToken(_) } if *seq == id)
            })
        };
        let tokens: Vec<_> = sampled.into_iter().map(|(id, token)| (token, ends(id))).collect();
        model.complete(&tokens);
    }

    fn run(config: SchedulerConfig, policies: Policies, actions: Vec<Action>) -> Result<u64, TestCaseError> {
        let mut engine = Engine::with_policies(config.clone(), policies.clone());
        let mut model = Reference::new(config, policies);
        let mut submitted = Vec::new();
        for action in actions {
            match action {
                Action::Submit(request, _) => {
                    if let Ok(id) = engine.try_submit(&request) {
                        model.submit(id, engine.clock, &request);
                        submitted.push(id);
                    }
                }
                Action::Abort(at) => {
                    if let Some(&id) = submitted.get(at % submitted.len().max(1)) {
                        engine.abort(id);
                        model.abort(id);
                    }
                }
                Action::Start if !engine.is_step_in_flight() => {
                    engine.start();
                    prop_assert_eq!(parts(&engine), model.schedule());
                }
                Action::Finish => {
                    let is_started = engine.is_step_in_flight();
                    complete(&mut engine, &mut model, is_started);
                }
                _ => {}
            }
        }
        let is_started = engine.is_step_in_flight();
        complete(&mut engine, &mut model, is_started);
        while engine.start() {
            prop_assert_eq!(parts(&engine), model.schedule());
            complete(&mut engine, &mut model, true);
        }
        prop_assert_eq!(engine.scheduler.stats().num_preemptions, model.num_preemptions);
        Ok(model.num_preemptions)
    }

    prop_compose! {
        /// vLLM's own switches, and none of ours.
        fn compatible()(
            by_priority in any::<bool>(),
            adaptive_prefill_threshold in any::<bool>(),
            watermark in prop_oneof![3 => Just(0_u32), 1 => 1_u32..3],
            draft_slots in prop_oneof![3 => Just(0_u32), 1 => 1_u32..3],
            max_num_scheduled_tokens in proptest::option::of(5_u32..12),
        ) -> Policies {
            Policies {
                order: if by_priority { Order::Priority } else { Order::Arrival },
                adaptive_prefill_threshold,
                watermark,
                draft_slots,
                max_num_scheduled_tokens,
                ..Policies::vllm()
            }
        }
    }

    proptest! {
        #[test]
        fn with_all_policies_off_the_decisions_are_those_of_vllms_rules(
            (mut limits, _) in setup(),
            policies in compatible(),
            actions in proptest::collection::vec(action(), 0..160),
        ) {
            limits.max_num_batched_tokens += limits.max_num_seqs * policies.draft_slots;
            run(limits, policies, actions)?;
        }
    }
}
