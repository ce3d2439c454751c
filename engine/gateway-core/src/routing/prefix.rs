//! How much of a prompt counts for the choice of an engine.

use std::num::NonZeroU32;

/// Longest character in UTF-8, in bytes.
const MAX_CHAR_BYTES: usize = 4;

/// The number of tokens at a prompt's beginning whose text lies within its first `max_chars` characters. `bytes_of` gives the bytes that a token
/// stands for; ids without bytes take up nothing.
///
/// Characters are Unicode scalar values of the text that the bytes make, where what isn't UTF-8 is U+FFFD, once for each maximal subpart, as the
/// Unicode standard recommends (section 3.9) and detokenizers do it. A token that ends inside a character reaches to that one's end.
pub fn tokens_within<'a>(tokens: &[u32], bytes_of: impl Fn(u32) -> &'a [u8], max_chars: NonZeroU32) -> usize {
    let mut text = Characters::default();
    let goes_beyond = |token: &u32| text.push(bytes_of(*token)) > u64::from(max_chars.get());
    tokens.iter().position(goes_beyond).unwrap_or(tokens.len())
}

/// Counts the characters of a text that comes in pieces.
#[derive(Debug, Default)]
struct Characters {
    /// Those that are complete, or certainly broken.
    num_complete: u64,
    /// The bytes of one that may still become complete.
    pending: Vec<u8>,
}

impl Characters {
    /// Takes more bytes; answers how many characters have begun.
    fn push(&mut self, bytes: &[u8]) -> u64 {
        if self.pending.is_empty() && bytes.is_ascii() {
            self.num_complete += bytes.len() as u64;
            return self.num_complete;
        }
        self.pending.extend_from_slice(bytes);
        let mut incomplete = 0;
        for chunk in self.pending.utf8_chunks() {
            self.num_complete += chunk.valid().chars().count() as u64;
            incomplete = chunk.invalid().len();
            self.num_complete += u64::from(incomplete > 0);
        }
        // Only the last chunk may end too early; all others are broken for good.
        let rest = &self.pending[self.pending.len() - incomplete..];
        let may_go_on = incomplete > 0
            && rest.len() < MAX_CHAR_BYTES
            && std::str::from_utf8(rest).is_err_and(|error| error.error_len().is_none());
        if may_go_on {
            self.num_complete -= 1;
            self.pending.drain(..self.pending.len() - incomplete);
        } else {
            self.pending.clear();
        }
        self.num_complete + u64::from(may_go_on)
    }
}
