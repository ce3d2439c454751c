//! Identifiers: plain numbers that can't be mixed up.

/// A token of the model's vocabulary.
pub type TokenId = u32;

/// A sequence, unique for the life of a scheduler.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct SeqId(pub u64);

/// A step, counted from 0.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct StepId(pub u64);

/// A physical KV block; it can be read from a plan, but only the pool gives blocks out and takes them back.
/// Block 0 is the null block and belongs to nobody.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct BlockId(pub u32);

/// Layers that need the same blocks of KV, counted from 0 in the order of the configuration.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct GroupId(pub u8);

/// Time in microseconds on a clock of the caller; only differences matter.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Micros(pub u64);

/// Whoever shares a fair part of the engine; chosen by the caller.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct TenantId(pub u32);

/// An adapter on top of the weights; chosen by the caller.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct AdapterId(pub u32);
