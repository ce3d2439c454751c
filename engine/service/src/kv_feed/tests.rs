//! The laws of the module, against a real scheduler and against sets.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "test code outside of test functions, which the configuration's exceptions don't cover"
)]

use std::collections::{BTreeMap, BTreeSet};

use kvasir_cache_key::{BlockHash, CacheIdentity};
use kvasir_client::types::kv_cache_update::Kind;
use kvasir_client::types::{
    KvCacheBatch, KvCachePosition, KvCacheSource, KvCacheStart, KvCacheUpdate, RankAddress,
};
use kvasir_engine_core::{
    BlockEvent, BlockEventDetail, BlockEvents, CachedBlock, GroupId, KvGroup, Micros, Policies, Request,
    Scheduler, SchedulerConfig, SeqId, StepOutcome, StepPlan, StopConditions,
};
use proptest::prelude::*;

use super::{Cursor, FeedLimits, Gather, KvLog, Pending};

/// A reader that believes what it is told, and notices gaps.
#[derive(Default)]
struct Reader {
    held: BTreeSet<(u32, u64)>,
    source: Option<KvCacheSource>,
    sequence: u64,
    is_complete: bool,
    num_starts: usize,
}

impl Reader {
    fn apply(&mut self, update: KvCacheUpdate, max: usize) {
        match update.kind.unwrap() {
            Kind::Start(start) => self.start(start),
            Kind::Snapshot(piece) => {
                assert!(piece.hashes.len() <= max);
                assert!(piece.hashes.is_sorted());
                self.held
                    .extend(piece.hashes.iter().map(|&hash| (piece.group, hash)));
                self.is_complete = piece.last;
            }
            Kind::Batch(batch) => self.batch(&batch, max),
        }
    }

    fn start(&mut self, start: KvCacheStart) {
        self.num_starts += 1;
        if start.resumed {
            assert!(self.is_complete);
            assert_eq!(
                (self.source.as_ref(), self.sequence),
                (start.source.as_ref(), start.sequence)
            );
        } else {
            *self = Self {
                source: start.source,
                sequence: start.sequence,
                num_starts: self.num_starts,
                ..Self::default()
            };
        }
    }

    fn batch(&mut self, batch: &KvCacheBatch, max: usize) {
        assert_eq!(batch.sequence, self.sequence + 1, "a gap");
        assert!(batch.stored.len() + batch.removed.len() <= max);
        self.sequence = batch.sequence;
        if batch.all_cleared {
            self.held.clear();
        }
        for &hash in &batch.removed {
            self.held.remove(&(batch.group, hash));
        }
        self.held
            .extend(batch.stored.iter().map(|&hash| (batch.group, hash)));
    }

    fn position(&self) -> Option<KvCachePosition> {
        self.is_complete.then(|| KvCachePosition {
            source: self.source.clone(),
            sequence: self.sequence,
        })
    }

    /// Reads at most `count` updates.
    fn read(&mut self, log: &KvLog, cursor: &mut Cursor, count: usize, max: usize) {
        for _ in 0..count {
            match log.next(cursor) {
                Some(update) => self.apply(update, max),
                None => return,
            }
        }
    }
}

fn source(log_id: u64) -> KvCacheSource {
    KvCacheSource {
        address: Some(RankAddress {
            instance_id: "pod".to_owned(),
            epoch: 0,
            dp_rank: 0,
        }),
        log_id,
    }
}

fn log(limits: FeedLimits) -> KvLog {
    KvLog::new(source(1), 4, limits, BTreeSet::new())
}

fn small() -> FeedLimits {
    FeedLimits {
        message_hashes: 3,
        batches: 4,
        ring_hashes: 10,
    }
}

/// A content whose short form is `short` and whose other bytes are `rest`.
fn content(group: u8, short: u64, rest: u8) -> CachedBlock {
    let mut hash = [rest; 32];
    hash[..8].copy_from_slice(&short.to_be_bytes());
    CachedBlock {
        group: GroupId(group),
        hash: BlockHash(hash),
    }
}

fn stored(CachedBlock { group, hash }: CachedBlock) -> BlockEvent {
    BlockEvent::Stored {
        seq: SeqId(0),
        group,
        hash,
        parent: None,
        index: 0,
        tokens: 0..0,
    }
}

