//! Looks at a running server, or at what was recorded of one.

use std::io::Read;
use std::path::Path;
use std::time::Duration;

use kvasir_files::{FileError, Limit};

use super::{Partial, Snapshot, parse};

/// The scrape of a server with dozens of engines is below a tenth of this.
const LIMIT: Limit = Limit {
    max_bytes: 16 << 20,
    advice: "is it what the /metrics of one server answered?",
};

/// For a whole request: figures that take longer say enough.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Why a server can't be looked at.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ScrapeError {
    /// Nobody answers.
    #[error("can't reach {url}: {source}; {}", advice(source))]
    Unreachable {
        /// What was asked for.
        url: String,
        /// What happened.
        source: Box<ureq::Error>,
    },
    /// The server wants a key, or another one.
    #[error("{url} answers {status}; give a key that may see its figures with --api-key or KVASIR_API_KEY")]
    Refused {
        /// What was asked for.
        url: String,
        /// What it answered.
        status: u16,
    },
    /// The server has no figures there.
    #[error("{url} answers {status}, not figures; is this the URL of a server of kvasir or vLLM?")]
    Status {
        /// What was asked for.
        url: String,
        /// What it answered.
        status: u16,
    },
    /// The answer broke off or is none.
    #[error("the figures of {url} can't be read: {source}")]
    Read {
        /// What was asked for.
        url: String,
        /// What happened.
        source: std::io::Error,
    },
    /// The answer goes on and on.
    #[error("{url} answers more than {} bytes; {}", LIMIT.max_bytes, LIMIT.advice)]
    TooLong {
        /// What was asked for.
        url: String,
    },
    /// It isn't all of the figures.
    #[error("{origin}: {source}")]
    Partial {
        /// Where they come from.
        origin: String,
        /// What is missing.
        source: Partial,
    },
    /// A recorded file can't be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// The text holds nothing that the doctor knows.
    #[error("{0} has no figure whose name begins with vllm: or kvasir_; is it a server of kvasir or vLLM?")]
    Foreign(String),
}

/// A server that is to be looked at.
pub(crate) struct Target {
    agent: ureq::Agent,
    /// Without a slash at its end.
    base: String,
    key: Option<String>,
}

impl Target {
    /// A server by its URL, with or without `/v1` or `/metrics` behind it.
    pub(crate) fn new(url: &str, key: Option<String>) -> Self {
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            // A redirect would carry the key to somebody else.
            .max_redirects(0)
            .timeout_global(Some(TIMEOUT))
            .user_agent(concat!("kvasir/", env!("CARGO_PKG_VERSION")))
            .build();
        let base = url.trim_end_matches('/');
        let base = base.strip_suffix("/metrics").unwrap_or(base);
        let base = base.strip_suffix("/v1").unwrap_or(base).trim_end_matches('/');
        let base = if base.contains("://") {
            base.to_owned()
        } else {
            format!("http://{base}")
        };
        Self {
            agent: config.into(),
            base,
            key,
        }
    }

    /// The URL that is asked.
    pub(crate) fn base(&self) -> &str {
        &self.base
    }

    /// The server's figures as they are now. Blocks.
    ///
    /// # Errors
    /// If it can't be reached, refuses, or has other figures.
    pub(crate) fn look(&self) -> Result<Snapshot, ScrapeError> {
        let url = format!("{}/metrics", self.base);
        let response = self.get(&url)?;
        match response.status().as_u16() {
            200 => {}
            status @ (401 | 403) => return Err(ScrapeError::Refused { url, status }),
            status => return Err(ScrapeError::Status { url, status }),
        }
        let mut body = Vec::new();
        let mut reader = response.into_body().into_reader().take(LIMIT.max_bytes + 1);
        if let Err(source) = reader.read_to_end(&mut body) {
            return Err(ScrapeError::Read { url, source });
        }
        if body.len() as u64 > LIMIT.max_bytes {
            return Err(ScrapeError::TooLong { url });
        }
        snapshot(&String::from_utf8_lossy(&body), &url)
    }

