//! Follows issuers' key sets, at a URL or in a file.
//!
//! A set is asked for again after its time, and at once when a token names a key that nobody knows ([`refetch`](JwksFollower::refetch)), but never
//! more often than every [`FLOOR`]: tokens with made-up key ids must not make the gateway a flood at the issuer. A set that can't be had
//! or used changes nothing.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use futures::future::join_all;
use http::{Request, Uri};
use http_body_util::Full;
use kvasir_client::Recurring;
use kvasir_config::gateway::JwtConfig;
use kvasir_files::{FileError, Limit};
use kvasir_gateway_core::auth::{Authenticator, Jwks, JwksError};
use tokio::sync::{Mutex, watch};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use crate::web::{HttpError, Origin};

/// Shortest time between two looks at one set.
pub const FLOOR: Duration = Duration::from_secs(30);
/// How often files are looked at, and how soon a failed look is repeated.
const RETRY: Duration = FLOOR;
const FETCH_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest set, in bytes; [`Jwks::parse`] has the same limit.
const MAX_SET_BYTES: usize = 256 * 1024;

/// Key sets by the place of their issuer in the configuration.
pub type KeySets = Arc<BTreeMap<usize, Jwks>>;

/// Follows all sets until it is dropped.
#[derive(Debug)]
pub struct JwksFollower {
    sources: Arc<Vec<Source>>,
    sets: watch::Sender<KeySets>,
    _tasks: Vec<AbortOnDropHandle<()>>,
}

/// Why a set can't be followed or had.
#[derive(Debug, thiserror::Error)]
pub enum JwksFollowError {
    /// It can't be had.
    #[error(transparent)]
    Http(#[from] HttpError),
    /// A file can't be read.
    #[error(transparent)]
    Read(#[from] FileError),
    /// The task that reads was lost, which only happens when the runtime ends.
    #[error("a file could not be read: {0}")]
    Lost(#[source] tokio::task::JoinError),
    /// It's no set.
    #[error(transparent)]
    Set(#[from] JwksError),
}

#[derive(Debug)]
struct Source {
    place: usize,
    issuer: String,
    from: Whence,
    refresh: Duration,
    /// The last look. Held during a look, so that there is one at a time.
    last: Mutex<Option<Instant>>,
    num_failures: AtomicU64,
    trouble: std::sync::Mutex<Recurring>,
}

#[derive(Debug)]
enum Whence {
    Url(Origin, Uri),
    File(PathBuf),
}

impl JwksFollower {
    /// Starts to follow the sets of a checked configuration. Call it within a runtime.
    ///
    /// # Errors
    /// A URL isn't one.
    pub fn start(issuers: &[JwtConfig]) -> Result<Self, JwksFollowError> {
        let sources = issuers
            .iter()
            .enumerate()
            .map(|(place, jwt)| Source::new(place, jwt));
        let sources = Arc::new(sources.collect::<Result<Vec<_>, _>>()?);
        let sets = watch::Sender::new(KeySets::default());
        let tasks = (0..sources.len()).map(|number| {
            let (sources, sets) = (Arc::clone(&sources), sets.clone());
            AbortOnDropHandle::new(tokio::spawn(async move { sources[number].follow(&sets).await }))
        });
        Ok(Self {
            _tasks: tasks.collect(),
            sources,
            sets,
        })
    }

    /// The sets that are known, and how they change.
    pub fn sets(&self) -> watch::Receiver<KeySets> {
        self.sets.subscribe()
    }

    /// A token named a key that nobody knows: looks again where the floor allows it, and returns when that's done.
    pub async fn refetch(&self) {
        let urls = self
            .sources
            .iter()
            .filter(|source| matches!(source.from, Whence::Url(..)));
        join_all(urls.map(|source| source.look(FLOOR, &self.sets))).await;
    }

    /// Looks that failed, by issuer.
    pub fn num_failures(&self) -> impl Iterator<Item = (&str, u64)> {
        let sources = self.sources.iter();
        sources.map(|source| (source.issuer.as_str(), source.num_failures.load(Relaxed)))
    }
}

/// The same authenticator with the sets that are known now.
#[must_use]
pub fn with_keys(authenticator: &Authenticator, sets: &KeySets) -> Authenticator {
    let mut with_keys = authenticator.clone();
    for (place, keys) in &**sets {
        if let Some(issuer) = with_keys.issuers.get_mut(*place) {
            *issuer = issuer.with_keys(keys.clone());
        }
    }
    with_keys
}

impl Source {
    fn new(place: usize, jwt: &JwtConfig) -> Result<Self, JwksFollowError> {
        let from = match (&jwt.jwks.url, &jwt.jwks.file) {
            (_, Some(path)) => Whence::File(path.clone()),
            (url, None) => {
                let url = url.clone().unwrap_or_default();
                let uri: Uri = url.parse().map_err(|_| HttpError::Url { url })?;
                Whence::Url(Origin::of(&uri, jwt.jwks.authorities.clone())?, uri)
            }
        };
        let refresh = match from {
            Whence::File(_) => RETRY,
            Whence::Url(..) => Duration::from_secs(jwt.jwks.refresh_seconds.into()),
        };
        Ok(Self {
            place,
            issuer: jwt.issuer.clone(),
            from,
            refresh,
            last: Mutex::default(),
            num_failures: AtomicU64::new(0),
            trouble: std::sync::Mutex::default(),
        })
    }

    async fn follow(&self, sets: &watch::Sender<KeySets>) {
        loop {
            let is_good = self.look(Duration::ZERO, sets).await;
            let pause = if is_good {
                self.refresh
            } else {
                self.refresh.min(RETRY)
            };
            tokio::time::sleep(pause).await;
        }
    }

    /// Gets the set, unless that was done less than `floor` ago. Answers whether what is known is good.
    async fn look(&self, floor: Duration, sets: &watch::Sender<KeySets>) -> bool {
        let mut last = self.last.lock().await;
        if last.is_some_and(|last| last.elapsed() < floor) {
            return true;
        }
        *last = Some(Instant::now());
        match self.get().await {
            Ok(keys) => {
                self.trouble().is_over();
                sets.send_if_modified(|known| {
                    let is_new = known.get(&self.place) != Some(&keys);
                    if is_new {
                        tracing::info!(issuer = self.issuer, num_keys = keys.len(), "took over a key set");
                        let mut changed = BTreeMap::clone(known);
                        changed.insert(self.place, keys);
                        *known = Arc::new(changed);
                    }
                    is_new
                });
                true
            }
            Err(error) => {
                self.num_failures.fetch_add(1, Relaxed);
                if self
                    .trouble()
                    .is_news(&error.to_string(), std::time::Instant::now())
                {
                    tracing::warn!(issuer = self.issuer, %error, "a key set can't be had; what is known stays");
                }
                false
            }
        }
    }

    fn trouble(&self) -> std::sync::MutexGuard<'_, Recurring> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn get(&self) -> Result<Jwks, JwksFollowError> {
        let text = match &self.from {
            Whence::File(path) => {
                let path = path.clone();
                let read = move || kvasir_files::read(&path, Limit::SMALL);
                let read = tokio::task::spawn_blocking(read).await;
                read.map_err(JwksFollowError::Lost)??.into()
            }
            Whence::Url(origin, uri) => {
                let path = uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str);
                let request = Request::get(path)
                    .header(http::header::ACCEPT, "application/json, application/jwk-set+json")
                    .body(Full::default())
                    .map_err(HttpError::Request)?;
                origin.ask(request, MAX_SET_BYTES, FETCH_TIMEOUT).await?
            }
        };
        Ok(Jwks::parse(&text)?)
    }
}
