//! Taking requests in: everything that can never run is refused here, with the limit it broke.

use super::Scheduler;
use crate::ids::{Micros, SeqId};
use crate::request::{Request, RequestOptions};
use crate::sequence::Sequence;
use crate::trace::Input;

/// Why a request was refused. Nothing was queued.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Reject {
    /// There is nothing to compute.
    #[error("the prompt is empty; it needs at least one token")]
    EmptyPrompt,
    /// There is nothing to generate.
    #[error("max_tokens is 0; it must be at least 1")]
    ZeroMaxTokens,
    /// The model's length leaves no room for a token of output.
    #[error(
        "the prompt has {len} tokens, the model takes at most {limit} and one of output; shorten the prompt"
    )]
    PromptTooLong {
        /// Tokens of the prompt.
        len: usize,
        /// The longest prompt, in tokens: the model's length less one.
        limit: u32,
    },
    /// The prompt needs more KV blocks than the pool has, even alone.
    #[error(
        "the prompt needs {needed} KV blocks, the pool has {usable}, which is room for {limit} tokens; shorten the prompt or give the \
         KV cache more memory"
    )]
    NeverFits {
        /// Blocks the prompt needs.
        needed: u32,
        /// Blocks of the pool.
        usable: u32,
        /// The longest prompt that fits, in tokens.
        limit: u32,
    },
    /// Too many sequences wait.
    #[error(
        "{queued} sequences wait and {requested} more don't fit under the limit of {limit}; try again later"
    )]
    QueueFull {
        /// Sequences that wait.
        queued: usize,
        /// Sequences of the refused request.
        requested: usize,
        /// `max_num_queued_reqs`.
        limit: u32,
    },
    /// Too many prompt tokens wait.
    #[error(
        "{queued} prompt tokens wait and {requested} more don't fit under the limit of {limit}; try again later"
    )]
    QueuedTokensFull {
        /// Prompt tokens that wait.
        queued: u64,
        /// Prompt tokens of the refused request.
        requested: u64,
        /// `max_num_queued_tokens`.
        limit: u64,
    },
}

impl Reject {
    /// Whether the same request may be taken later: the queue is full now, and the request fits in an empty one.
    pub fn is_retryable(&self) -> bool {
        match *self {
            Self::QueueFull { requested, limit, .. } => requested <= limit as usize,
            Self::QueuedTokensFull { requested, limit, .. } => requested <= limit,
            Self::EmptyPrompt | Self::ZeroMaxTokens | Self::PromptTooLong { .. } | Self::NeverFits { .. } => {
                false
            }
        }
    }
}

impl Scheduler {
    /// Queues one sequence.
    ///
    /// Its `max_tokens` is clipped to what the model's length and the pool allow.
    ///
    /// # Errors
    /// If it can never run, or the queue is full.
    pub fn submit(&mut self, now: Micros, request: Request) -> Result<SeqId, Reject> {
        self.submit_with(now, request, RequestOptions::default())
    }

    /// Queues one sequence with a tenant, an adapter, a deadline or something to wait for.
    ///
    /// # Errors
    /// As for [`Scheduler::submit`].
    pub fn submit_with(
        &mut self,
        now: Micros,
        request: Request,
        options: RequestOptions,
    ) -> Result<SeqId, Reject> {
        self.note_submit(now, std::slice::from_ref(&request), options);
        self.advance_clock(now);
        let max_tokens = self.max_tokens(&request)?;
        self.check_queue(1, request.prompt.len() as u64)?;
        Ok(self.enqueue(request, options, max_tokens))
    }

    /// Queues all sequences of one request, in order, or none of them.
    ///
    /// # Errors
    /// The first reason why one of them can't be queued.
    pub fn submit_group(&mut self, now: Micros, requests: Vec<Request>) -> Result<Vec<SeqId>, Reject> {
        self.submit_group_with(now, requests, RequestOptions::default())
    }

