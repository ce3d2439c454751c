//! One interface over the formats.

use std::path::{Path, PathBuf};

use crate::digest::fingerprint;
use crate::map::MappedFile;
use crate::tensor::{StoredType, TensorEntry};
use crate::{DType, Digest, Gguf, Safetensors, TensorView, WeightsError};

/// A model's weights, mapped and checked.
#[derive(Debug)]
pub enum Checkpoint {
    /// One GGUF file.
    Gguf(Gguf),
    /// One or more safetensors files.
    Safetensors(Safetensors),
}

impl Checkpoint {
    /// Opens a GGUF or safetensors file, an index of safetensors files, or a directory that holds `model.safetensors`,
    /// `model.safetensors.index.json`, or exactly one `.gguf` file; in this order.
    ///
    /// # Errors
    /// [`WeightsError`] with the path; pickled weights are refused whatever their name.
    pub fn open(path: &Path) -> Result<Self, WeightsError> {
        let metadata = std::fs::metadata(path).map_err(|source| WeightsError::Open {
            path: path.to_owned(),
            source,
        })?;
        if metadata.is_dir() {
            return Self::open_dir(path);
        }
        if path.to_string_lossy().ends_with(".safetensors.index.json") {
            return Safetensors::open_index(path).map(Self::Safetensors);
        }
        Self::open_file(MappedFile::open(path)?)
    }

    fn open_dir(dir: &Path) -> Result<Self, WeightsError> {
        let single = dir.join("model.safetensors");
        if single.exists() {
            return Safetensors::open(&single).map(Self::Safetensors);
        }
        let index = dir.join("model.safetensors.index.json");
        if index.exists() {
            return Safetensors::open_index(&index).map(Self::Safetensors);
        }
        match gguf_files(dir)?.as_slice() {
            [one] => Gguf::open(one).map(Self::Gguf),
            [] => Err(WeightsError::NotAModel {
                path: dir.to_owned(),
                reason: "the directory has no model.safetensors, model.safetensors.index.json or .gguf file",
            }),
            several => Err(WeightsError::SeveralGguf {
                path: dir.to_owned(),
                count: several.len(),
            }),
        }
    }

    /// Content decides before the name does: caches keep files under names without extension.
    fn open_file(file: MappedFile) -> Result<Self, WeightsError> {
        let bytes = file.bytes();
        if bytes.starts_with(b"GGUF") {
            return Gguf::from_map(file).map(Self::Gguf);
        }
        // A pickle of protocol 2 and above begins with 0x80, torch's newer container is a zip archive. The eighth byte
        // of a safetensors file is the topmost of its header's length, never above zero; neither looks like that.
        let is_pickle = matches!(bytes, [0x80, 2..=5, ..]) && !looks_like_safetensors(bytes);
        let reason = if is_pickle || bytes.starts_with(b"PK\x03\x04") {
            "it holds pickled data, which can run code when it is loaded; convert it to safetensors"
        } else if file
            .path()
            .extension()
            .is_some_and(|extension| extension == "gguf")
        {
            // The parser's error says which bytes it found.
            return Gguf::from_map(file).map(Self::Gguf);
        } else if looks_like_safetensors(bytes)
            || file
                .path()
                .extension()
                .is_some_and(|extension| extension == "safetensors")
        {
            return Safetensors::from_map(file).map(Self::Safetensors);
        } else {
            "it is neither a GGUF nor a safetensors file"
        };
        Err(WeightsError::NotAModel {
            path: file.path().to_owned(),
            reason,
        })
    }

    /// The tensor called `name`.
    ///
    /// # Errors
    /// [`WeightsError::MissingTensor`] or [`WeightsError::UnsupportedDType`].
    pub fn tensor(&self, name: &str) -> Result<TensorView<'_>, WeightsError> {
        match self {
            Self::Gguf(gguf) => gguf.tensor(name),
            Self::Safetensors(safetensors) => safetensors.tensor(name),
        }
    }

    /// Whether there is a tensor called `name`, of whatever type.
    pub fn contains(&self, name: &str) -> bool {
        match self {
            Self::Gguf(gguf) => gguf.entries().contains_key(name),
            Self::Safetensors(safetensors) => safetensors.contains(name),
        }
    }

    /// The names of all tensors, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries().map(|(name, _)| name)
    }

    /// Bytes of all tensors.
    pub fn total_bytes(&self) -> u64 {
        self.entries().map(|(_, entry)| entry.num_bytes()).sum()
    }

    /// Elements of all tensors.
    pub fn num_parameters(&self) -> u64 {
        self.entries()
            .map(|(_, entry)| entry.num_elements())
            .fold(0, u64::saturating_add)
    }

    /// The type that most of the weights' bytes have; F32 when there are none.
    pub fn main_dtype(&self) -> DType {
        let bytes_of = |wanted: DType| -> u64 {
            let of_type = self
                .entries()
                .filter(|(_, entry)| entry.stored == StoredType::Known(wanted));
            of_type.map(|(_, entry)| entry.num_bytes()).sum()
        };
        // Of equal sums the first in the order of `DType::ALL` wins: `max_by_key` returns the last maximum.
        DType::ALL
            .into_iter()
            .rev()
            .max_by_key(|&dtype| bytes_of(dtype))
            .unwrap_or(DType::F32)
    }

    /// An identity that is cheap enough for every start; see the [`Digest`] module text for what it covers: all header
    /// bytes, file lengths and up to 64 sampled pages per file. It is no proof of integrity.
    pub fn digest(&self) -> Digest {
        fingerprint(self.files().map(|(file, header_len)| (file.bytes(), header_len)))
    }

    /// Tells the kernel that the maps' pages aren't needed now, for use after a backend has packed its own copies.
    /// Views stay valid; reading them loads pages again.
    pub fn advise_done(&self) {
        self.files().for_each(|(file, _)| file.advise_done());
    }

    fn entries(&self) -> Box<dyn Iterator<Item = (&str, &TensorEntry)> + '_> {
        match self {
            Self::Gguf(gguf) => Box::new(gguf.entries().iter().map(|(name, entry)| (name.as_str(), entry))),
            Self::Safetensors(safetensors) => Box::new(safetensors.entries()),
        }
    }

    fn files(&self) -> Box<dyn Iterator<Item = (&MappedFile, usize)> + '_> {
        match self {
            Self::Gguf(gguf) => Box::new(std::iter::once((gguf.file(), gguf.header_len()))),
            Self::Safetensors(safetensors) => Box::new(safetensors.files()),
        }
    }
}

/// Whether the bytes begin with a plausible header length and the start of a JSON object.
fn looks_like_safetensors(bytes: &[u8]) -> bool {
    bytes
        .first_chunk()
        .is_some_and(|len| u64::from_le_bytes(*len) < bytes.len() as u64)
        && bytes.get(8) == Some(&b'{')
}

fn gguf_files(dir: &Path) -> Result<Vec<PathBuf>, WeightsError> {
    let open = |source| WeightsError::Open {
        path: dir.to_owned(),
        source,
    };
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(open)? {
        let path = entry.map_err(open)?.path();
        if path.extension().is_some_and(|extension| extension == "gguf") {
            found.push(path);
        }
    }
    Ok(found)
}
