//! The policies: which of the usable engines gets a request.
//!
//! [`RoutingPolicy::PrefixAware`] counts in tokens, the one unit in which a cached prefix and a queue can be compared: the tokens that the
//! engine would have to compute for this prompt, those it must compute first for requests that wait, a share for each request that runs,
//! and those it would have to compute twice because KV is short. The smallest sum wins. So a cached prefix attracts requests only as far as
//! it saves more than the queue in front of it costs; a hot prefix spreads to other engines by itself when its engine is busy.

use super::address::mix;
use super::engine::Engine;
use crate::time::Micros;

/// How an engine is chosen.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum RoutingPolicy {
    /// Least work, with what the engine has cached.
    #[default]
    PrefixAware,
    /// Least part of KV blocks in use.
    LeastKv,
    /// Fewest requests.
    LeastRequests,
    /// The one with fewer requests of two drawn by chance.
    PowerOfTwoChoices,
    /// One after the other.
    RoundRobin,
    /// The engine that the session's key points to (rendezvous hashing, Thaler and Ravishankar 1998): when an engine leaves, only its own
    /// sessions move. Without a key as for [`PrefixAware`](Self::PrefixAware).
    Session,
}

/// Tokens that one running request delays another by: it still has about this many steps to go, each of which computes one token more.
const TOKENS_PER_RUNNING: u64 = 64;

/// The part of KV blocks above which requests are likely to be preempted, in percent, as 100 less the watermark that engines keep.
const KV_FULL_PERCENT: u64 = 95;

/// One usable engine in a choice.
#[derive(Clone, Copy)]
pub(super) struct Candidate<'a> {
    pub(super) engine: &'a Engine,
    /// Blocks of the prompt that it has cached.
    pub(super) overlap: u32,
}

/// What the policies look at, beside the engines.
#[derive(Clone, Copy)]
pub(super) struct Question {
    pub(super) prompt_tokens: u32,
    pub(super) session: Option<u64>,
    pub(super) random: u64,
    /// The engine that was chosen last.
    pub(super) last: Option<u32>,
    pub(super) now: Micros,
}

/// The place of the best among `candidates`, which are in the order of their engines; `None` if there are none.
pub(super) fn choose(
    policy: RoutingPolicy,
    candidates: &[Candidate<'_>],
    question: Question,
) -> Option<usize> {
    let now = question.now;
    // Equal ones take turns.
    let best_by = |cost: &dyn Fn(&Candidate<'_>, u32) -> u64| {
        let key = |candidate: &Candidate<'_>| {
            let num_sequences = candidate.engine.num_sequences(now);
            (
                cost(candidate, num_sequences),
                num_sequences,
                candidate.engine.num_chosen,
            )
        };
        let keys = candidates.iter().map(key).enumerate();
        keys.min_by_key(|(_, key)| *key).map(|(place, _)| place)
    };
    match (policy, question.session) {
        (RoutingPolicy::Session, Some(session)) => {
            let weight = |candidate: &Candidate<'_>| mix(session ^ candidate.engine.apart.place_key);
            let weights = candidates.iter().map(weight).enumerate();
            weights.max_by_key(|(_, weight)| *weight).map(|(place, _)| place)
        }
        (RoutingPolicy::PrefixAware | RoutingPolicy::Session, _) => {
            best_by(&|candidate, num_sequences| work(candidate, num_sequences, question))
        }
        (RoutingPolicy::LeastKv, _) => best_by(&|candidate, _| kv_parts(candidate.engine, now)),
        (RoutingPolicy::LeastRequests, _) => best_by(&|_, num_sequences| u64::from(num_sequences)),
        (RoutingPolicy::PowerOfTwoChoices, _) => two_choices(candidates, question),
        (RoutingPolicy::RoundRobin, _) => {
            let is_next =
                |candidate: &Candidate<'_>| question.last.is_none_or(|last| candidate.engine.id.index > last);
            let next = candidates.iter().position(is_next);
            next.or((!candidates.is_empty()).then_some(0))
        }
    }
}

/// In tokens.
fn work(candidate: &Candidate<'_>, num_sequences: u32, question: Question) -> u64 {
    let Candidate { engine, overlap } = candidate;
    let (prompt, now) = (u64::from(question.prompt_tokens), question.now);
    let block_size = u64::from(engine.capacity.block_size);
    let to_compute = prompt.saturating_sub(u64::from(*overlap) * block_size);
    // Others' requests are taken to be like this one.
    let in_front = engine.own.unbegun_tokens + u64::from(engine.num_foreign_waiting(now)) * prompt;
    let beside = u64::from(num_sequences) * TOKENS_PER_RUNNING;
    let needed = u64::from(engine.num_used_blocks(now)) + to_compute.div_ceil(block_size);
    let full = u64::from(engine.capacity.num_blocks) * KV_FULL_PERCENT / 100;
    // Once to make room, once to compute again what had to go.
    let twice = 2 * needed.saturating_sub(full) * block_size;
    to_compute + in_front + beside + twice
}

/// Blocks in use, in millionths of all.
fn kv_parts(engine: &Engine, now: Micros) -> u64 {
    u64::from(engine.num_used_blocks(now)) * 1_000_000 / u64::from(engine.capacity.num_blocks.max(1))
}

fn two_choices(candidates: &[Candidate<'_>], question: Question) -> Option<usize> {
    let len = candidates.len() as u64;
    if len < 2 {
        return (len == 1).then_some(0);
    }
    // Multiply and shift maps 32 random bits to a range almost evenly (Lemire 2019).
    let draw = |bits: u64, range: u64| ((bits & 0xffff_ffff) * range) >> 32;
    let first = draw(question.random, len);
    let other = (first + 1 + draw(question.random >> 32, len - 1)) % len;
    let requests = |place: u64| candidates[place as usize].engine.num_sequences(question.now);
    Some(if requests(other) < requests(first) {
        other
    } else {
        first
    } as usize)
}