fn removed(CachedBlock { group, hash }: CachedBlock) -> BlockEvent {
    BlockEvent::Removed {
        seq: SeqId(0),
        group,
        hash,
    }
}

fn pending(events: &[BlockEvent]) -> Pending {
    let mut pending = Pending::default();
    for event in events {
        pending.apply(event);
    }
    pending
}

fn shorts(contents: &BTreeSet<CachedBlock>) -> BTreeSet<(u32, u64)> {
    contents
        .iter()
        .map(|content| (u32::from(content.group.0), content.hash.short()))
        .collect()
}

#[test]
fn stored_and_removed_between_two_batches_is_told_to_nobody() {
    let mut log = log(small());
    let block = content(0, 1, 0);
    log.publish(pending(&[stored(block), removed(block)]));
    let (mut cursor, mut reader) = (Cursor::new(None), Reader::default());
    reader.read(&log, &mut cursor, 10, 3);
    assert!(reader.held.is_empty());
    assert_eq!(reader.sequence, 0);
}

#[test]
fn contents_that_agree_in_eight_bytes_are_removed_with_the_last_one() {
    let mut log = log(small());
    let (one, other) = (content(0, 7, 1), content(0, 7, 2));
    let (mut cursor, mut reader) = (Cursor::new(None), Reader::default());
    log.publish(pending(&[stored(one)]));
    log.publish(pending(&[stored(other)]));
    log.publish(pending(&[removed(one)]));
    reader.read(&log, &mut cursor, 10, 3);
    assert_eq!(reader.held, BTreeSet::from([(0, 7)]));
    // One goes and the other comes in the same batch: nothing happened.
    log.publish(pending(&[removed(other), stored(one)]));
    assert!(log.next(&mut cursor).is_none());
    log.publish(pending(&[removed(one)]));
    reader.read(&log, &mut cursor, 10, 3);
    assert!(reader.held.is_empty());
}

#[test]
fn all_cleared_is_told_once_and_what_is_stored_after_it_stays() {
    let mut log = log(small());
    let (mut cursor, mut reader) = (Cursor::new(None), Reader::default());
    log.publish(pending(&[stored(content(0, 1, 0)), stored(content(1, 2, 0))]));
    reader.read(&log, &mut cursor, 10, 3);
    assert_eq!(reader.held.len(), 2);
    log.publish(pending(&[
        removed(content(0, 1, 0)),
        BlockEvent::AllCleared,
        stored(content(0, 3, 0)),
    ]));
    reader.read(&log, &mut cursor, 10, 3);
    assert_eq!(reader.held, BTreeSet::from([(0, 3)]));
    let before = reader.sequence;
    log.publish(pending(&[removed(content(0, 3, 0))]));
    log.publish(pending(&[BlockEvent::AllCleared]));
    reader.read(&log, &mut cursor, 10, 3);
    assert_eq!(reader.sequence, before + 1, "an empty cache was cleared");
}

#[test]
fn a_reader_that_comes_back_in_time_gets_what_it_missed_and_no_snapshot() {
    let mut log = log(small());
    let (mut cursor, mut reader) = (Cursor::new(None), Reader::default());
    log.publish(pending(&[stored(content(0, 1, 0))]));
    reader.read(&log, &mut cursor, 10, 3);
    log.publish(pending(&[stored(content(0, 2, 0))]));
    log.publish(pending(&[stored(content(0, 3, 0))]));
    let mut cursor = Cursor::new(reader.position());
    let Some(Kind::Start(start)) = log.next(&mut cursor).unwrap().kind else {
        panic!("no start");
    };
    assert!(start.resumed);
    reader.start(start);
    reader.read(&log, &mut cursor, 10, 3);
    assert_eq!(reader.held, BTreeSet::from([(0, 1), (0, 2), (0, 3)]));
}

#[test]
fn a_reader_that_comes_back_late_or_from_elsewhere_starts_over() {
    let mut log = log(small());
    let position = |log_id, sequence| KvCachePosition {
        source: Some(source(log_id)),
        sequence,
    };
    for short in 0..20 {
        log.publish(pending(&[stored(content(0, short, 0))]));
    }
    for wrong in [
        position(1, 3),
        position(2, 20),
        position(1, 21),
        position(1, u64::MAX),
    ] {
        let Some(Kind::Start(start)) = log.next(&mut Cursor::new(Some(wrong.clone()))).unwrap().kind else {
            panic!("no start");
        };
        assert!(!start.resumed, "{wrong:?}");
    }
    let Some(Kind::Start(start)) = log.next(&mut Cursor::new(Some(position(1, 16)))).unwrap().kind else {
        panic!("no start");
    };
    assert!(start.resumed);
}

