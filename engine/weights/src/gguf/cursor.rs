//! A reading position that can't leave its slice.

/// A read was refused because the slice is too short; the position didn't move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Short {
    /// Bytes asked for.
    pub(super) needed: u64,
    /// Bytes left.
    pub(super) available: u64,
}

/// A position in a byte slice.
#[derive(Debug)]
pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    position: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, position: 0 }
    }

    /// Bytes read so far.
    pub(super) fn position(&self) -> usize {
        self.position
    }

    /// Bytes left.
    pub(super) fn remaining(&self) -> u64 {
        (self.bytes.len() - self.position) as u64
    }

    /// The next `len` bytes.
    pub(super) fn take(&mut self, len: u64) -> Result<&'a [u8], Short> {
        if len > self.remaining() {
            return Err(Short {
                needed: len,
                available: self.remaining(),
            });
        }
        // `len` fits `usize` because the slice has that many bytes.
        let start = self.position;
        self.position += len as usize;
        Ok(&self.bytes[start..self.position])
    }

    /// The next `N` bytes.
    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], Short> {
        let short = Short {
            needed: N as u64,
            available: self.remaining(),
        };
        let bytes = *self.bytes[self.position..].first_chunk().ok_or(short)?;
        self.position += N;
        Ok(bytes)
    }
}
