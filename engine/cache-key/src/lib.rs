//! Typed identity of cached KV blocks.
//!
//! The key of a block is SHA-256 over its parent's key and its tokens; the chain begins at a [`CacheRoot`] made from a
//! [`CacheIdentity`], whose fields are tagged and length-prefixed, so that no value of one field can be read as another.

/// The start of a hash chain: one root per identity.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct CacheRoot(pub [u8; 32]);