#[test]
fn a_reader_that_is_too_slow_starts_over_and_is_right_again() {
    let mut log = log(small());
    let (mut cursor, mut reader) = (Cursor::new(None), Reader::default());
    reader.read(&log, &mut cursor, 10, 3);
    for short in 0..20 {
        log.publish(pending(&[stored(content(0, short, 0))]));
    }
    reader.read(&log, &mut cursor, 100, 3);
    assert_eq!(reader.num_starts, 2);
    assert_eq!(reader.held.len(), 20);
}

#[test]
fn another_life_of_the_log_starts_every_reader_over() {
    let mut first = log(small());
    first.publish(pending(&[stored(content(0, 1, 0))]));
    let (mut cursor, mut reader) = (Cursor::new(None), Reader::default());
    reader.read(&first, &mut cursor, 10, 3);
    let mut next = source(2);
    next.address.as_mut().unwrap().epoch = 1;
    let second = KvLog::new(next.clone(), 4, small(), BTreeSet::new());
    reader.read(&second, &mut cursor, 10, 3);
    assert!(reader.held.is_empty() && reader.is_complete);
    assert_eq!(reader.source, Some(next));
}

/// What happens in a run over plain contents.
#[derive(Clone, Debug)]
enum Action {
    /// Stored if it isn't there, else removed.
    Toggle(u8, u64, u8),
    Clear,
    Publish,
    /// A reader reads some updates.
    Read(usize, usize),
    /// It loses its stream, and comes back with the position it has or without.
    Reconnect(usize, bool),
    /// The log begins anew.
    Restart,
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        12 => (0_u8..2, 0_u64..12, 0_u8..2).prop_map(|(group, short, rest)| Action::Toggle(group, short, rest)),
        1 => Just(Action::Clear),
        6 => Just(Action::Publish),
        8 => (0_usize..3, 1_usize..6).prop_map(|(reader, count)| Action::Read(reader, count)),
        2 => (0_usize..3, any::<bool>()).prop_map(|(reader, resumes)| Action::Reconnect(reader, resumes)),
        1 => Just(Action::Restart),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_reader_ends_with_exactly_what_can_be_found(actions in proptest::collection::vec(action(), 1..200)) {
        let mut log = log(small());
        let mut next_log = 2;
        let mut contents = BTreeSet::new();
        let mut changes = Pending::default();
        let mut readers: Vec<_> = (0..3).map(|_| (Cursor::new(None), Reader::default())).collect();
        for action in actions {
            match action {
                Action::Toggle(group, short, rest) => {
                    let content = content(group, short, rest);
                    let was_there = !contents.insert(content);
                    if was_there {
                        contents.remove(&content);
                    }
                    changes.apply(&if was_there { removed(content) } else { stored(content) });
                }
                Action::Clear => {
                    contents.clear();
                    changes.apply(&BlockEvent::AllCleared);
                }
                Action::Publish => log.publish(std::mem::take(&mut changes)),
                Action::Read(index, count) => {
                    let (cursor, reader) = &mut readers[index];
                    reader.read(&log, cursor, count, 3);
                }
                Action::Reconnect(index, resumes) => {
                    let (cursor, reader) = &mut readers[index];
                    *cursor = Cursor::new(reader.position().filter(|_| resumes));
                }
                Action::Restart => {
                    changes = Pending::default();
                    log = KvLog::new(source(next_log), 4, small(), contents.clone());
                    next_log += 1;
                }
            }
        }
        log.publish(changes);
        for (mut cursor, mut reader) in readers {
            reader.read(&log, &mut cursor, usize::MAX, 3);
            prop_assert!(reader.is_complete);
            prop_assert_eq!(&reader.held, &shorts(&contents));
        }
    }

