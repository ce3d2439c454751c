//! The tokens of a sequence.
//!
//! A step appends one token to each of a thousand sequences. The last few therefore lie in the sequence itself, beside the counts that the step
//! reads anyhow, and go to the buffer that holds all others a whole row at a time: one cache miss for a row instead of one for each token.

use std::ops::Range;

use crate::ids::TokenId;

/// A cache line of tokens.
const ROW: usize = 16;

/// To give a prompt of this many tokens more room later would copy so much that a step shows it.
const LONG_PROMPT: usize = 1 << 16;

/// A list that grows by one token at a time.
#[derive(Debug)]
#[cfg_attr(feature = "model", derive(Clone))]
#[repr(C)]
pub(crate) struct TokenLog {
    len: u32,
    num_recent: u32,
    /// The newest ones, as far as they aren't in `settled`.
    recent: [TokenId; ROW],
    /// All before them.
    settled: Vec<TokenId>,
}

impl TokenLog {
    /// These tokens, which become at most `max_len`.
    pub(crate) fn new(tokens: &[TokenId], max_len: u32) -> Self {
        let is_long = tokens.len() >= LONG_PROMPT;
        let room = if is_long { max_len as usize } else { 0 };
        let mut settled = Vec::with_capacity(room.max(tokens.len()));
        settled.extend_from_slice(tokens);
        Self {
            len: tokens.len() as u32,
            num_recent: 0,
            recent: [0; ROW],
            settled,
        }
    }

    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    /// Room for `len` tokens in all, so that none of them allocates.
    pub(crate) fn reserve(&mut self, len: u32) {
        let more = (len as usize).saturating_sub(self.settled.len());
        self.settled.reserve_exact(more);
    }

    pub(crate) fn push(&mut self, token: TokenId) {
        if self.num_recent as usize == ROW {
            self.settle();
        }
        self.recent[self.num_recent as usize] = token;
        self.num_recent += 1;
        self.len += 1;
    }

    /// Appends a range of them to a list.
    pub(crate) fn copy(&self, range: Range<u32>, into: &mut Vec<TokenId>) {
        let (start, end) = (range.start as usize, range.end as usize);
        let split = self.settled.len();
        into.extend_from_slice(&self.settled[start.min(split)..end.min(split)]);
        into.extend_from_slice(&self.recent[start.max(split) - split..end.max(split) - split]);
    }

    /// A range of them in one piece.
    pub(crate) fn slice(&mut self, range: Range<usize>) -> &[TokenId] {
        if range.end > self.settled.len() {
            self.settle();
        }
        &self.settled[range]
    }

    /// The same of a range that was asked for before.
    pub(crate) fn settled(&self, range: Range<usize>) -> &[TokenId] {
        &self.settled[range]
    }

    /// All of them.
    pub(crate) fn to_vec(&self) -> Vec<TokenId> {
        let mut all = Vec::with_capacity(self.len as usize);
        self.copy(0..self.len, &mut all);
        all
    }

    fn settle(&mut self) {
        let recent = &self.recent[..self.num_recent as usize];
        self.settled.extend_from_slice(recent);
        self.num_recent = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::{ROW, TokenLog};

    #[test]
    fn any_range_is_what_was_pushed_wherever_the_row_is_cut() {
        for prompt_len in [0, 1, 15, 16, 17] {
            for asked_at in 0..40 {
                let all: Vec<u32> = (0..prompt_len + 40).collect();
                let mut log = TokenLog::new(&all[..prompt_len as usize], 0);
                for (count, &token) in all[prompt_len as usize..].iter().enumerate() {
                    log.push(token);
                    if count == asked_at {
                        let end = log.len() as usize;
                        assert_eq!(log.slice(end / 2..end), &all[end / 2..end]);
                        assert_eq!(log.settled(end / 2..end), &all[end / 2..end]);
                    }
                }
                assert_eq!(log.to_vec(), all);
                for start in 0..log.len() {
                    for end in start..=log.len() {
                        let mut copied = vec![7];
                        log.copy(start..end, &mut copied);
                        assert_eq!(copied[1..], all[start as usize..end as usize]);
                    }
                }
            }
        }
    }

    #[test]
    fn what_was_reserved_is_enough_to_the_last_token() {
        let mut log = TokenLog::new(&[1, 2, 3], 0);
        log.reserve(3 + 3 * ROW as u32);
        let capacity = log.settled.capacity();
        for token in 0..3 * ROW as u32 {
            log.push(token);
        }
        assert_eq!(log.slice(0..51).len(), 51);
        assert_eq!(log.settled.capacity(), capacity);
    }
    #[test]
    fn a_long_prompt_has_its_room_from_the_start() {
        let prompt = vec![0; super::LONG_PROMPT];
        let mut log = TokenLog::new(&prompt, prompt.len() as u32 + 100);
        let before = log.settled.as_ptr();
        log.reserve(prompt.len() as u32 + 100);
        assert_eq!(log.settled.as_ptr(), before);
        assert!(log.settled.capacity() >= prompt.len() + 100);
    }
}
