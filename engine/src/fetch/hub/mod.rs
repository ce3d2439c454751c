//! Hugging Face repositories: which files, where they lie in the shared cache, and how they get there.

mod client;
mod head;
mod layout;
mod select;
mod url;

pub(super) use client::{Answer, Client, Remote, RemoteFile, Trouble};
pub(super) use layout::{HubCache, repo_of_dir};
pub use select::{SelectError, Selector};

use super::source::{has_extension, is_pickle, is_relative_name};
use super::transfer::{self, Job};
use super::{FetchError, FetchOptions, LocalModel, Progress, Wanted};
use client::RepoInfo;
use select::{Selection, select};

/// A repository, and what of it is meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubModel {
    /// `org/name`.
    pub repo: String,
    /// Branch, tag or commit.
    pub revision: String,
    /// Which of several GGUF files.
    pub selector: Option<Selector>,
    /// Which of its forms, where that leaves a choice.
    pub wanted: Wanted,
}

/// Of a folder's files those that a model is served from.
pub(super) fn served(files: &[String]) -> Result<Vec<String>, SelectError> {
    select(files, None, &Wanted::default()).map(|selection| selection.files)
}

/// Finds the repository's files in the cache or fetches them.
pub(super) fn resolve(
    model: &HubModel,
    options: &FetchOptions,
    progress: &dyn Progress,
) -> Result<LocalModel, FetchError> {
    let cache = HubCache::new(&options.hub_cache, &model.repo);
    // A commit never changes, so what is here of it needs no question to the hub.
    if (options.offline || is_commit(&model.revision))
        && let Some(found) = from_cache(model, &cache)?
    {
        return Ok(found);
    }
    if options.offline {
        return Err(FetchError::Offline {
            repo: model.repo.clone(),
            cache: options.hub_cache.clone(),
        });
    }
    let client = Client::new(options);
    match client.info(&model.repo, &model.revision) {
        Ok(info) => fetch(model, &info, &client, &cache, progress),
        Err(error @ (FetchError::Unreachable { .. } | FetchError::Status { status: 500.., .. })) => {
            match from_cache(model, &cache)? {
                Some(found) => {
                    tracing::warn!(repo = %model.repo, %error, "the hub doesn't answer: using the cached files");
                    Ok(found)
                }
                None => Err(error),
            }
        }
        Err(error) => Err(error),
    }
}

fn from_cache(model: &HubModel, cache: &HubCache) -> Result<Option<LocalModel>, FetchError> {
    let Some(commit) = cache.commit(&model.revision)? else {
        return Ok(None);
    };
    let files = cache.files(&commit)?;
    // What can't be chosen from here may be chosen from the hub, whose listing is whole.
    let Ok(selection) = select(&files, model.selector.as_ref(), &model.wanted) else {
        return Ok(None);
    };
    Ok(Some(local(model, cache, &commit, &selection)))
}

fn fetch(
    model: &HubModel,
    info: &RepoInfo,
    client: &Client,
    cache: &HubCache,
    progress: &dyn Progress,
) -> Result<LocalModel, FetchError> {
    let selection =
        select(&info.files, model.selector.as_ref(), &model.wanted).map_err(|source| FetchError::Select {
            repo: model.repo.clone(),
            source,
        })?;
    for file in &selection.files {
        fetch_file(
            &RemoteFile {
                repo: &model.repo,
                revision: &info.commit,
                file,
            },
            client,
            cache,
            progress,
        )?;
    }
    // Last, so that a name only ever points at a commit whose files are all here.
    cache.set_commit(&model.revision, &info.commit)?;
    Ok(local(model, cache, &info.commit, &selection))
}

fn fetch_file(
    remote: &RemoteFile<'_>,
    client: &Client,
    cache: &HubCache,
    progress: &dyn Progress,
) -> Result<(), FetchError> {
    if cache.snapshot(remote.revision).join(remote.file).is_file() {
        return Ok(());
    }
    let head = client.head(remote)?;
    let target = cache.blob(&head.etag);
    let job = Job {
        name: remote.file,
        target: &target,
        incomplete: target.with_added_extension("incomplete"),
        lock: cache.lock(&head.etag),
        size: head.size,
        sha256: head.sha256,
    };
    transfer::fetch(client, &Remote::Hub(*remote), &job, progress)?;
    cache.link(remote.revision, remote.file, &head.etag)
}

fn local(model: &HubModel, cache: &HubCache, commit: &str, selection: &Selection) -> LocalModel {
    let snapshot = cache.snapshot(commit);
    let path = match &selection.gguf {
        Some(file) => snapshot.join(file),
        None => snapshot,
    };
    LocalModel {
        name: model.repo.clone(),
        path,
    }
}

/// Whether a revision is a full commit hash.
fn is_commit(revision: &str) -> bool {
    revision.len() == 40 && revision.bytes().all(|byte| byte.is_ascii_hexdigit())
}