    #[test]
    fn a_reader_of_a_scheduler_has_what_its_cache_has(
        prompts in proptest::collection::vec((proptest::collection::vec(0_u32..2, 1..24), 1_u32..8), 1..30),
        flushes in proptest::collection::vec(any::<bool>(), 64),
        begin in 0_usize..20,
        resets in any::<bool>(),
    ) {
        let mut engine = Run::new();
        let (mut cursor, mut reader) = (Cursor::new(None), Reader::default());
        for (turn, (prompt, max_tokens)) in prompts.iter().enumerate() {
            engine.submit(prompt, *max_tokens);
            if turn == begin {
                engine.begin();
            }
            engine.turn(flushes[turn % flushes.len()]);
            if let Some(log) = &engine.log {
                reader.read(log, &mut cursor, 2, 3);
            }
        }
        for turn in 0..400 {
            engine.turn(flushes[turn % flushes.len()]);
        }
        if resets && engine.scheduler.reset_prefix_cache() {
            engine.turn(true);
        }
        if engine.log.is_none() {
            engine.begin();
        }
        engine.turn(true);
        while engine.log.is_none() {
            engine.turn(true);
        }
        let log = engine.log.as_ref().unwrap();
        reader.read(log, &mut cursor, usize::MAX, 3);
        let found: BTreeSet<_> = engine.scheduler.cached_blocks().collect();
        prop_assert_eq!(reader.held, shorts(&found));
    }
}

/// A scheduler with a small pool, and the worker's part of the feed.
struct Run {
    scheduler: Scheduler,
    plan: StepPlan,
    events: Vec<kvasir_engine_core::Event>,
    blocks: BlockEvents,
    gather: Option<Gather>,
    pending: Pending,
    log: Option<KvLog>,
    now: u64,
    next_token: BTreeMap<SeqId, u32>,
}

impl Run {
    fn new() -> Self {
        let config = SchedulerConfig {
            max_num_batched_tokens: 16,
            max_num_seqs: 4,
            max_num_active_seqs: 4,
            max_model_len: 64,
            block_size: 2,
            num_blocks: 40,
            groups: vec![KvGroup::Full, KvGroup::Window { positions: 5 }],
            enable_prefix_caching: true,
            long_prefill_token_threshold: 0,
            max_num_queued_reqs: 100,
            max_num_queued_tokens: 10_000,
        };
        Self {
            scheduler: Scheduler::with_policies(config, Policies::serve()).unwrap(),
            plan: StepPlan::new(),
            events: Vec::new(),
            blocks: BlockEvents::new(),
            gather: None,
            pending: Pending::default(),
            log: None,
            now: 0,
            next_token: BTreeMap::new(),
        }
    }

    fn submit(&mut self, prompt: &[u32], max_tokens: u32) {
        let stop = StopConditions {
            max_tokens,
            ..StopConditions::default()
        };
        let request = Request {
            prompt: prompt.into(),
            stop,
            priority: 0,
            cache_root: CacheIdentity::default().root(),
            reads_prefix_cache: true,
        };
        self.scheduler.submit(Micros(self.now), request).unwrap();
    }

    fn begin(&mut self) {
        self.scheduler.set_block_events(BlockEventDetail::Hashes);
        self.gather = Some(Gather::new(self.scheduler.cached_blocks().len()));
    }

    /// A step, and what the worker does after it.
    fn turn(&mut self, flush: bool) {
        self.now += 1;
        if self
            .scheduler
            .schedule(Micros(self.now), &mut self.plan, &mut self.events)
        {
            let next = &mut self.next_token;
            let sampled = self.plan.seqs.iter().filter(|part| part.samples).map(|part| {
                let token = next.entry(part.seq).or_insert(0);
                *token += 1;
                (part.seq, *token % 2)
            });
            let outcome = StepOutcome {
                sampled: sampled.collect(),
            };
            self.scheduler
                .complete(self.plan.step, &outcome, &mut self.events)
                .unwrap();
        }
        self.scheduler.take_block_events(&mut self.blocks);
        for event in &self.blocks.events {
            match &mut self.gather {
                Some(gather) => gather.apply(event),
                None => self.pending.apply(event),
            }
        }
        if let Some(gather) = &mut self.gather {
            let scheduler = &self.scheduler;
            gather.take(scheduler.cached_blocks().len(), 2, |index| {
                scheduler.cached_block(index)
            });
            if gather.is_complete() {
                let contents = self.gather.take().unwrap().into_contents();
                self.pending = Pending::default();
                self.log = Some(KvLog::new(source(1), 2, small(), contents));
            }
        }
        if let Some(log) = self.log.as_mut().filter(|_| flush) {
            log.publish(std::mem::take(&mut self.pending));
        }
    }
}
