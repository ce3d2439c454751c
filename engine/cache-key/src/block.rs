//! The key of one block: its parent's key and its tokens.

use sha2::block_api::compress256;

/// Names the encoding, so that a block's key can never equal a root's.
const BLOCK_DOMAIN: [u32; 3] = [
    u32::from_le_bytes(*b"kvas"),
    u32::from_le_bytes(*b"ir.k"),
    u32::from_le_bytes(*b"v.v2"),
];

/// SHA-256's initial state (FIPS 180-4, section 5.3.3).
const INITIAL_STATE: [u32; 8] = [
    0x6a09_e667,
    0xbb67_ae85,
    0x3c6e_f372,
    0xa54f_f53a,
    0x510e_527f,
    0x9b05_688c,
    0x1f83_d9ab,
    0x5be0_cd19,
];

/// SHA-256 reads words of 4 bytes, as wide as a token, and compresses 16 of them at a time.
const WORDS_PER_CHUNK: usize = 16;
/// Of the domain, the number of tokens and the parent.
const HEADER_WORDS: usize = (12 + 8 + 32) / 4;
/// Of the end mark and the message's length.
const PADDING_WORDS: usize = 3;
/// Compressed in one call; blocks of up to 64 tokens take one.
const CHUNKS_PER_PIECE: usize = 5;

/// The key of one full block of KV, which stands for every token from the start of its sequence to the block's end.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct BlockHash(pub [u8; 32]);

impl BlockHash {
    /// Its first 8 bytes as a big-endian number, which is how engines tell gateways what they hold: the order of short keys is that
    /// of the keys. Enough to choose a route by, never to read a block by.
    pub const fn short(&self) -> u64 {
        let [a, b, c, d, e, f, g, h, ..] = self.0;
        u64::from_be_bytes([a, b, c, d, e, f, g, h])
    }
}

/// The key of the block that holds `tokens` and follows `parent`.
///
/// It is SHA-256 of the domain (12 bytes), the number of tokens (8 bytes), the parent (32 bytes) and the tokens (4 bytes each), all
/// little-endian. The number makes engines with different block sizes disagree instead of sharing by accident.
///
/// Header and padding fill one chunk, so a block of 16 tokens takes two compressions, and every 16 further tokens one more. Fewer aren't
/// possible: the parent's 32 bytes, 64 bytes of tokens and SHA-256's own 9 don't fit in one chunk.
pub fn block_hash(parent: &BlockHash, tokens: &[u32]) -> BlockHash {
    match tokens.len() {
        16 => hash_whole::<2>(parent, &tokens[..16]),
        32 => hash_whole::<3>(parent, &tokens[..32]),
        64 => hash_whole::<5>(parent, &tokens[..64]),
        _ => hash_in_pieces(parent, tokens),
    }
}

/// A message of just this many chunks, in one call.
///
/// Inlined where the number of tokens is known, the header's first 16 bytes are one constant and so one store. A processor can hand that on to the
/// first rounds at once; bytes that several stores wrote it hands on only when the key of the parent is finished.
#[expect(clippy::inline_always, reason = "it is for lengths that the compiler sees")]
#[inline(always)]
fn hash_whole<const NUM_CHUNKS: usize>(parent: &BlockHash, tokens: &[u32]) -> BlockHash {
    let mut chunks = [[0; 4 * WORDS_PER_CHUNK]; NUM_CHUNKS];
    let num_words = HEADER_WORDS + tokens.len();
    put_header(&mut chunks, tokens.len(), parent);
    put_words(&mut chunks, HEADER_WORDS, tokens);
    put_padding(&mut chunks, num_words, num_words);
    let mut state = INITIAL_STATE;
    compress256(&mut state, &chunks);
    BlockHash(to_bytes(state))
}

fn hash_in_pieces(parent: &BlockHash, tokens: &[u32]) -> BlockHash {
    // The crate's streaming interface costs as much again as the two compressions of a small block, so the message is padded here.
    let mut state = INITIAL_STATE;
    let mut chunks = [[0; 4 * WORDS_PER_CHUNK]; CHUNKS_PER_PIECE + 1];
    put_header(&mut chunks, tokens.len(), parent);
    let mut num_words = HEADER_WORDS;
    let mut rest = tokens;
    loop {
        let room = WORDS_PER_CHUNK * CHUNKS_PER_PIECE - num_words;
        let (now, later) = rest.split_at(rest.len().min(room));
        put_words(&mut chunks, num_words, now);
        num_words += now.len();
        rest = later;
        if rest.is_empty() {
            break;
        }
        compress256(&mut state, &chunks[..CHUNKS_PER_PIECE]);
        num_words = 0;
    }
    let num_chunks = (num_words + PADDING_WORDS).div_ceil(WORDS_PER_CHUNK);
    let last = &mut chunks[..num_chunks];
    put_padding(last, num_words, HEADER_WORDS + tokens.len());
    compress256(&mut state, last);
    BlockHash(to_bytes(state))
}

type Chunk = [u8; 4 * WORDS_PER_CHUNK];

fn put_header(chunks: &mut [Chunk], num_tokens: usize, parent: &BlockHash) {
    let [low, high] = [num_tokens as u32, (num_tokens as u64 >> 32) as u32];
    let [a, b, c] = BLOCK_DOMAIN;
    put_words(chunks, 0, &[a, b, c, low]);
    put_words(chunks, 4, &[high]);
    chunks.as_flattened_mut()[20..52].copy_from_slice(&parent.0);
}

fn put_words(chunks: &mut [Chunk], first: usize, words: &[u32]) {
    let places = chunks.as_flattened_mut()[4 * first..].chunks_exact_mut(4);
    for (place, word) in places.zip(words) {
        place.copy_from_slice(&word.to_le_bytes());
    }
}

/// A set bit behind the first `num_words` words of the last chunks, zeros, and the length of the whole message in bits (FIPS 180-4, section 5.1.1).
fn put_padding(last: &mut [Chunk], num_words: usize, message_words: usize) {
    let padding = &mut last.as_flattened_mut()[4 * num_words..];
    let (zeros, length) = padding.split_at_mut(padding.len() - 8);
    zeros.fill(0);
    zeros[0] = 0x80;
    length.copy_from_slice(&(32 * message_words as u64).to_be_bytes());
}

fn to_bytes(state: [u32; 8]) -> [u8; 32] {
    let mut bytes = [0; 32];
    for (bytes, word) in bytes.chunks_exact_mut(4).zip(state) {
        bytes.copy_from_slice(&word.to_be_bytes());
    }
    bytes
}