    /// Queues all sequences of one request, in order, or none of them, with the same options.
    ///
    /// With [`share_group_prompts`](crate::Policies::share_group_prompts), those with the first one's prompt and identity share its blocks.
    ///
    /// # Errors
    /// As for [`Scheduler::submit_group`].
    pub fn submit_group_with(
        &mut self,
        now: Micros,
        requests: Vec<Request>,
        options: RequestOptions,
    ) -> Result<Vec<SeqId>, Reject> {
        self.note_submit(now, &requests, options);
        self.advance_clock(now);
        let max_tokens = requests
            .iter()
            .map(|request| self.max_tokens(request))
            .collect::<Result<Vec<_>, _>>()?;
        let num_tokens = requests.iter().map(|request| request.prompt.len() as u64).sum();
        self.check_queue(requests.len(), num_tokens)?;
        let mut leader = None;
        let mut ids = Vec::with_capacity(requests.len());
        for (request, max_tokens) in requests.into_iter().zip(max_tokens) {
            let source = (request.prompt.clone(), request.cache_root);
            let shares = self.policies.share_group_prompts && request.reads_prefix_cache;
            let id = self.enqueue(request, options, max_tokens);
            let (first, first_source) = leader.get_or_insert_with(|| (id, source.clone()));
            if shares && *first != id && *first_source == source {
                self.follow(id, *first);
            }
            ids.push(id);
        }
        Ok(ids)
    }

    /// What a sequence was deferred for has happened: it may start now. Others are ignored.
    pub fn undefer(&mut self, seq: SeqId) {
        self.note(|| Input::Undefer(seq));
        if let Some(slot) = self.seqs.slot_of(seq) {
            self.waiting.undefer(&mut self.seqs[slot]);
        }
    }

    fn follow(&mut self, id: SeqId, leader: SeqId) {
        if let Some(slot) = self.seqs.slot_of(id) {
            self.seqs[slot].leader = Some(leader);
        }
    }

    /// The output tokens that a request can get, at least 1.
    fn max_tokens(&self, request: &Request) -> Result<u32, Reject> {
        let len = request.prompt.len();
        if len == 0 {
            return Err(Reject::EmptyPrompt);
        }
        if request.stop.max_tokens == 0 {
            return Err(Reject::ZeroMaxTokens);
        }
        let limit = self.config.max_model_len - 1;
        if len > limit as usize {
            return Err(Reject::PromptTooLong { len, limit });
        }
        let len = len as u32;
        let limit = self.layout.max_positions();
        if len > limit {
            return Err(Reject::NeverFits {
                needed: self.layout.max_held(len),
                usable: self.pool.num_usable(),
                limit,
            });
        }
        // The last token of a sequence is never computed, so it needs no KV.
        let max_len = self.config.max_model_len.min(limit + 1);
        Ok(request.stop.max_tokens.min(max_len - len))
    }

    fn check_queue(&self, num_seqs: usize, num_tokens: u64) -> Result<(), Reject> {
        let (queued, limit) = (self.waiting.len(), self.config.max_num_queued_reqs);
        if num_seqs > (limit as usize).saturating_sub(queued) {
            return Err(Reject::QueueFull {
                queued,
                requested: num_seqs,
                limit,
            });
        }
        let (queued, limit) = (self.waiting.num_tokens(), self.config.max_num_queued_tokens);
        if num_tokens > limit.saturating_sub(queued) {
            return Err(Reject::QueuedTokensFull {
                queued,
                requested: num_tokens,
                limit,
            });
        }
        Ok(())
    }

    fn enqueue(&mut self, request: Request, options: RequestOptions, max_tokens: u32) -> SeqId {
        let id = SeqId(self.next_seq);
        self.next_seq += 1;
        let seq = Sequence::new(
            id,
            self.now,
            request,
            options,
            max_tokens,
            self.config.groups.len(),
        );
        let slot = self.seqs.insert(seq);
        self.waiting
            .push_back(&mut self.seqs[slot], slot, self.policies.order);
        self.shares.enter(options.tenant);
        if let Some(deadline) = options.deadline {
            self.deadlines.insert((deadline, id));
        }
        id
    }
}