    /// What the server's probes complain of. A probe that it doesn't have says nothing.
    pub(crate) fn complaint(&self) -> Option<String> {
        ["health", "ready"].into_iter().find_map(|probe| {
            let response = self.get(&format!("{}/{probe}", self.base)).ok()?;
            let status = response.status().as_u16();
            (status >= 500).then(|| {
                let mut body = String::new();
                let mut reader = response.into_body().into_reader().take(4096);
                // Half a reason is better than none.
                reader.read_to_string(&mut body).ok();
                format!("/{probe} answers {status}{}", reason(&body))
            })
        })
    }

    fn get(&self, url: &str) -> Result<ureq::http::Response<ureq::Body>, ScrapeError> {
        let mut request = self.agent.get(url);
        if let Some(key) = &self.key {
            request = request.header("Authorization", format!("Bearer {key}"));
        }
        request.call().map_err(|error| ScrapeError::Unreachable {
            url: url.to_owned(),
            source: Box::new(error),
        })
    }
}

/// Figures that were recorded in a file.
///
/// # Errors
/// If the file can't be read or holds other text.
pub(crate) fn recorded(path: &Path) -> Result<Snapshot, ScrapeError> {
    let body = kvasir_files::read(path, LIMIT)?;
    snapshot(&String::from_utf8_lossy(&body), &path.display().to_string())
}

fn snapshot(text: &str, origin: &str) -> Result<Snapshot, ScrapeError> {
    let samples = parse(text).map_err(|source| ScrapeError::Partial {
        origin: origin.to_owned(),
        source,
    })?;
    if samples.has("vllm:") || samples.has("kvasir_") {
        Ok(Snapshot::of(&samples))
    } else {
        Err(ScrapeError::Foreign(origin.to_owned()))
    }
}

/// What to do about a connection that didn't come about.
fn advice(error: &ureq::Error) -> &'static str {
    use std::io::ErrorKind;
    match error {
        ureq::Error::Timeout(_) => {
            "it doesn't answer in 20 s: is it a server of kvasir or vLLM, and is the way to it open?"
        }
        ureq::Error::HostNotFound => "is the name right? A server on this machine is http://127.0.0.1:8000",
        ureq::Error::Io(error) if error.kind() == ErrorKind::ConnectionRefused => {
            "nobody listens there: is the server running, and is the port right?"
        }
        ureq::Error::BadUri(_) => "write it as http://127.0.0.1:8000",
        _ => "is it the address of a server of kvasir or vLLM, and is http:// or https:// right?",
    }
}

/// The message of an error object, if there is one.
fn reason(body: &str) -> String {
    let message = serde_json::from_str::<serde_json::Value>(body)
        .ok()
        .and_then(|body| Some(body["error"]["message"].as_str()?.to_owned()));
    message.map_or(String::new(), |message| format!(": {message}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_taken_with_what_clients_put_behind_them() {
        for url in [
            "http://host:8000",
            "http://host:8000/",
            "http://host:8000/v1",
            "http://host:8000/v1/",
            "http://host:8000/metrics",
            "host:8000",
        ] {
            assert_eq!(Target::new(url, None).base(), "http://host:8000", "{url}");
        }
        assert_eq!(Target::new("https://host/kis", None).base(), "https://host/kis");
    }

    #[test]
    fn other_programs_are_not_diagnosed() {
        let error = snapshot("go_goroutines 7\nprocess_cpu_seconds_total 3\n", "x").unwrap_err();
        assert!(matches!(error, ScrapeError::Foreign(_)), "{error}");
    }

    #[test]
    fn a_server_that_is_not_there_is_looked_for_by_the_reader() {
        // Port 9 of loopback: nobody listens.
        let error = Target::new("http://127.0.0.1:9", None).look().unwrap_err();
        let text = error.to_string();
        assert!(
            text.ends_with("is the server running, and is the port right?"),
            "{text}"
        );
    }

    #[test]
    fn figures_without_their_end_are_refused() {
        let error = snapshot("kvasir_x 1\nkvasir_y 2", "x").unwrap_err();
        assert_eq!(
            error.to_string(),
            "x: the text breaks off in its last line; take it again"
        );
    }
}
