//! The key of one block: its parent's key and its tokens.

use sha2::{Digest, Sha256};

/// Names the encoding, so that a block's key can never equal a root's.
const BLOCK_DOMAIN: &[u8] = b"kvasir.cache-key.block.v1";

/// Tokens are fed to the hash in pieces of this many, through a buffer on the stack.
const TOKENS_PER_PIECE: usize = 64;

/// The key of one full block of KV, which stands for every token from the start of its sequence to the block's end.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct BlockHash(pub [u8; 32]);

/// The key of the block that holds `tokens` and follows `parent`.
///
/// Hashes the domain, the parent's 32 bytes, the number of tokens (8 bytes) and the tokens (4 bytes each), all little-endian.
/// The number makes engines with different block sizes disagree instead of sharing by accident.
pub fn block_hash(parent: &BlockHash, tokens: &[u32]) -> BlockHash {
    let mut hasher = Sha256::new();
    hasher.update(BLOCK_DOMAIN);
    hasher.update(parent.0);
    hasher.update((tokens.len() as u64).to_le_bytes());
    let mut bytes = [0_u8; 4 * TOKENS_PER_PIECE];
    for piece in tokens.chunks(TOKENS_PER_PIECE) {
        for (slot, token) in bytes.chunks_exact_mut(4).zip(piece) {
            slot.copy_from_slice(&token.to_le_bytes());
        }
        hasher.update(&bytes[..4 * piece.len()]);
    }
    BlockHash(hasher.finalize().into())
}
