//! The types of a recording, each by its fields in a fixed order.

use kvasir_cache_key::{BlockHash, CacheRoot};

use super::TraceError;
use super::field::{Field, Reader};
use crate::block::{BlockEventDetail, CachedBlock};
use crate::config::SchedulerConfig;
use crate::ids::{AdapterId, BlockId, GroupId, Micros, SeqId, StepId, TenantId};
use crate::kv_group::KvGroup;
use crate::plan::StepOutcome;
use crate::policy::{Order, Policies, Victim};
use crate::request::{Deferral, Request, RequestOptions, StopConditions};
use crate::trace::image::{Image, PoolImage, SequenceImage, StepImage, TableImage, WorkImage};
use crate::trace::{Input, Trace};

macro_rules! wrappers {
    ($($wrapper:ident($inner:ty)),*) => {$(
        impl Field for $wrapper {
            fn put(&self, out: &mut Vec<u8>) {
                self.0.put(out);
            }

            fn take(input: &mut Reader<'_>) -> Result<Self, TraceError> {
                Ok(Self(<$inner>::take(input)?))
            }
        }
    )*};
}

wrappers!(
    SeqId(u64),
    StepId(u64),
    BlockId(u32),
    GroupId(u8),
    Micros(u64),
    TenantId(u32),
    AdapterId(u32),
    BlockHash([u8; 32]),
    CacheRoot([u8; 32])
);

/// All fields of a struct, in this order.
macro_rules! structs {
    ($($name:ident { $($field:ident),* $(,)? })*) => {$(
        impl Field for $name {
            fn put(&self, out: &mut Vec<u8>) {
                let Self { $($field),* } = self;
                $($field.put(out);)*
            }

            fn take(input: &mut Reader<'_>) -> Result<Self, TraceError> {
                Ok(Self { $($field: Field::take(input)?),* })
            }
        }
    )*};
}

structs! {
    Trace { config, policies, start, inputs }
    Image { pool, seqs, running, in_flight, ranks, served, served_floor, next_seq, next_step, now }
    PoolImage { free, content, leaving }
    SequenceImage {
        id, tokens, prompt_len, tables, num_written, num_preemptions, reads_prefix_cache, stop, root, arrival, priority, options, rank,
        blocked_since, leader,
    }
    TableImage { num_dropped, held }
    StepImage { work, parked, copies }
    WorkImage { seq, num_preemptions, first, num_tokens, samples, copies_from }
    SchedulerConfig {
        max_num_batched_tokens, max_num_seqs, max_num_active_seqs, max_model_len, block_size, num_blocks,
        groups, enable_prefix_caching, long_prefill_token_threshold, max_num_queued_reqs, max_num_queued_tokens,
    }
    Policies {
        max_in_flight, order, victim, ageing_bound, readmission_reserve, watermark, seat_preemption, fair_share,
        adaptive_prefill_threshold, max_num_scheduled_tokens, draft_slots, max_active_adapters, share_group_prompts,
        block_events,
    }
    CachedBlock { group, hash }
    Request { prompt, stop, priority, cache_root, reads_prefix_cache }
    StopConditions { max_tokens, min_tokens, eos_token_ids, stop_token_ids }
    RequestOptions { tenant, weight, adapter, deadline, deferral }
    StepOutcome { sampled }
}

/// A byte for each variant, in this order.
macro_rules! enums {
    ($($name:ident { $($variant:ident),* } below $end:literal)*) => {$(
        impl Field for $name {
            fn put(&self, out: &mut Vec<u8>) {
                out.push(*self as u8);
            }

            fn take(input: &mut Reader<'_>) -> Result<Self, TraceError> {
                let choice = input.choice($end)?;
                let variants = [$(Self::$variant),*];
                Ok(variants[usize::from(choice)])
            }
        }
    )*};
}

enums! {
    Order { Arrival, Priority } below 2
    Victim { Last, CheapestToRestore } below 2
    Deferral { StructuredOutput, Adapter } below 2
    BlockEventDetail { Off, Hashes, Tokens } below 3
}

impl Field for KvGroup {
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::Full => out.push(0),
            Self::Window { positions } => {
                out.push(1);
                positions.put(out);
            }
        }
    }

    fn take(input: &mut Reader<'_>) -> Result<Self, TraceError> {
        Ok(match input.choice(2)? {
            0 => Self::Full,
            _ => Self::Window {
                positions: Field::take(input)?,
            },
        })
    }
}

impl Field for Input {
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::Submit {
                now,
                requests,
                options,
            } => {
                out.push(0);
                now.put(out);
                requests.put(out);
                options.put(out);
            }
            Self::Abort(seq) => {
                out.push(1);
                seq.put(out);
            }
            Self::Undefer(seq) => {
                out.push(2);
                seq.put(out);
            }
            Self::Schedule(now) => {
                out.push(3);
                now.put(out);
            }
            Self::Complete(step, outcome) => {
                out.push(4);
                step.put(out);
                outcome.put(out);
            }
            Self::FailStep(step) => {
                out.push(5);
                step.put(out);
            }
            Self::ResetPrefixCache => out.push(6),
        }
    }

    fn take(input: &mut Reader<'_>) -> Result<Self, TraceError> {
        Ok(match input.choice(7)? {
            0 => Self::Submit {
                now: Field::take(input)?,
                requests: Field::take(input)?,
                options: Field::take(input)?,
            },
            1 => Self::Abort(Field::take(input)?),
            2 => Self::Undefer(Field::take(input)?),
            3 => Self::Schedule(Field::take(input)?),
            4 => Self::Complete(Field::take(input)?, Field::take(input)?),
            5 => Self::FailStep(Field::take(input)?),
            _ => Self::ResetPrefixCache,
        })
    }
}
