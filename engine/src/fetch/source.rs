//! What a person typed, understood: a path, a repository, an address, or the default model.

use std::path::{Path, PathBuf};

use super::Wanted;
use super::default_model;
use super::direct::{self, DirectModel};
use super::hub::{HubModel, Selector};

/// Where a model comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The default model.
    Default,
    /// A file or directory.
    Local(PathBuf),
    /// A Hugging Face repository.
    Hub(HubModel),
    /// A file at an address.
    Direct(DirectModel),
}

/// Why a name can't be understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidName {
    /// Neither a path nor `org/name`.
    #[error("it is no existing path and not of the form org/name[@revision][:quant or :file.gguf]")]
    Form,
    /// A part has characters that the hub doesn't allow.
    #[error("`{part}` is not possible as a {what}")]
    Part {
        /// The part.
        part: String,
        /// What it was taken for.
        what: &'static str,
    },
    /// An address has no host, or characters that no address has.
    #[error("it is no address of the form https://host/path/model.gguf#sha256=HEX")]
    Url,
    /// An address names something else than one GGUF file.
    #[error(
        "an address must name one .gguf file; of a folder with safetensors each file would need a digest of its own"
    )]
    NotOneFile,
    /// An address without the digest of its file.
    #[error(
        "an address needs the SHA-256 of its file: append #sha256= and 64 hex digits, as sha256sum prints them"
    )]
    NoDigest,
    /// Pickled weights were named.
    #[error(
        "`{file}` holds pickled weights, which can run code when they are loaded; use safetensors or GGUF"
    )]
    Pickle {
        /// The file.
        file: String,
    },
}

impl Source {
    /// Understands a name; an existing path always wins.
    ///
    /// # Errors
    /// [`InvalidName`].
    pub fn parse(model: Option<&str>) -> Result<Self, InvalidName> {
        let Some(model) = model.map(str::trim).filter(|model| !model.is_empty()) else {
            return Ok(Self::Default);
        };
        if Path::new(model).exists() || looks_like_path(model) {
            return Ok(Self::Local(model.into()));
        }
        if default_model::is_name(model) {
            return Ok(Self::Default);
        }
        if direct::is_url(model) {
            return direct::parse(model).map(Self::Direct);
        }
        parse_hub(model).map(Self::Hub)
    }
}

/// Whether a name can only be meant as a path, so that the message is about a missing file.
fn looks_like_path(model: &str) -> bool {
    let prefixes = ["/", "./", "../", "~/", ".\\", "..\\"];
    let is_weights_file = !model.contains(':')
        && ["gguf", "safetensors"]
            .iter()
            .any(|extension| has_extension(model, extension));
    model == "."
        || model == ".."
        || prefixes.iter().any(|prefix| model.starts_with(prefix))
        || is_weights_file
}

/// `org/name`, then `@revision` and `:selector` in any order.
fn parse_hub(model: &str) -> Result<HubModel, InvalidName> {
    let repo_end = model.find(['@', ':']).unwrap_or(model.len());
    let (repo, mut rest) = model.split_at(repo_end);
    let parts: Vec<_> = repo.split('/').collect();
    let [org, name] = parts[..] else {
        return Err(InvalidName::Form);
    };
    for part in [org, name] {
        check(part, "repository name", is_repo_part)?;
    }
    let mut revision = None;
    let mut selector = None;
    while let Some(mark) = rest.chars().next() {
        let body = &rest[1..];
        let end = body.find(['@', ':']).unwrap_or(body.len());
        let (part, after) = body.split_at(end);
        let slot = if mark == '@' { &mut revision } else { &mut selector };
        if slot.replace(part).is_some() {
            return Err(InvalidName::Form);
        }
        rest = after;
    }
    Ok(HubModel {
        repo: repo.to_owned(),
        revision: check(revision.unwrap_or("main"), "revision", is_relative_name)?.to_owned(),
        selector: selector.map(parse_selector).transpose()?,
        wanted: Wanted::default(),
    })
}

fn parse_selector(selector: &str) -> Result<Selector, InvalidName> {
    if is_pickle(selector) {
        return Err(InvalidName::Pickle {
            file: selector.to_owned(),
        });
    }
    if has_extension(selector, "gguf") {
        return Ok(Selector::File(
            check(selector, "file name", is_relative_name)?.to_owned(),
        ));
    }
    let is_quant = |part: &str| {
        !part.is_empty()
            && part.len() <= 32
            && part
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    };
    Ok(Selector::Quant(
        check(selector, "quantization", is_quant)?.to_owned(),
    ))
}

fn check<'a>(part: &'a str, what: &'static str, is_valid: fn(&str) -> bool) -> Result<&'a str, InvalidName> {
    if is_valid(part) {
        Ok(part)
    } else {
        Err(InvalidName::Part {
            part: part.to_owned(),
            what,
        })
    }
}

