//! One sequence: its tokens, how far its KV is computed, and the blocks that hold it.

use kvasir_cache_key::{BlockHash, CacheRoot, block_hash};

use crate::block::{Content, Tables};
use crate::event::FinishReason;
use crate::ids::{GroupId, Micros, SeqId, StepId, TokenId};
use crate::request::{Request, RequestOptions, StopConditions};
use crate::scheduler::{KvLayout, QueueKey};
use crate::tokens::TokenLog;

/// Which queue a sequence is in.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Phase {
    /// New or preempted; holds no blocks.
    Waiting,
    /// In the running set; holds the blocks of its computed positions.
    Running,
}

/// What every step touches comes first, so that it lies in few cache lines.
#[derive(Debug)]
#[cfg_attr(feature = "model", derive(Clone))]
#[repr(C)]
pub(crate) struct Sequence {
    pub(crate) id: SeqId,
    pub(crate) tables: Tables,
    /// The last one of `tokens`: a decode needs no other.
    pub(crate) last_token: TokenId,
    pub(crate) prompt_len: u32,
    /// Tokens that steps in flight sample for it.
    pub(crate) num_pending: u32,
    /// Steps in flight that name it, and the newest of them.
    pub(crate) num_in_flight: u32,
    /// Positions whose KV is in `tables` once all steps in flight complete.
    pub(crate) num_computed: u32,
    /// Positions whose KV is in `tables` now, but for those that no window reaches any more.
    pub(crate) num_written: u32,
    /// Leading blocks that nobody writes to any more; with a prefix cache they can be found by others.
    pub(crate) num_published: u32,
    pub(crate) num_preemptions: u32,
    pub(crate) phase: Phase,
    pub(crate) reads_prefix_cache: bool,
    pub(crate) last_step: StepId,
    /// A bit for each token that may end it, modulo 64: almost every token is none of them, which is seen here without looking further.
    stop_filter: u64,
    /// With `max_tokens` clipped to what the model and the pool allow.
    pub(crate) stop: StopConditions,
    /// Prompt, then output.
    pub(crate) tokens: TokenLog,
    /// The chain of its full blocks, as far as anybody has asked for it. Tokens never change, so it is never recomputed.
    hashes: Vec<BlockHash>,
    /// The last one of them, which the next one follows; the root at first.
    newest_hash: BlockHash,
    root: CacheRoot,
    pub(crate) arrival: Micros,
    pub(crate) priority: i64,
    pub(crate) options: RequestOptions,
    /// Its place in the waiting queue, if it waits.
    pub(crate) key: QueueKey,
    /// Since when it could start but for room.
    pub(crate) blocked_since: Option<Micros>,
    /// The sequence of its group whose prompt blocks it may share.
    pub(crate) leader: Option<SeqId>,
}

impl Sequence {
    pub(crate) fn new(
        id: SeqId,
        arrival: Micros,
        request: Request,
        options: RequestOptions,
        max_tokens: u32,
        num_groups: usize,
    ) -> Self {
        let Request {
            prompt,
            mut stop,
            priority,
            cache_root,
            reads_prefix_cache,
        } = request;
        stop.max_tokens = max_tokens;
        Self {
            id,
            phase: Phase::Waiting,
            arrival,
            priority,
            options,
            key: QueueKey::default(),
            blocked_since: None,
            leader: None,
            last_token: prompt.last().copied().unwrap_or_default(),
            prompt_len: prompt.len() as u32,
            tokens: TokenLog::new(&prompt, (prompt.len() as u32).saturating_add(max_tokens)),
            stop_filter: stop_filter(&stop),
            stop,
            reads_prefix_cache,
            num_pending: 0,
            num_in_flight: 0,
            last_step: StepId(0),
            num_computed: 0,
            num_written: 0,
            tables: Tables::new(num_groups),
            num_published: 0,
            num_preemptions: 0,
            root: cache_root,
            hashes: Vec::new(),
            newest_hash: cache_root.as_parent(),
        }
    }

    /// Where its chain of hashes begins.
    pub(crate) fn root(&self) -> CacheRoot {
        self.root
    }

