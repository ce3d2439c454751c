//! Recordings as bytes: fixed little-endian fields in the order of the types, lengths before contents, and a version in front.

use std::sync::Arc;

use kvasir_cache_key::{BlockHash, CacheRoot};

use super::{Image, Input, Trace};
use crate::block::{BlockEventDetail, CachedBlock};
use crate::config::SchedulerConfig;
use crate::ids::{AdapterId, BlockId, GroupId, Micros, SeqId, StepId, TenantId};
use crate::kv_group::KvGroup;
use crate::plan::StepOutcome;
use crate::policy::{Order, Policies, Victim};
use crate::request::{Deferral, Request, RequestOptions, StopConditions};

/// A change of the encoding is a new version.
const MAGIC: &[u8] = b"kvasir.trace.v2\n";

/// Why bytes are no recording.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum TraceError {
    /// They don't begin like one, or like one of another version.
    #[error("this is no recording of version 2")]
    Magic,
    /// They end too early, or a length says more than there is.
    #[error("the recording is cut off at byte {at}")]
    CutOff {
        /// Where something was expected.
        at: usize,
    },
    /// A value that nothing is written as.
    #[error("byte {at} of the recording is {value}, which means nothing there")]
    Value {
        /// Where.
        at: usize,
        /// The byte.
        value: u8,
    },
    /// Something follows the end.
    #[error("{len} bytes follow the recording's end at byte {at}")]
    Trailing {
        /// The end.
        at: usize,
        /// Bytes behind it.
        len: usize,
    },
}

impl Trace {
    /// The recording as bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        self.put(&mut out);
        out
    }

    /// The recording that was written as `bytes`. Memory grows with the bytes, whatever they say.
    ///
    /// # Errors
    /// Where the bytes stop making sense.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, TraceError> {
        let rest = bytes.strip_prefix(MAGIC).ok_or(TraceError::Magic)?;
        let mut input = Reader {
            bytes: rest,
            at: MAGIC.len(),
        };
        let trace = Self::take(&mut input)?;
        match input.bytes.len() {
            0 => Ok(trace),
            len => Err(TraceError::Trailing { at: input.at, len }),
        }
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], TraceError> {
        let (head, tail) = self
            .bytes
            .split_first_chunk::<N>()
            .ok_or(TraceError::CutOff { at: self.at })?;
        self.bytes = tail;
        self.at += N;
        Ok(*head)
    }

    /// A byte below `end`.
    fn choice(&mut self, end: u8) -> Result<u8, TraceError> {
        let at = self.at;
        let [value] = self.array()?;
        if value < end {
            Ok(value)
        } else {
            Err(TraceError::Value { at, value })
        }
    }
}

/// Something that can be written and read back.
trait Field: Sized {
    fn put(&self, out: &mut Vec<u8>);
    fn take(input: &mut Reader<'_>) -> Result<Self, TraceError>;
}

macro_rules! numbers {
    ($($number:ty),*) => {$(
        impl Field for $number {
            fn put(&self, out: &mut Vec<u8>) {
                out.extend(self.to_le_bytes());
            }

            fn take(input: &mut Reader<'_>) -> Result<Self, TraceError> {
                Ok(Self::from_le_bytes(input.array()?))
            }
        }
    )*};
}

numbers!(u8, u32, u64, i64);

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
    Image { free, content, served, served_floor, next_seq, next_step, now }
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

impl Field for bool {
    fn put(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }

    fn take(input: &mut Reader<'_>) -> Result<Self, TraceError> {
        Ok(input.choice(2)? == 1)
    }
}

impl Field for [u8; 32] {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend(self);
    }

    fn take(input: &mut Reader<'_>) -> Result<Self, TraceError> {
        input.array()
    }
}

impl<A: Field, B: Field> Field for (A, B) {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
        self.1.put(out);
    }

    fn take(input: &mut Reader<'_>) -> Result<Self, TraceError> {
        Ok((A::take(input)?, B::take(input)?))
    }
}

impl<T: Field> Field for Option<T> {
    fn put(&self, out: &mut Vec<u8>) {
        self.is_some().put(out);
        if let Some(value) = self {
            value.put(out);
        }
    }

    fn take(input: &mut Reader<'_>) -> Result<Self, TraceError> {
        bool::take(input)?.then(|| T::take(input)).transpose()
    }
}

impl<T: Field> Field for Vec<T> {
    fn put(&self, out: &mut Vec<u8>) {
        (self.len() as u64).put(out);
        for value in self {
            value.put(out);
        }
    }

    fn take(input: &mut Reader<'_>) -> Result<Self, TraceError> {
        let len = u64::take(input)?;
        // Grows with what is read: a length that lies ends at the end of the bytes.
        let mut values = Self::new();
        for _ in 0..len {
            values.push(T::take(input)?);
        }
        Ok(values)
    }
}

impl Field for Arc<[u32]> {
    fn put(&self, out: &mut Vec<u8>) {
        (self.len() as u64).put(out);
        self.iter().for_each(|token| token.put(out));
    }

    fn take(input: &mut Reader<'_>) -> Result<Self, TraceError> {
        Ok(Vec::take(input)?.into())
    }
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
