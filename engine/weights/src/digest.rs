//! Identities of weights.
//!
//! Two kinds, for two purposes:
//!
//! - [`full_digest`] is the SHA-256 of a whole file. It proves that a download is what its publisher announced.
//! - [`Checkpoint::digest`](crate::Checkpoint::digest) is a fingerprint that is cheap enough for every start. It keys
//!   caches (KV blocks computed by one model must never be used by another) and lets engines and edges notice that they
//!   serve different models. It covers every header byte (names, types, shapes, offsets, metadata with tokenizer and
//!   chat template), every file's length, and up to 64 pages of content spread over each file. Two different
//!   training states differ in nearly every page, so they differ here. It is *not* a proof of integrity: a change that
//!   touches only pages outside the sample goes unseen, by accident (a flipped bit) or by intent.

use std::fmt;
use std::io::Read;
use std::path::Path;

use sha2::{Digest as _, Sha256};

use crate::WeightsError;

/// Bytes of one content sample: a page on every platform we serve on.
const SAMPLE_BYTES: usize = 4096;

/// Content samples per file; 64 page faults are a few milliseconds on a cold network disk.
const MAX_SAMPLES: usize = 64;

/// A SHA-256 value.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest([u8; 32]);

impl Digest {
    /// Wraps a SHA-256 value that is already known.
    pub const fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The 32 bytes.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Parses 64 hexadecimal digits; `None` for anything else.
    pub fn from_hex(text: &str) -> Option<Self> {
        let digits = text.as_bytes();
        if digits.len() != 64 {
            return None;
        }
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(digits.as_chunks::<2>().0) {
            let high = (pair[0] as char).to_digit(16)?;
            let low = (pair[1] as char).to_digit(16)?;
            *byte = (high * 16 + low) as u8;
        }
        Some(Self(bytes))
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Digest({self})")
    }
}

/// SHA-256 of the whole file at `path`, by ordinary reads.
///
/// # Errors
/// [`WeightsError::Open`] when the file can't be opened or read.
pub fn full_digest(path: &Path) -> Result<Digest, WeightsError> {
    let open = |source| WeightsError::Open {
        path: path.to_owned(),
        source,
    };
    let (mut file, _) = kvasir_files::open_regular(path).map_err(|error| open(error.into_io()))?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        let read = file.read(&mut buffer).map_err(open)?;
        if read == 0 {
            return Ok(Digest(hash.finalize().into()));
        }
        hash.update(&buffer[..read]);
    }
}

/// The fingerprint over files, each given as its content and the length of its header, in a stable order.
pub(crate) fn fingerprint<'a>(files: impl Iterator<Item = (&'a [u8], usize)>) -> Digest {
    let mut hash = Sha256::new();
    hash.update(b"kvasir weights fingerprint 1\n");
    for (bytes, header_len) in files {
        let (header, content) = bytes.split_at(header_len.min(bytes.len()));
        hash.update((bytes.len() as u64).to_le_bytes());
        hash.update((header.len() as u64).to_le_bytes());
        hash.update(header);
        for start in sample_starts(content.len()) {
            hash.update(&content[start..content.len().min(start + SAMPLE_BYTES)]);
        }
    }
    Digest(hash.finalize().into())
}

/// Offsets of the samples in `len` bytes of content: all of it when it is small, else evenly spread with both ends.
fn sample_starts(len: usize) -> impl Iterator<Item = usize> {
    let pages = len.div_ceil(SAMPLE_BYTES);
    let count = pages.min(MAX_SAMPLES);
    let last_page = pages.saturating_sub(1);
    (0..count).map(move |i| {
        // `count` is above 1 wherever `i` is above 0. The product stays far below 2^64 for any file.
        let page = if i == 0 {
            0
        } else {
            (i as u64 * last_page as u64 / (count as u64 - 1)) as usize
        };
        page * SAMPLE_BYTES
    })
}

#[cfg(test)]
mod tests {
    use super::{Digest, MAX_SAMPLES, SAMPLE_BYTES, fingerprint, full_digest, sample_starts};

    fn of(bytes: &[u8], header_len: usize) -> Digest {
        fingerprint(std::iter::once((bytes, header_len)))
    }

    #[test]
    fn small_content_is_sampled_whole() {
        let starts: Vec<_> = sample_starts(3 * SAMPLE_BYTES + 1).collect();
        assert_eq!(starts, [0, SAMPLE_BYTES, 2 * SAMPLE_BYTES, 3 * SAMPLE_BYTES]);
        assert_eq!(sample_starts(0).count(), 0);
    }

    #[test]
    fn large_content_is_sampled_at_both_ends() {
        let starts: Vec<_> = sample_starts(1000 * SAMPLE_BYTES).collect();
        assert_eq!(starts.len(), MAX_SAMPLES);
        assert_eq!((starts[0], starts[MAX_SAMPLES - 1]), (0, 999 * SAMPLE_BYTES));
        assert!(starts.is_sorted_by(|a, b| a < b));
    }

    #[test]
    fn every_header_byte_and_the_length_change_the_fingerprint() {
        let bytes = vec![7; 100];
        let base = of(&bytes, 10);
        for i in 0..10 {
            let mut changed = bytes.clone();
            changed[i] ^= 1;
            assert_ne!(of(&changed, 10), base, "byte {i}");
        }
        assert_ne!(of(&bytes[..99], 10), base);
        assert_ne!(of(&bytes, 11), base);
    }

    #[test]
    fn hex_form_reads_back() {
        let digest = of(b"abc", 1);
        assert_eq!(Digest::from_hex(&digest.to_string()), Some(digest));
        assert_eq!(Digest::from_hex("12"), None);
        assert_eq!(Digest::from_hex(&"g".repeat(64)), None);
    }

    #[test]
    fn full_digest_is_the_sha256_of_the_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "abc").unwrap();
        // The test vector of FIPS 180-4.
        let expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(full_digest(file.path()).unwrap().to_string(), expected);
    }
}
