//! A multi-turn workload over simulated engines, against a router that knows everything.

use std::collections::{BTreeMap, VecDeque};

use super::*;
use crate::routing::address::mix;

const NUM_ENGINES: usize = 4;
const NUM_TENANTS: u64 = 8;
/// Blocks of a tenant's system prompt, which all its conversations begin with.
const SYSTEM_BLOCKS: u64 = 24;
const TURNS: u64 = 6;
/// Blocks that a turn adds: question and answer.
const TURN_BLOCKS: u64 = 8;
/// Blocks that an engine caches; the least recently used ones go first.
const CACHE_BLOCKS: usize = 6000;
/// Milliseconds for which a computed block occupies an engine, and each running request of 40 ms of decoding.
const MILLIS_PER_BLOCK: u64 = 2;
const DECODE_MILLIS: u64 = 400;
/// Engines report at most ten times a second.
const REPORT_MILLIS: u64 = 100;

/// An engine that remembers blocks and works off its queue.
#[derive(Default)]
struct Engine {
    /// When each block was last used.
    cache: BTreeMap<u64, u64>,
    free_at: u64,
    running: Vec<u64>,
    stored: Vec<u64>,
    removed: Vec<u64>,
    next_seq: u64,
    /// Blocks computed, for the spread.
    computed: u64,
}

impl Engine {
    fn overlap(&self, prompt: &[u64]) -> u64 {
        prompt
            .iter()
            .take_while(|hash| self.cache.contains_key(hash))
            .count() as u64
    }

    /// Computes a prompt and its answer; says when it ends and how many blocks were cached.
    fn serve(&mut self, prompt: &[u64], whole: &[u64], now: u64) -> (u64, u64) {
        let cached = self.overlap(prompt);
        let computed = prompt.len() as u64 - cached;
        self.computed += computed + TURN_BLOCKS;
        self.free_at = self.free_at.max(now) + computed * MILLIS_PER_BLOCK;
        let end = self.free_at + DECODE_MILLIS;
        self.running.push(end);
        for (depth, hash) in whole.iter().enumerate() {
            // The front of a prompt is the last to go.
            let used = now * 1000 + 999 - depth as u64;
            if self.cache.insert(*hash, used).is_none() {
                self.removed.retain(|removed| removed != hash);
                self.stored.push(*hash);
            }
        }
        while self.cache.len() > CACHE_BLOCKS {
            let oldest = self
                .cache
                .iter()
                .min_by_key(|(_, used)| **used)
                .map(|(hash, _)| *hash)
                .unwrap();
            self.cache.remove(&oldest);
            if self.stored.contains(&oldest) {
                self.stored.retain(|stored| *stored != oldest);
            } else {
                self.removed.push(oldest);
            }
        }
        (end, cached)
    }
}

/// One turn of a conversation that is due.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Turn {
    due: u64,
    conversation: u64,
    number: u64,
}

fn blocks(conversation: u64, turn: u64) -> Vec<u64> {
    let tenant = conversation % NUM_TENANTS;
    let system = (0..SYSTEM_BLOCKS).map(|block| mix(tenant << 40 | block));
    let own = (0..(turn + 1) * TURN_BLOCKS).map(|block| mix((conversation + 100) << 32 | 1 << 60 | block));
    system.chain(own).collect()
}

struct Result {
    hit_rate: f64,
    /// The busiest engine's part, over an equal part.
    spread: f64,
}