/// The hub's rule for the parts of a repository's name.
fn is_repo_part(part: &str) -> bool {
    !part.is_empty()
        && part.len() <= 96
        && part
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
        && !part.starts_with(['-', '.'])
        && !part.ends_with(['-', '.'])
        && !part.contains("--")
        && !part.contains("..")
}

/// Whether a file's name ends with `.extension`, in whatever case.
pub(super) fn has_extension(name: &str, extension: &str) -> bool {
    Path::new(name)
        .extension()
        .is_some_and(|found| found.eq_ignore_ascii_case(extension))
}

/// Whether a file of this name holds pickled objects.
pub(super) fn is_pickle(name: &str) -> bool {
    ["bin", "pt", "pth", "ckpt", "pkl"]
        .iter()
        .any(|extension| has_extension(name, extension))
}

/// Whether a slash-separated name stays below the directory that it is joined to, on every platform.
pub(super) fn is_relative_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= 1024
        && !name.contains(['\\', ':', '\0'])
        && !name.chars().any(char::is_control)
        && name
            .split('/')
            .all(|part| !part.is_empty() && part != "." && part != "..")
}

#[cfg(test)]
mod tests {
    use super::{InvalidName, Selector, Source, is_relative_name};

    fn hub(text: &str) -> (String, String, Option<Selector>) {
        match Source::parse(Some(text)).unwrap() {
            Source::Hub(model) => (model.repo, model.revision, model.selector),
            other => panic!("{text} is {other:?}"),
        }
    }

    #[test]
    fn no_name_and_short_names_mean_the_default_model() {
        let names = [
            "",
            "smollm2",
            "SmolLM2-135M-Instruct",
            "HuggingFaceTB/SmolLM2-135M-Instruct",
            "SMOLLM2",
        ];
        for name in names.into_iter().map(Some).chain([None]) {
            assert_eq!(Source::parse(name), Ok(Source::Default), "{name:?}");
        }
    }

    #[test]
    fn existing_path_wins_over_every_other_meaning() {
        let here = std::env::current_dir().unwrap();
        let here = here.to_str().unwrap();
        assert_eq!(Source::parse(Some(here)), Ok(Source::Local(here.into())));
        assert_eq!(Source::parse(Some("src")), Ok(Source::Local("src".into())));
    }

    #[test]
    fn missing_weights_file_is_a_path_not_a_repository() {
        for name in ["a/b.gguf", "./x", "../x/y", "/x/y", "~/m", "m.safetensors"] {
            assert_eq!(Source::parse(Some(name)), Ok(Source::Local(name.into())));
        }
    }

    #[test]
    fn repository_takes_revision_and_selector_in_any_order() {
        assert_eq!(hub("o/n"), ("o/n".into(), "main".into(), None));
        let quant = Some(Selector::Quant("Q4_K_M".into()));
        assert_eq!(hub("o/n:Q4_K_M"), ("o/n".into(), "main".into(), quant.clone()));
        assert_eq!(hub("o/n@v1:Q4_K_M"), ("o/n".into(), "v1".into(), quant.clone()));
        assert_eq!(
            hub("o/n:Q4_K_M@refs/pr/1"),
            ("o/n".into(), "refs/pr/1".into(), quant)
        );
        assert_eq!(
            hub("o/n:d/f.gguf"),
            (
                "o/n".into(),
                "main".into(),
                Some(Selector::File("d/f.gguf".into()))
            )
        );
    }

    #[test]
    fn names_that_lead_elsewhere_are_refused() {
        for name in [
            "o/..",
            "o/.n",
            "o/n--m",
            "o/n@../x",
            "o/n:../f.gguf",
            "o/n:/f.gguf",
            "o/n@",
            "o/n:",
            "o/n:a b",
        ] {
            assert!(
                matches!(Source::parse(Some(name)), Err(InvalidName::Part { .. })),
                "{name}"
            );
        }
        for name in ["n", "a/b/c", "o/n:a:b", "o/n@a@b", "https://x/y"] {
            assert!(Source::parse(Some(name)).is_err(), "{name}");
        }
    }

    #[test]
    fn pickled_file_is_refused_with_an_explanation() {
        let error = Source::parse(Some("o/n:pytorch_model.bin")).unwrap_err();
        assert!(error.to_string().contains("can run code"), "{error}");
    }

    #[test]
    fn relative_names_stay_below_their_directory() {
        assert!(is_relative_name("a/b.json"));
        for name in [
            "", "/a", "a/", "a//b", "..", "a/../b", "./a", "a\\b", "c:a", "a\nb", "a\0",
        ] {
            assert!(!is_relative_name(name), "{name:?}");
        }
    }
}
