//! Names of engines and of model revisions.

use std::fmt;
use std::sync::Arc;

/// Where blocks and load belong: one data-parallel rank of one start of one pod. A pod that starts again, or a group that forms again, has a
/// higher epoch; what an older epoch says no longer counts.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct EngineAddress {
    /// The pod's unique id; for engines outside of a cluster whatever names the process's place, for example its host and port.
    pub pod_uid: Arc<str>,
    /// Counts the starts.
    pub epoch: u64,
    /// The rank within the pod's engine.
    pub dp_rank: u32,
}

/// A version of a model: weights, tokenizer and hashes of their own.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Revision(pub Arc<str>);

/// An engine of a [`Router`](super::Router), for as long as it's known there. Never used again for another one.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct EngineId {
    pub(super) index: u32,
    pub(super) generation: u32,
}

impl fmt::Display for EngineAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.pod_uid, self.epoch, self.dp_rank)
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl EngineAddress {
    /// A number for rendezvous hashing that is the same at all gateways and for all epochs of the place.
    pub(super) fn place_key(&self) -> u64 {
        let bytes = self.pod_uid.bytes().chain(self.dp_rank.to_le_bytes());
        let fnv = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        mix(fnv)
    }
}

/// Finishes a hash so that every bit of the input reaches every bit of the output (the finalizer of SplitMix64, Steele et al. 2014).
pub(super) fn mix(bits: u64) -> u64 {
    let bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}