/// Runs the workload; `choose` gets the engines, the prompt and the time.
fn run(
    mut choose: impl FnMut(&mut [Engine], &[u64], u64) -> (usize, Option<Ticket>),
    mut ended: impl FnMut(Ticket, u64),
    mut report: impl FnMut(&mut [Engine], u64),
) -> Result {
    let mut engines: Vec<Engine> = (0..NUM_ENGINES).map(|_| Engine::default()).collect();
    let mut due: std::collections::BTreeSet<Turn> = (0..400)
        .map(|conversation| Turn {
            due: conversation * 60 + mix(conversation) % 50,
            conversation,
            number: 0,
        })
        .collect();
    let mut running: VecDeque<(u64, Option<Ticket>)> = VecDeque::new();
    let (mut hits, mut total, mut next_report) = (0, 0, 0);
    while let Some(next) = due.pop_first() {
        let now = next.due;
        while next_report <= now {
            report(&mut engines, next_report);
            next_report += REPORT_MILLIS;
        }
        for _ in 0..running.len() {
            let (end, ticket) = running.pop_front().unwrap();
            match ticket {
                Some(ticket) if end <= now => ended(ticket, end),
                ticket => running.push_back((end, ticket)),
            }
        }
        let whole = blocks(next.conversation, next.number);
        let prompt = &whole[..whole.len() - TURN_BLOCKS as usize / 2];
        let (engine, ticket) = choose(&mut engines, prompt, now);
        let (end, cached) = engines[engine].serve(prompt, &whole, now);
        running.push_back((end, ticket));
        hits += cached;
        total += prompt.len() as u64;
        if next.number + 1 < TURNS {
            let pause = 500 + mix(next.conversation << 8 | next.number) % 3000;
            due.insert(Turn {
                due: end + pause,
                number: next.number + 1,
                ..next
            });
        }
    }
    let computed: Vec<u64> = engines.iter().map(|engine| engine.computed).collect();
    let most = *computed.iter().max().unwrap() as f64;
    Result {
        hit_rate: hits as f64 / total as f64,
        spread: most * NUM_ENGINES as f64 / computed.iter().sum::<u64>() as f64,
    }
}

/// Sees into the engines at this very moment and takes the longest prefix, then the shortest queue.
fn all_knowing() -> Result {
    run(
        |engines, prompt, now| {
            let key = |engine: &Engine| (engine.overlap(prompt), std::cmp::Reverse(engine.free_at.max(now)));
            let best = (0..engines.len())
                .max_by_key(|place| key(&engines[*place]))
                .unwrap();
            (best, None)
        },
        |_, _| {},
        |_, _| {},
    )
}

fn kvasir(policy: RoutingPolicy) -> Result {
    let (made, ids) = router(policy, NUM_ENGINES);
    let router = std::cell::RefCell::new(made);
    let of_revision = revision("r");
    run(
        |_, prompt, now| {
            let mut router = router.borrow_mut();
            let choice = choose_with(
                &mut router,
                at(now),
                |request| {
                    request.hashes = prompt;
                    request.prompt_tokens = prompt.len() as u32 * 16;
                    request.random = mix(now);
                },
                &of_revision,
            );
            let mut choice = choice.unwrap();
            router.begun(&mut choice.ticket, at(now));
            (
                ids.iter().position(|id| *id == choice.engine).unwrap(),
                Some(choice.ticket),
            )
        },
        |ticket, end| router.borrow_mut().finish(ticket, Outcome::Completed, at(end)),
        |engines, now| {
            let mut router = router.borrow_mut();
            for (place, engine) in engines.iter_mut().enumerate() {
                engine.running.retain(|end| *end > now);
                let load = LoadReport {
                    num_running: engine.running.len() as u32,
                    num_waiting: 0,
                    num_free_blocks: 1000,
                };
                router.report(ids[place], load, at(now));
                let stored = std::mem::take(&mut engine.stored);
                let removed = std::mem::take(&mut engine.removed);
                let batch = KvBatch {
                    seq: engine.next_seq,
                    is_cleared: false,
                    stored: &stored,
                    removed: &removed,
                };
                engine.next_seq += 1;
                assert_eq!(router.apply(&address(place, 1), &batch), Followed::Applied);
            }
        },
    )
}

#[test]
fn prefix_aware_routing_hits_nearly_as_often_as_one_who_knows_everything_and_spreads_the_load() {
    let best = all_knowing();
    let ours = kvasir(RoutingPolicy::PrefixAware);
    assert!(
        best.hit_rate > 0.5,
        "the workload must be worth it: {}",
        best.hit_rate
    );
    assert!(
        ours.hit_rate >= 0.95 * best.hit_rate,
        "{} of {}",
        ours.hit_rate,
        best.hit_rate
    );
    assert!(
        ours.spread <= 1.25,
        "the busiest engine has {} of an equal part",
        ours.spread
    );
}

#[test]
fn routing_without_prefixes_hits_less() {
    let ours = kvasir(RoutingPolicy::PrefixAware);
    for policy in [
        RoutingPolicy::RoundRobin,
        RoutingPolicy::LeastRequests,
        RoutingPolicy::PowerOfTwoChoices,
    ] {
        let other = kvasir(policy);
        assert!(
            other.hit_rate < 0.9 * ours.hit_rate,
            "{policy:?}: {} against {}",
            other.hit_rate,
            ours.hit_rate
        );
    }
}
