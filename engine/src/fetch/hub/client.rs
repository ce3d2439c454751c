//! The hub's interface over HTTP.
//!
//! Redirects are followed here and not by the HTTP library, because two things depend on them: the token goes only to
//! the hub's own origin, and a file's commit, digest and size stand in the head of the hub's answer, not in that of the
//! storage that it redirects to.

use std::io::Read;

use serde::Deserialize;
use ureq::Body;
use ureq::http::header::{ACCEPT_ENCODING, AUTHORIZATION, CONTENT_LENGTH, LOCATION, RANGE};
use ureq::http::{Response, StatusCode, Uri};

use super::super::direct;
use super::super::options::{Timing, Token};
use super::head::{FileHead, content_range, file_head, number};
use super::url::{encode, join, same_origin};
use super::{FetchError, FetchOptions, is_commit, is_relative_name};

/// Most redirects of one request; the hub needs two.
const MAX_REDIRECTS: u32 = 10;
/// Largest listing of a repository that is read.
const MAX_INFO_BYTES: u64 = 32 << 20;

/// Speaks with one hub.
#[derive(Debug)]
pub(in crate::fetch) struct Client {
    agent: ureq::Agent,
    endpoint: String,
    token: Option<Token>,
    pub(in crate::fetch) timing: Timing,
}

/// A file of a repository at a revision.
#[derive(Clone, Copy, Debug)]
pub(in crate::fetch) struct RemoteFile<'a> {
    pub(in crate::fetch) repo: &'a str,
    pub(in crate::fetch) revision: &'a str,
    pub(in crate::fetch) file: &'a str,
}

/// Where a file comes from.
#[derive(Clone, Copy, Debug)]
pub(in crate::fetch) enum Remote<'a> {
    /// A repository.
    Hub(RemoteFile<'a>),
    /// Any server.
    Url(&'a str),
}

impl Remote<'_> {
    /// For messages.
    fn name(&self) -> &str {
        match self {
            Self::Hub(remote) => remote.file,
            Self::Url(url) => direct::shown(url),
        }
    }
}

/// What a repository has at a revision.
#[derive(Debug)]
pub(super) struct RepoInfo {
    /// The commit that the revision stands for.
    pub(super) commit: String,
    /// Names of all files, checked to stay below a directory.
    pub(super) files: Vec<String>,
}

/// A failed try.
#[derive(Debug)]
pub(in crate::fetch) enum Trouble {
    /// The next try would fail as well.
    Final(FetchError),
    /// The next try may succeed.
    Passing(FetchError),
}

impl From<FetchError> for Trouble {
    fn from(error: FetchError) -> Self {
        Self::Final(error)
    }
}

/// The answer to a request for a file from some byte on.
pub(in crate::fetch) enum Answer {
    /// The file from its first byte on.
    Whole {
        /// Its size, where stated.
        total: Option<u64>,
        /// Its bytes.
        body: Box<dyn Read>,
    },
    /// The file from a later byte on.
    Rest {
        /// The offset of the first byte.
        start: u64,
        /// The whole file's size, where stated.
        total: Option<u64>,
        /// The bytes.
        body: Box<dyn Read>,
    },
    /// The file has no such byte.
    RangeRefused,
}

/// Which redirects are followed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Follow {
    All,
    /// Only those to the same origin: a repository that was renamed.
    SameOrigin,
}

#[derive(Clone, Copy)]
enum Method {
    Get,
    Head,
}

impl Client {
    pub(in crate::fetch) fn new(options: &FetchOptions) -> Self {
        let timing = options.timing;
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .timeout_resolve(Some(timing.connect))
            .timeout_connect(Some(timing.connect))
            .timeout_recv_response(Some(timing.answer))
            .timeout_recv_body(Some(timing.body))
            .user_agent(concat!("kvasir/", env!("CARGO_PKG_VERSION")))
            .build();
        Self {
            agent: config.into(),
            endpoint: options.endpoint.clone(),
            token: options.token.clone(),
            timing,
        }
    }

