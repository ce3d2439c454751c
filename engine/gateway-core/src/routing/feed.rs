//! Whether a gateway has heard everything that an engine said about its blocks.
//!
//! Batches carry consecutive numbers. A gap means that something was lost: what is known stays as a hint, later batches are ignored, and a
//! snapshot is asked for, which says everything anew up to its number. Law: whoever follows without a gap, from the beginning or from a
//! snapshot, knows exactly what the engine holds.

/// What an engine's blocks changed by, net: a hash is in one of the lists at most.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct KvBatch<'a> {
    /// The batch's number, one more than the one before; an engine's first is 0.
    pub seq: u64,
    /// Whether everything was dropped before the rest happened.
    pub is_cleared: bool,
    /// The first 8 bytes, big-endian, of the hashes of blocks that can be found now.
    pub stored: &'a [u64],
    /// Those that can no longer be found.
    pub removed: &'a [u64],
}

/// What to do about a batch or a snapshot.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Followed {
    /// It was taken in.
    Applied,
    /// It says nothing new, or an older one than what is known.
    Ignored,
    /// Something is missing: ask the engine for a snapshot, once.
    NeedSnapshot,
    /// A snapshot is on its way.
    AwaitingSnapshot,
    /// Nobody knows this engine, or it's of an older epoch.
    UnknownEngine,
}

/// The position in an engine's batches.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Feed {
    /// The next batch has this number.
    Following { next: u64 },
    /// A snapshot was asked for. What is known ends before this number.
    Waiting { next: u64 },
}

impl Feed {
    pub(super) fn new() -> Self {
        Self::Following { next: 0 }
    }

    /// Whether to take in a batch.
    pub(super) fn batch(&mut self, seq: u64) -> Followed {
        match *self {
            Self::Following { next } if seq == next => {
                *self = Self::Following {
                    next: seq.saturating_add(1),
                };
                Followed::Applied
            }
            Self::Following { next } if seq < next => Followed::Ignored,
            Self::Following { next } => {
                *self = Self::Waiting { next };
                Followed::NeedSnapshot
            }
            Self::Waiting { .. } => Followed::AwaitingSnapshot,
        }
    }

    /// Whether to take in a snapshot that includes the batch `seq`.
    pub(super) fn snapshot(&mut self, seq: u64) -> Followed {
        let (Self::Following { next } | Self::Waiting { next }) = *self;
        let is_older = seq.saturating_add(1) < next;
        if is_older {
            return Followed::Ignored;
        }
        *self = Self::Following {
            next: seq.saturating_add(1),
        };
        Followed::Applied
    }
}
