//! Typed identity of cached KV blocks.
//!
//! The key of a block is SHA-256 over its parent's key and its tokens; the chain begins at a [`CacheRoot`] made from a
//! [`CacheIdentity`], whose fields are tagged and length-prefixed, so that no value of one field can be read as another.
//! An adapter named like another tenant's salt therefore can't reach that tenant's blocks, which is what happened where the
//! fields were joined without tags (rules B3 and B4 of the engine research, case T8).
//!
//! The encodings are part of the contract between engines and gateways: both compute these keys, and they must agree
//! across versions. A change of an encoding is a new domain string and new golden vectors.

mod block;
mod identity;

pub use block::{BlockHash, block_hash};
pub use identity::{AdapterIdentity, CacheIdentity};

/// The start of a hash chain: one root per identity.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct CacheRoot(pub [u8; 32]);

impl CacheRoot {
    /// The root as the parent of a sequence's first block.
    pub fn as_parent(&self) -> BlockHash {
        BlockHash(self.0)
    }
}

#[cfg(test)]
mod tests;
