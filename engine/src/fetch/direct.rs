//! One GGUF file at an address: `https://host/path/model.gguf#sha256=HEX`.
//!
//! The digest is part of the name and not optional. Nothing else says whether the file is the one that was meant, and with it a file that is
//! in the cache needs no question to the server. No credential is sent; an address that was signed carries its own in the query, which is
//! why messages leave the query out.

use std::path::PathBuf;

use kvasir_config::model_url::{self, DIGEST_MARK};
use kvasir_weights::Digest;
use ureq::http::Uri;

use super::hub::{Client, Remote, Trouble};
use super::source::{InvalidName, is_pickle};
use super::transfer::{self, Job};
use super::{FetchError, FetchOptions, LocalModel, Progress};

/// A file at an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectModel {
    /// The address, without the digest.
    pub url: String,
    /// The file's digest.
    pub sha256: Digest,
    /// The file's name at its publisher, without its ending.
    pub name: String,
}

/// Whether `model` is meant as an address.
pub(super) fn is_url(model: &str) -> bool {
    ["https://", "http://"].iter().any(|scheme| {
        model
            .get(..scheme.len())
            .is_some_and(|start| start.eq_ignore_ascii_case(scheme))
    })
}

/// Understands an address with its digest.
pub(super) fn parse(model: &str) -> Result<DirectModel, InvalidName> {
    let (url, digest) = model.split_once('#').map_or((model, None), |(url, _)| {
        (url, model[url.len()..].strip_prefix(DIGEST_MARK))
    });
    let uri: Uri = url.parse().map_err(|_| InvalidName::Url)?;
    let file = model_url::file_name(url);
    if uri.host().is_none_or(str::is_empty) {
        return Err(InvalidName::Url);
    }
    if is_pickle(file) {
        return Err(InvalidName::Pickle {
            file: file.to_owned(),
        });
    }
    let name = model_url::gguf_stem(file).ok_or(InvalidName::NotOneFile)?;
    let sha256 = digest.and_then(Digest::from_hex).ok_or(InvalidName::NoDigest)?;
    Ok(DirectModel {
        url: url.to_owned(),
        sha256,
        name: name.to_owned(),
    })
}

/// Finds the file in the cache or fetches it.
pub(super) fn resolve(
    model: &DirectModel,
    options: &FetchOptions,
    progress: &dyn Progress,
) -> Result<LocalModel, FetchError> {
    let path = path(model, options);
    // It has this name only if it was verified.
    if !path.is_file() {
        if options.offline {
            return Err(FetchError::Offline {
                repo: shown(&model.url).to_owned(),
                cache: options.cache_dir.clone(),
            });
        }
        std::fs::create_dir_all(&options.cache_dir).map_err(FetchError::io("create", &options.cache_dir))?;
        let client = Client::new(options);
        let job = Job {
            name: shown(&model.url),
            target: &path,
            incomplete: path.with_added_extension("incomplete"),
            lock: path.with_added_extension("lock"),
            size: client.size_of(&model.url)?,
            sha256: Some(model.sha256),
        };
        transfer::fetch(&client, &Remote::Url(&model.url), &job, progress)?;
    }
    Ok(LocalModel {
        name: model.name.clone(),
        path,
    })
}

/// Two files of one name and different content lie beside each other.
fn path(model: &DirectModel, options: &FetchOptions) -> PathBuf {
    let digest = model.sha256.to_string();
    let safe = |c: char| {
        if c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.') {
            c
        } else {
            '-'
        }
    };
    let stem: String = model.name.chars().map(safe).take(100).collect();
    options.cache_dir.join(format!("{stem}-{}.gguf", &digest[..16]))
}

/// The address without what may be secret in it.
pub(super) fn shown(url: &str) -> &str {
    url.split(['?', '#']).next().unwrap_or_default()
}

/// The error for an answer that isn't one of success.
pub(super) fn refusal(url: &str, status: u16) -> Trouble {
    let url = shown(url).to_owned();
    match status {
        401 | 403 => Trouble::Final(FetchError::UrlRefused { url, status }),
        404 | 410 => Trouble::Final(FetchError::NoSuchUrl { url, status }),
        408 | 429 | 500..=599 => Trouble::Passing(FetchError::UrlStatus { url, status }),
        _ => Trouble::Final(FetchError::UrlStatus { url, status }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEX: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    #[test]
    fn an_address_names_its_file_and_its_digest() {
        let model = parse(&format!("https://host:8443/a/Model.Q4.GGUF?sig=x#sha256={HEX}")).unwrap();
        assert_eq!(model.url, "https://host:8443/a/Model.Q4.GGUF?sig=x");
        assert_eq!(model.name, "Model.Q4");
        assert_eq!(model.sha256.to_string(), HEX);
        assert_eq!(shown(&model.url), "https://host:8443/a/Model.Q4.GGUF");
    }

    #[test]
    fn an_address_without_a_digest_or_of_another_file_is_refused() {
        for (model, error) in [
            ("https://h/m.gguf".to_owned(), InvalidName::NoDigest),
            ("https://h/m.gguf#sha256=12".to_owned(), InvalidName::NoDigest),
            (format!("https://h/m.gguf#md5={HEX}"), InvalidName::NoDigest),
            (
                format!("https://h/m.safetensors#sha256={HEX}"),
                InvalidName::NotOneFile,
            ),
            (format!("https://h/.gguf#sha256={HEX}"), InvalidName::NotOneFile),
            (format!("https://h/#sha256={HEX}"), InvalidName::NotOneFile),
            (format!("https:///m.gguf#sha256={HEX}"), InvalidName::Url),
        ] {
            assert_eq!(parse(&model), Err(error), "{model}");
        }
        assert!(matches!(
            parse(&format!("https://h/m.bin#sha256={HEX}")),
            Err(InvalidName::Pickle { .. })
        ));
    }

    #[test]
    fn no_address_leads_out_of_the_cache() {
        let options = FetchOptions::from_lookup(Some("/cache".into()), |_| None).unwrap();
        for name in ["..%2f..%2fx", "a b", "\u{e9}", "..."] {
            let model = DirectModel {
                url: String::new(),
                sha256: Digest::from_hex(HEX).unwrap(),
                name: name.to_owned(),
            };
            let path = path(&model, &options);
            assert_eq!(path.parent().unwrap(), options.cache_dir, "{}", path.display());
        }
    }
}