    /// The commit and the files of a revision.
    pub(super) fn info(&self, repo: &str, revision: &str) -> Result<RepoInfo, FetchError> {
        #[derive(Deserialize)]
        struct Info {
            sha: String,
            siblings: Vec<Sibling>,
        }
        #[derive(Deserialize)]
        struct Sibling {
            rfilename: String,
        }
        let url = format!(
            "{}/api/models/{repo}/revision/{}",
            self.endpoint,
            encode(revision, false)
        );
        let subject = RemoteFile {
            repo,
            revision,
            file: "",
        };
        let bad = |reason| FetchError::BadAnswer {
            what: repo.to_owned(),
            reason,
        };
        let bytes = self.retrying(|| {
            let response = self.send(Method::Get, &url, None, Follow::All)?;
            if !response.status().is_success() {
                return Err(self.refusal(&response, &subject));
            }
            let (_, body) = response.into_parts();
            let mut bytes = Vec::new();
            let mut limited = body.into_reader().take(MAX_INFO_BYTES + 1);
            match limited.read_to_end(&mut bytes) {
                Ok(_) => Ok(bytes),
                Err(error) => Err(Trouble::Passing(bad(error.to_string()))),
            }
        })?;
        if bytes.len() as u64 > MAX_INFO_BYTES {
            return Err(bad(format!("the listing is larger than {MAX_INFO_BYTES} bytes")));
        }
        let info: Info = serde_json::from_slice(&bytes).map_err(|error| bad(error.to_string()))?;
        if !is_commit(&info.sha) {
            return Err(bad(format!("`{}` is no commit", info.sha)));
        }
        let files: Vec<_> = info
            .siblings
            .into_iter()
            .map(|sibling| sibling.rfilename)
            .collect();
        match files.iter().find(|file| !is_relative_name(file)) {
            Some(file) => Err(bad(format!("{file:?} is not possible as a file name"))),
            None => Ok(RepoInfo {
                commit: info.sha,
                files,
            }),
        }
    }

    /// What the hub knows about a file.
    pub(super) fn head(&self, remote: &RemoteFile<'_>) -> Result<FileHead, FetchError> {
        let url = self.file_url(remote);
        self.retrying(|| {
            let response = self.send(Method::Head, &url, None, Follow::SameOrigin)?;
            if !response.status().is_success() && !response.status().is_redirection() {
                return Err(self.refusal(&response, remote));
            }
            file_head(&response).map_err(|reason| {
                Trouble::Final(FetchError::BadAnswer {
                    what: remote.file.to_owned(),
                    reason,
                })
            })
        })
    }

    /// Size of the file at an address.
    pub(in crate::fetch) fn size_of(&self, url: &str) -> Result<u64, FetchError> {
        self.retrying(|| {
            let mut response = self.send(Method::Head, url, None, Follow::All)?;
            // Servers without HEAD, and signatures that are good for GET only; the body isn't read.
            if matches!(response.status().as_u16(), 400 | 403 | 405 | 501) {
                response = self.send(Method::Get, url, None, Follow::All)?;
            }
            if !response.status().is_success() {
                return Err(direct::refusal(url, response.status().as_u16()));
            }
            number(response.headers(), CONTENT_LENGTH.as_str()).ok_or_else(|| {
                Trouble::Final(FetchError::BadAnswer {
                    what: direct::shown(url).to_owned(),
                    reason: "it states no size".to_owned(),
                })
            })
        })
    }

    /// Asks for a file from byte `start` on.
    pub(in crate::fetch) fn get_from(&self, remote: &Remote<'_>, start: u64) -> Result<Answer, Trouble> {
        let range = (start > 0).then_some(start);
        let url = match remote {
            Remote::Hub(remote) => self.file_url(remote),
            Remote::Url(url) => (*url).to_owned(),
        };
        let response = self.send(Method::Get, &url, range, Follow::All)?;
        let headers = response.headers();
        let length = number(headers, CONTENT_LENGTH.as_str());
        match response.status() {
            StatusCode::OK => Ok(Answer::Whole {
                total: length,
                body: reader(response),
            }),
            StatusCode::PARTIAL_CONTENT => {
                let bad = || FetchError::BadAnswer {
                    what: remote.name().to_owned(),
                    reason: "a partial answer without a readable Content-Range".to_owned(),
                };
                let (start, total) = content_range(headers).ok_or_else(bad)?;
                Ok(Answer::Rest {
                    start,
                    total,
                    body: reader(response),
                })
            }
            StatusCode::RANGE_NOT_SATISFIABLE => Ok(Answer::RangeRefused),
            status => Err(match remote {
                Remote::Hub(remote) => self.refusal(&response, remote),
                Remote::Url(url) => direct::refusal(url, status.as_u16()),
            }),
        }
    }

    fn file_url(&self, remote: &RemoteFile<'_>) -> String {
        let revision = encode(remote.revision, false);
        format!(
            "{}/{}/resolve/{revision}/{}",
            self.endpoint,
            remote.repo,
            encode(remote.file, true)
        )
    }

