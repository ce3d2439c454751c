//! Text assets: the files an edge needs to turn text into tokens and back, and their digest.

use std::collections::BTreeMap;

use sha2::{Digest, Sha256};

use crate::types::TextAssetsChunk;

/// The files an edge needs for text: name to content, for example `tokenizer.json`.
pub type TextAssetFiles = BTreeMap<String, Vec<u8>>;

/// Bytes of one chunk on the wire, below the 4 MiB that gRPC peers accept by default.
const CHUNK_BYTES: usize = 1 << 20;

/// Files in one set, and bytes of all of them; the largest tokenizers have some 40 MB.
const MAX_FILES: usize = 64;
const MAX_TOTAL_BYTES: usize = 512 << 20;

/// The digest of a set of files: SHA-256 in lower-case hex over a tag and, in order of name, each name and content with
/// its length before it, so that no two sets give the same bytes.
pub fn digest(files: &TextAssetFiles) -> String {
    let mut hash = Sha256::new();
    hash.update(b"kvasir text assets v1\0");
    for (name, content) in files {
        for part in [name.as_bytes(), content] {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
    }
    hash.finalize()
        .iter()
        .fold(String::with_capacity(64), |hex, byte| {
            hex + &format!("{byte:02x}")
        })
}

/// Cuts files into chunks for the wire, in order of name. An empty file is one empty chunk.
pub fn chunks(files: &TextAssetFiles) -> impl Iterator<Item = TextAssetsChunk> + '_ {
    files.iter().flat_map(|(name, content)| {
        let whole = content.is_empty().then_some(&content[..]);
        whole
            .into_iter()
            .chain(content.chunks(CHUNK_BYTES))
            .map(|part| TextAssetsChunk {
                name: name.clone(),
                data: part.to_vec().into(),
            })
    })
}

/// Why chunks don't make a set of files.
#[derive(Debug, thiserror::Error, Eq, PartialEq)]
pub enum AssetError {
    /// The name could leave the folder it is written to, or is empty.
    #[error("the engine sent a text asset named {0:?}, which is not a plain file name")]
    Name(String),
    /// A file came in two places.
    #[error("the engine sent the text asset {0:?} twice or out of order")]
    Order(String),
    /// Too many files.
    #[error("the engine sent more than {MAX_FILES} text assets")]
    Files,
    /// Too many bytes.
    #[error("the engine sent more than {MAX_TOTAL_BYTES} bytes of text assets")]
    Bytes,
    /// The content isn't what the digest promised.
    #[error(
        "the text assets have digest {found}, but {wanted} was asked for: the transfer broke or the engine was replaced"
    )]
    Digest {
        /// What was asked for.
        wanted: String,
        /// What came.
        found: String,
    },
}

/// Puts chunks together again and checks them.
#[derive(Debug, Default)]
pub struct Assembler {
    files: TextAssetFiles,
    total_bytes: usize,
}

impl Assembler {
    /// Takes the next chunk.
    ///
    /// # Errors
    /// If the name isn't a plain one, files are out of order, or a limit is passed.
    pub fn push(&mut self, chunk: &TextAssetsChunk) -> Result<(), AssetError> {
        let name = &chunk.name;
        if name.is_empty() || name.starts_with('.') || name.contains(['/', '\\', '\0']) || name.len() > 255 {
            return Err(AssetError::Name(name.chars().take(64).collect()));
        }
        self.total_bytes = self.total_bytes.saturating_add(chunk.data.len());
        if self.total_bytes > MAX_TOTAL_BYTES {
            return Err(AssetError::Bytes);
        }
        let full = self.files.len() >= MAX_FILES;
        match self.files.last_entry() {
            Some(mut last) if last.key() == name => last.get_mut().extend_from_slice(&chunk.data),
            Some(last) if last.key() > name => return Err(AssetError::Order(name.clone())),
            _ if full => return Err(AssetError::Files),
            _ => {
                self.files.insert(name.clone(), chunk.data.to_vec());
            }
        }
        Ok(())
    }

    /// The files, if they are what `wanted` promised.
    ///
    /// # Errors
    /// If their digest is another one.
    pub fn finish(self, wanted: &str) -> Result<TextAssetFiles, AssetError> {
        let found = digest(&self.files);
        if found == wanted {
            Ok(self.files)
        } else {
            Err(AssetError::Digest {
                wanted: wanted.to_owned(),
                found,
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(list: &[(&str, &[u8])]) -> TextAssetFiles {
        list.iter()
            .map(|(name, content)| ((*name).to_owned(), content.to_vec()))
            .collect()
    }

    fn chunk(name: &str, data: &[u8]) -> TextAssetsChunk {
        TextAssetsChunk {
            name: name.to_owned(),
            data: data.to_vec().into(),
        }
    }

    #[test]
    fn chunks_assemble_to_the_same_files() {
        let big: Vec<u8> = (0..3 * CHUNK_BYTES + 5).map(|i| (i % 251) as u8).collect();
        let files = files(&[("a.json", b"{}"), ("empty", b""), ("tokenizer.json", &big)]);
        let mut assembler = Assembler::default();
        for chunk in chunks(&files) {
            assembler.push(&chunk).unwrap();
        }
        assert_eq!(assembler.finish(&digest(&files)).unwrap(), files);
    }

    #[test]
    fn the_digest_depends_on_where_a_name_ends() {
        assert_ne!(digest(&files(&[("a", b"bc")])), digest(&files(&[("ab", b"c")])));
        assert_ne!(digest(&files(&[("a", b"")])), digest(&files(&[])));
    }

    #[test]
    fn the_digest_is_the_one_edges_of_other_versions_compute() {
        assert_eq!(
            digest(&files(&[("tokenizer.json", b"{}")])),
            "867fb31354637fc37206fff873be3934ea453d9500e4255cf89833fe6c71866c"
        );
    }

    #[test]
    fn changed_content_is_refused() {
        let wanted = digest(&files(&[("a", b"1")]));
        let mut assembler = Assembler::default();
        assembler.push(&chunk("a", b"2")).unwrap();
        assert!(matches!(
            assembler.finish(&wanted),
            Err(AssetError::Digest { .. })
        ));
    }

    #[test]
    fn names_that_leave_the_folder_are_refused() {
        for name in ["", "..", "../x", "a/b", "a\\b", ".hidden", "a\0b"] {
            let refused = Assembler::default().push(&chunk(name, b"x"));
            assert_eq!(refused, Err(AssetError::Name(name.to_owned())), "{name:?}");
        }
    }

    #[test]
    fn a_file_that_comes_back_later_is_refused() {
        let mut assembler = Assembler::default();
        assembler.push(&chunk("b", b"1")).unwrap();
        assert_eq!(
            assembler.push(&chunk("a", b"1")),
            Err(AssetError::Order("a".to_owned()))
        );
    }

    #[test]
    fn too_many_files_are_refused() {
        let mut assembler = Assembler::default();
        for i in 0..MAX_FILES {
            assembler.push(&chunk(&format!("{i:03}"), b"")).unwrap();
        }
        assert_eq!(assembler.push(&chunk("z", b"")), Err(AssetError::Files));
    }
}