    /// Prompt and output: what has to be computed before the next token can be sampled.
    pub(crate) fn num_tokens(&self) -> u32 {
        self.tokens.len()
    }

    pub(crate) fn num_output(&self) -> u32 {
        self.num_tokens() - self.prompt_len
    }

    /// Its length once the steps in flight have sampled.
    pub(crate) fn target(&self) -> u32 {
        self.num_tokens() + self.num_pending
    }

    /// Positions left to compute behind `num_computed`. The last token of its output is never computed.
    pub(crate) fn num_wanted(&self, num_computed: u32) -> u32 {
        let is_last_pending = self.num_output() + self.num_pending >= self.stop.max_tokens;
        self.target() - u32::from(is_last_pending) - num_computed
    }

    /// Room for all it may become, so that a step allocates nothing for it.
    pub(crate) fn reserve(&mut self, layout: &KvLayout) {
        let len = self.prompt_len + self.stop.max_tokens;
        let num_blocks = len.div_ceil(layout.block_size()) as usize;
        self.tokens.reserve(len);
        for (at, &group) in layout.groups().iter().enumerate() {
            self.tables.reserve(at, layout.max_held_in(group, len));
        }
        self.hashes
            .reserve_exact(num_blocks.saturating_sub(self.hashes.len()));
    }

    /// The hash of its full block `index`.
    pub(crate) fn block_hash(&mut self, index: u32, block_size: u32) -> BlockHash {
        let size = block_size as usize;
        while self.hashes.len() <= index as usize {
            let start = self.hashes.len() * size;
            self.newest_hash = block_hash(&self.newest_hash, self.tokens.slice(start..start + size));
            self.hashes.push(self.newest_hash);
        }
        if index as usize + 1 == self.hashes.len() {
            // The list itself is far away.
            return self.newest_hash;
        }
        self.hashes[index as usize]
    }

    /// Lets empty tables begin with null blocks where nothing is read from position `next` on.
    pub(crate) fn skip_to(&mut self, next: u32, layout: &KvLayout) {
        for &(at, group) in layout.windows() {
            self.tables
                .get_mut(at)
                .skip(group.num_behind(next, layout.block_size()));
        }
    }

    /// What a table's entry `index` holds: a full block, which has been hashed.
    pub(crate) fn content(&self, group: usize, index: u32, block_size: u32) -> Content<'_> {
        let (at, size) = (index as usize, block_size as usize);
        Content {
            group: GroupId(group as u8),
            hash: self.hashes[at],
            parent: at.checked_sub(1).map(|before| self.hashes[before]),
            index,
            tokens: self.tokens.settled(at * size..(at + 1) * size),
        }
    }

    /// The whole chain, computed afresh for checks.
    pub(crate) fn recomputed_hashes(&self, block_size: u32) -> Vec<BlockHash> {
        let mut parent = self.root.as_parent();
        let tokens = self.tokens.to_vec();
        let full_blocks = tokens.chunks_exact(block_size as usize);
        full_blocks
            .map(|tokens| {
                parent = block_hash(&parent, tokens);
                parent
            })
            .collect()
    }

    /// Appends a sampled token and says whether the sequence ends with it (rule S17): end of sequence, stop token, length.
    pub(crate) fn push_output(&mut self, token: TokenId) -> Option<FinishReason> {
        self.tokens.push(token);
        self.last_token = token;
        let num_output = self.num_output();
        if self.stop_filter & stop_bit(token) != 0 && num_output >= self.stop.min_tokens {
            if self.stop.eos_token_ids.contains(&token) {
                return Some(FinishReason::Eos);
            }
            if self.stop.stop_token_ids.contains(&token) {
                return Some(FinishReason::StopToken(token));
            }
        }
        (num_output >= self.stop.max_tokens).then_some(FinishReason::Length)
    }
}

fn stop_bit(token: TokenId) -> u64 {
    1 << (token % 64)
}

fn stop_filter(stop: &StopConditions) -> u64 {
    let ids = stop.eos_token_ids.iter().chain(&stop.stop_token_ids);
    ids.fold(0, |filter, &token| filter | stop_bit(token))
}