    fn retrying<T>(&self, mut run: impl FnMut() -> Result<T, Trouble>) -> Result<T, FetchError> {
        let mut tries = 0;
        loop {
            tries += 1;
            match run() {
                Ok(value) => return Ok(value),
                // Without network every further try only costs time.
                Err(Trouble::Final(error) | Trouble::Passing(error @ FetchError::Unreachable { .. })) => {
                    return Err(error);
                }
                Err(Trouble::Passing(error)) if tries >= self.timing.max_tries => return Err(error),
                Err(Trouble::Passing(_)) => std::thread::sleep(self.timing.retry_delay * tries),
            }
        }
    }

    /// One request with its redirects; every status is an answer.
    fn send(
        &self,
        method: Method,
        url: &str,
        range: Option<u64>,
        follow: Follow,
    ) -> Result<Response<Body>, Trouble> {
        let mut url = url.to_owned();
        for _ in 0..=MAX_REDIRECTS {
            let mut request = match method {
                Method::Get => self.agent.get(&url),
                Method::Head => self.agent.head(&url),
            };
            // A compressed answer has no ranges and another length.
            request = request.header(ACCEPT_ENCODING, "identity");
            if let Some(start) = range {
                request = request.header(RANGE, format!("bytes={start}-"));
            }
            if let Some(token) = self.token.as_ref().filter(|_| same_origin(&url, &self.endpoint)) {
                request = request.header(AUTHORIZATION, format!("Bearer {}", token.secret()));
            }
            let response = request.call().map_err(|error| unreachable(&url, &error))?;
            let is_redirect = matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308);
            let Some(location) = response.headers().get(LOCATION).filter(|_| is_redirect) else {
                return Ok(response);
            };
            let target = location
                .to_str()
                .ok()
                .and_then(|location| join(&url, location))
                .ok_or_else(|| {
                    let reason = "it redirects to an address that can't be used".to_owned();
                    FetchError::BadAnswer {
                        what: direct::shown(&url).to_owned(),
                        reason,
                    }
                })?;
            if follow == Follow::SameOrigin && !same_origin(&url, &target) {
                return Ok(response);
            }
            url = target;
        }
        let reason = format!("more than {MAX_REDIRECTS} redirects");
        let what = direct::shown(&url).to_owned();
        Err(Trouble::Final(FetchError::BadAnswer { what, reason }))
    }

    /// The error for an answer that isn't one of success.
    fn refusal(&self, response: &Response<Body>, remote: &RemoteFile<'_>) -> Trouble {
        let code = response
            .headers()
            .get("x-error-code")
            .and_then(|code| code.to_str().ok())
            .unwrap_or("");
        let repo = remote.repo.to_owned();
        let endpoint = self.endpoint.clone();
        let what = if remote.file.is_empty() {
            repo.clone()
        } else {
            format!("{repo}/{}", remote.file)
        };
        let revision = remote.revision.to_owned();
        let had_token = self.token.is_some();
        let status = response.status().as_u16();
        let error = match (status, code) {
            (401 | 403, "GatedRepo") => FetchError::Gated {
                repo,
                endpoint,
                had_token,
            },
            (401, _) => FetchError::Unauthorized { what, had_token },
            (403, _) => FetchError::Forbidden { what },
            (404, "RevisionNotFound") => FetchError::NoSuchRevision { repo, revision },
            (404, "RepoNotFound") => FetchError::NoSuchRepo { repo, endpoint },
            (404, _) if remote.file.is_empty() => FetchError::NoSuchRepo { repo, endpoint },
            (404, _) => FetchError::NoSuchRemoteFile {
                repo,
                file: remote.file.to_owned(),
                revision,
            },
            (408 | 429 | 500..=599, _) => return Trouble::Passing(FetchError::Status { what, status }),
            _ => FetchError::Status { what, status },
        };
        Trouble::Final(error)
    }
}

fn reader(response: Response<Body>) -> Box<dyn Read> {
    Box::new(response.into_body().into_reader())
}

fn unreachable(url: &str, error: &ureq::Error) -> Trouble {
    let host = url
        .parse::<Uri>()
        .ok()
        .and_then(|uri| uri.authority().map(ToString::to_string));
    Trouble::Passing(FetchError::Unreachable {
        host: host.unwrap_or_else(|| url.to_owned()),
        reason: error.to_string(),
    })
}
