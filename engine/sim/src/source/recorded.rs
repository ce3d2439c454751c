//! Requests at the times of a recording.

use std::iter::repeat_n;
use std::sync::Arc;

use kvasir_cache_key::CacheIdentity;
use kvasir_engine_core::{RequestOptions, TokenId};

use super::{Job, SHARED, request};
use crate::recording::{Prompt, Recording};
use crate::time::SimTime;

#[derive(Debug)]
pub(crate) struct RecordedSource<'a> {
    recording: &'a Recording,
    num_requests: usize,
    /// Rows whose time was asked for, and rows given out.
    num_announced: usize,
    num_made: usize,
}

impl<'a> RecordedSource<'a> {
    pub(super) fn new(recording: &'a Recording, num_requests: u64) -> Self {
        let num_requests = usize::try_from(num_requests).unwrap_or(usize::MAX);
        Self {
            recording,
            num_requests: num_requests.min(recording.len()),
            num_announced: 0,
            num_made: 0,
        }
    }

    pub(super) fn next_arrival(&mut self) -> Option<SimTime> {
        if self.num_announced == self.num_requests {
            return None;
        }
        self.num_announced += 1;
        Some(self.recording.rows[self.num_announced - 1].at)
    }

    pub(super) fn arrive(&mut self) -> Option<Job> {
        let row = self.recording.rows[..self.num_requests].get(self.num_made)?;
        self.num_made += 1;
        let own_token = self.num_made as TokenId;
        let (prompt, root, outputs): (Arc<[TokenId]>, _, _) = match &row.prompt {
            Prompt::Length(len) => (repeat_n(own_token, *len as usize).collect(), None, None),
            Prompt::Blocks { len, ids } => {
                let ids = &self.recording.block_ids[ids.clone()];
                let size = self.recording.block_tokens as usize;
                let shared = ids.iter().flat_map(|&id| repeat_n(SHARED | id, size));
                let all = shared.chain(repeat_n(own_token, *len as usize));
                (all.take(*len as usize).collect(), None, None)
            }
            Prompt::Tokens {
                tokens,
                outputs,
                root,
            } => (Arc::clone(tokens), Some(*root), Some(Arc::clone(outputs))),
        };
        let root = root.unwrap_or_else(|| CacheIdentity::default().root());
        Some(Job {
            request: request(prompt, row.num_output, row.priority, root),
            options: RequestOptions {
                tenant: row.tenant,
                weight: row.weight,
                ..RequestOptions::default()
            },
            tenant: 0,
            slot: None,
            outputs,
        })
    }
}
