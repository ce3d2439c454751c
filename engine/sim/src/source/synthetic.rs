//! Clients and conversations from distributions.
//!
//! Each distribution draws from its own stream of the seed, and a request's lengths are drawn when it is made, in the order in which requests are
//! made. So with arrivals that wait for nobody every setting of a sweep sees the same requests at the same times.
//!
//! Tokens are cheap to make and still tell prompts apart: a request's own tokens are all the request's number, a shared prefix repeats the
//! number of its group. Blocks are found by the hash of all tokens before them, so that is enough.

use std::iter::repeat_n;
use std::sync::Arc;

use kvasir_cache_key::{CacheIdentity, CacheRoot};
use kvasir_engine_core::{Micros, RequestOptions, TenantId, TokenId};

use super::{Job, SHARED, request};
use crate::collect::TenantIndex;
use crate::engine::OUTPUT_TOKEN;
use crate::rng::Rng;
use crate::time::SimTime;
use crate::workload::{Arrivals, Synthetic};

/// A client that was refused doesn't come back sooner, as if it had been told to retry after a second. Otherwise it could ask for ever at one moment.
const RETRY_SECONDS: f64 = 1.0;

#[derive(Debug)]
pub(crate) struct SyntheticSource<'a> {
    spec: &'a Synthetic,
    /// Longest prompt.
    max_prompt: u32,
    /// Requests that may still be made.
    num_left: u64,
    /// Requests made; the next one's own token.
    num_made: u32,
    num_arrived: u32,
    clock: SimTime,
    talks: Vec<Talk>,
    free: Vec<u32>,
    /// One for each tenant, or one for nobody.
    roots: Vec<CacheRoot>,
    shares: Vec<f64>,
    draws: Draws,
}

/// A stream for each distribution.
#[derive(Debug)]
struct Draws {
    arrivals: Rng,
    prompts: Rng,
    outputs: Rng,
    tenants: Rng,
    groups: Rng,
    turns: Rng,
    pauses: Rng,
}

/// A client or a conversation.
#[derive(Debug, Default)]
struct Talk {
    tenant: TenantIndex,
    group: TokenId,
    turns_left: u32,
    /// All that was said; empty where each prompt stands for itself.
    history: Vec<TokenId>,
}

impl<'a> SyntheticSource<'a> {
    pub(super) fn new(spec: &'a Synthetic, num_requests: u64, max_model_len: u32) -> Self {
        let root = |salt: &str| {
            CacheIdentity {
                tenant_salt: salt.as_bytes(),
                ..CacheIdentity::default()
            }
            .root()
        };
        let mut roots: Vec<CacheRoot> = spec.tenants.iter().map(|tenant| root(&tenant.name)).collect();
        if roots.is_empty() {
            roots.push(root(""));
        }
        let stream = |number| Rng::new(spec.seed, number);
        Self {
            spec,
            max_prompt: max_model_len - 1,
            num_left: num_requests,
            num_made: 0,
            num_arrived: 0,
            clock: SimTime(0),
            talks: Vec::new(),
            free: Vec::new(),
            roots,
            shares: spec.tenants.iter().map(|tenant| tenant.share).collect(),
            draws: Draws {
                arrivals: stream(0),
                prompts: stream(1),
                outputs: stream(2),
                tenants: stream(3),
                groups: stream(4),
                turns: stream(5),
                pauses: stream(6),
            },
        }
    }

    pub(super) fn next_arrival(&mut self) -> Option<SimTime> {
        if self.num_left == 0 {
            return None;
        }
        let is_first = self.num_arrived == 0;
        let gap = match self.spec.arrivals {
            Arrivals::Clients { count, .. } if self.num_arrived >= count => return None,
            Arrivals::Rate {
                per_second,
                burstiness,
            } => self.draws.arrivals.gamma(burstiness) / per_second,
            Arrivals::Constant { per_second } if !is_first => per_second.recip(),
            Arrivals::Clients {
                count, ramp_seconds, ..
            } if !is_first => ramp_seconds / f64::from(count),
            Arrivals::AtOnce | Arrivals::Constant { .. } | Arrivals::Clients { .. } => 0.0,
        };
        self.num_arrived = self.num_arrived.saturating_add(1);
        self.clock = self.clock.after(gap);
        Some(self.clock)
    }

    pub(super) fn arrive(&mut self, now: SimTime) -> Option<Job> {
        if self.num_left == 0 {
            return None;
        }
        if self.spec.conversation.is_none() && !self.is_closed() {
            let mut talk = self.begin();
            return Some(self.make(&mut talk, None, now));
        }
        let talk = self.begin();
        let slot = if let Some(slot) = self.free.pop() {
            self.talks[slot as usize] = talk;
            slot
        } else {
            self.talks.push(talk);
            self.talks.len() as u32 - 1
        };
        self.ask(slot, now)
    }

