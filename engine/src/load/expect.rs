//! What somebody said that the model must be, held against what is there: its digest before anything of it is parsed, its form and its
//! quantization before its weights are read.

use std::path::{Path, PathBuf};

use kvasir_config::{ConfigError, LoadFormat, ModelConfig};
use kvasir_weights::{Checkpoint, Digest, OptionalKey, full_digest};
use sha2::{Digest as _, Sha256};

use super::LoadError;
use crate::fetch;

/// The model isn't what it was said to be.
#[derive(Debug, thiserror::Error)]
pub enum ExpectationError {
    /// Its digest is another one.
    #[error("{path} isn't what was asked for: its SHA-256 is {found}, expected {expected}")]
    Digest {
        /// The file or folder.
        path: PathBuf,
        /// What was said.
        expected: Digest,
        /// What it has.
        found: Digest,
    },
    /// It has another form.
    #[error("the model is {found}, and load-format is {wanted}: name other files, or leave load-format out")]
    Format {
        /// What was said.
        wanted: &'static str,
        /// What it has.
        found: &'static str,
    },
    /// Its weights are stored otherwise.
    #[error(
        "the weights are {found}, and quantization is {wanted}: name another file, or leave quantization out"
    )]
    Quantization {
        /// What was said.
        wanted: String,
        /// What they have.
        found: String,
    },
}

/// Compares the digest, if one was given.
///
/// # Errors
/// If it is another one, or a file can't be read.
pub(super) fn check_digest(model: &ModelConfig, path: &Path) -> Result<(), LoadError> {
    let Some(text) = &model.model_sha256.value else {
        return Ok(());
    };
    let expected = Digest::from_hex(text).ok_or_else(|| {
        ConfigError::Conflict(format!(
            "model-sha256 is {text:?}; it must be 64 hexadecimal digits, as `kvasir models digest` prints them"
        ))
    })?;
    let found = digest(path)?;
    if found == expected {
        return Ok(());
    }
    let path = path.to_owned();
    Err(LoadError::Expectation(Box::new(ExpectationError::Digest {
        path,
        expected,
        found,
    })))
}

/// Compares the form and the quantization, where they were given.
///
/// # Errors
/// If one is another.
pub(super) fn check_kind(model: &ModelConfig, checkpoint: &Checkpoint) -> Result<(), LoadError> {
    let found = match checkpoint {
        Checkpoint::Gguf(_) => LoadFormat::Gguf,
        Checkpoint::Safetensors(_) => LoadFormat::Safetensors,
    };
    let wanted = model.load_format.value;
    if wanted != LoadFormat::Auto && wanted != found {
        return Err(LoadError::Expectation(Box::new(ExpectationError::Format {
            wanted: wanted.as_str(),
            found: found.as_str(),
        })));
    }
    let Some(wanted) = &model.quantization.value else {
        return Ok(());
    };
    let mut names = vec![checkpoint.main_dtype().name()];
    names.extend(file_type(checkpoint)?.filter(|name| *name != names[0]));
    if names.iter().any(|name| name.eq_ignore_ascii_case(wanted)) {
        return Ok(());
    }
    Err(LoadError::Expectation(Box::new(ExpectationError::Quantization {
        wanted: wanted.clone(),
        found: names.join(" or "),
    })))
}

/// The SHA-256 of a model: of its file, or of a folder the SHA-256 of a list of its files, one `DIGEST  NAME` a line as `sha256sum` writes
/// them, in the order of names. The list has the files that a model is served from and no others, so that a copy of a repository has the
/// digest of the repository.
///
/// # Errors
/// If a file can't be read, or the folder holds no model.
pub(crate) fn digest(path: &Path) -> Result<Digest, LoadError> {
    if !path.is_dir() {
        return Ok(full_digest(path)?);
    }
    let mut files = fetch::model_files(path)?;
    if let [one] = files.as_slice() {
        return Ok(full_digest(&path.join(one))?);
    }
    files.sort_unstable();
    let mut list = String::new();
    for name in &files {
        let line = format!("{}  {name}\n", full_digest(&path.join(name))?);
        list.push_str(&line);
    }
    Ok(Digest::new(Sha256::digest(list.as_bytes()).into()))
}

/// What a GGUF file calls its mix of types: `general.file_type` of the GGUF specification.
fn file_type(checkpoint: &Checkpoint) -> Result<Option<&'static str>, LoadError> {
    let Checkpoint::Gguf(gguf) = checkpoint else {
        return Ok(None);
    };
    Ok(match gguf.get_u32("general.file_type").optional()? {
        Some(0) => Some("F32"),
        Some(1) => Some("F16"),
        Some(2) => Some("Q4_0"),
        Some(3) => Some("Q4_1"),
        Some(7) => Some("Q8_0"),
        Some(8) => Some("Q5_0"),
        Some(9) => Some("Q5_1"),
        Some(10) => Some("Q2_K"),
        Some(11) => Some("Q3_K_S"),
        Some(12) => Some("Q3_K_M"),
        Some(13) => Some("Q3_K_L"),
        Some(14) => Some("Q4_K_S"),
        Some(15) => Some("Q4_K_M"),
        Some(16) => Some("Q5_K_S"),
        Some(17) => Some("Q5_K_M"),
        Some(18) => Some("Q6_K"),
        Some(32) => Some("BF16"),
        _ => None,
    })
}

impl ExpectationError {
    /// Whether it is about the digest.
    pub(super) fn is_digest(&self) -> bool {
        matches!(self, Self::Digest { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folders_digest_is_that_of_sha256sums_list_and_only_of_what_is_served() {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in [
            ("model.safetensors", "weights"),
            ("config.json", "{}"),
            ("README.md", "not of the model"),
        ] {
            std::fs::write(folder.path().join(name), text).unwrap();
        }
        let of = |name: &str| full_digest(&folder.path().join(name)).unwrap();
        let list = format!(
            "{}  config.json\n{}  model.safetensors\n",
            of("config.json"),
            of("model.safetensors")
        );
        let expected = Digest::new(Sha256::digest(list.as_bytes()).into());
        assert_eq!(digest(folder.path()).unwrap(), expected);
        assert_eq!(
            digest(&folder.path().join("config.json")).unwrap(),
            of("config.json")
        );
    }

    #[test]
    fn another_digest_is_refused_before_anything_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.gguf");
        std::fs::write(&path, "no GGUF at all").unwrap();
        let mut model = ModelConfig::default();
        let mut check = |text: &str| {
            model.model_sha256.value = Some(text.to_owned());
            check_digest(&model, &path)
        };
        check(&full_digest(&path).unwrap().to_string()).unwrap();
        let error = check(&"0".repeat(64)).unwrap_err();
        assert!(matches!(error, LoadError::Expectation(_)), "{error}");
        let error = check("abc").unwrap_err();
        assert!(error.to_string().contains("64 hexadecimal digits"), "{error}");
    }
}