    pub(super) fn follow_up(&mut self, slot: u32, now: SimTime, num_output: Option<u32>) -> Option<SimTime> {
        let talk = &mut self.talks[slot as usize];
        if let (Some(num_output), Some(conversation)) = (num_output, &self.spec.conversation) {
            talk.history.extend(repeat_n(OUTPUT_TOKEN, num_output as usize));
            talk.turns_left -= 1;
            if talk.turns_left > 0 && talk.history.len() < self.max_prompt as usize {
                return Some(now.after(conversation.pause.draw(&mut self.draws.pauses)));
            }
        }
        let Arrivals::Clients { pause, .. } = self.spec.arrivals else {
            self.talks[slot as usize] = Talk::default();
            self.free.push(slot);
            return None;
        };
        let least = if num_output.is_some() { 0.0 } else { RETRY_SECONDS };
        self.talks[slot as usize] = self.begin();
        Some(now.after(pause.draw(&mut self.draws.pauses).max(least)))
    }

    pub(super) fn ask(&mut self, slot: u32, now: SimTime) -> Option<Job> {
        if self.num_left == 0 {
            return None;
        }
        let mut talk = std::mem::take(&mut self.talks[slot as usize]);
        let job = self.make(&mut talk, Some(slot), now);
        self.talks[slot as usize] = talk;
        Some(job)
    }

    fn is_closed(&self) -> bool {
        matches!(self.spec.arrivals, Arrivals::Clients { .. })
    }

    /// Somebody new.
    fn begin(&mut self) -> Talk {
        let Draws {
            tenants,
            groups,
            turns,
            ..
        } = &mut self.draws;
        let tenant = pick(&self.shares, tenants.unit());
        let prefix = self.spec.shared_prefix;
        Talk {
            tenant,
            group: prefix.map_or(0, |prefix| groups.between(0, prefix.groups - 1)),
            turns_left: self
                .spec
                .conversation
                .map_or(1, |conversation| conversation.turns.draw(turns, u32::MAX)),
            history: Vec::new(),
        }
    }

    /// The next request of a talk.
    fn make(&mut self, talk: &mut Talk, slot: Option<u32>, now: SimTime) -> Job {
        self.num_left -= 1;
        let own_token = self.num_made + 1;
        self.num_made = own_token;
        let num_shared = match self.spec.shared_prefix {
            Some(prefix) if talk.history.is_empty() => prefix.tokens,
            _ => 0,
        };
        let room = self.max_prompt - num_shared - talk.history.len() as u32;
        let num_own = self.spec.prompts.draw(&mut self.draws.prompts, room);
        let max_tokens = self.spec.outputs.draw(&mut self.draws.outputs, u32::MAX);
        let added =
            repeat_n(SHARED | talk.group, num_shared as usize).chain(repeat_n(own_token, num_own as usize));
        let prompt: Arc<[TokenId]> = if self.spec.conversation.is_some() {
            talk.history.extend(added);
            talk.history.as_slice().into()
        } else {
            added.collect()
        };
        let tenant = self.spec.tenants.get(usize::from(talk.tenant));
        let priority = tenant.map_or(0, |tenant| tenant.priority);
        let deadline = self.spec.timeout.map(|seconds| now.after(seconds).as_micros());
        Job {
            request: request(prompt, max_tokens, priority, self.roots[usize::from(talk.tenant)]),
            options: RequestOptions {
                tenant: TenantId(u32::from(talk.tenant)),
                weight: tenant.map_or(1, |tenant| tenant.weight),
                // The scheduler's clock counts whole microseconds; a deadline of now would pass at once.
                deadline: deadline.map(|Micros(micros)| Micros(micros.max(now.as_micros().0 + 1))),
                ..RequestOptions::default()
            },
            tenant: talk.tenant,
            slot,
            outputs: None,
        }
    }
}

/// The index whose part of the shares `unit`, in `[0, 1)`, falls into; 0 without shares.
fn pick(shares: &[f64], unit: f64) -> TenantIndex {
    let mut left = unit * shares.iter().sum::<f64>();
    for (index, share) in shares.iter().enumerate() {
        if left < *share {
            return index as TenantIndex;
        }
        left -= share;
    }
    // Rounding can leave a little behind the last one; it belongs to the last one with a share.
    shares.iter().rposition(|&share| share > 0.0).unwrap_or(0) as TenantIndex
}
