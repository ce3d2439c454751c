//! The cluster's API server, as a pod with a projected token asks it.

use std::path::PathBuf;
use std::time::Duration;

use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use http::{Method, Request, Uri};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};

use crate::web::{HttpError, Origin};

/// Where Kubernetes puts a pod's token and the API server's authority.
const ACCOUNT_FOLDER: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// Longest answer: endpoints of thousands of pods.
const MAX_ANSWER_BYTES: usize = 16 << 20;
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// How to reach it. The token is read for each request, because the kubelet renews it in its file.
#[derive(Clone, Debug)]
pub struct ApiServer {
    origin: Origin,
    base: String,
    token: PathBuf,
}

/// Why the API server can't be asked.
#[derive(Debug, thiserror::Error)]
pub enum ApiServerError {
    /// This process isn't a pod.
    #[error("KUBERNETES_SERVICE_HOST isn't set: only a pod of a cluster can ask its API server")]
    NoCluster,
    /// The token can't be read.
    #[error("{} can't be read: {source}; the pod needs a projected service account token", path.display())]
    Token {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The token has characters that no token has.
    #[error("{} holds no token", path.display())]
    BadToken {
        /// The file.
        path: PathBuf,
    },
    /// It doesn't answer, or refuses.
    #[error(transparent)]
    Http(#[from] HttpError),
    /// The answer is something else than was asked for.
    #[error("the API server answered with something unexpected: {0}")]
    Answer(#[source] serde_json::Error),
}

impl ApiServer {
    /// The API server of the cluster that this process is a pod of. `host` and `port` are `KUBERNETES_SERVICE_HOST` and
    /// `KUBERNETES_SERVICE_PORT`.
    ///
    /// # Errors
    /// They don't name a server.
    pub fn of_pod(host: &str, port: &str) -> Result<Self, ApiServerError> {
        let host = if host.contains(':') {
            format!("[{host}]")
        } else {
            host.to_owned()
        };
        let folder = PathBuf::from(ACCOUNT_FOLDER);
        Self::new(
            &format!("https://{host}:{port}"),
            Some(folder.join("ca.crt")),
            folder.join("token"),
        )
    }

    /// A server at a URL, with its authorities and the file of our token.
    ///
    /// # Errors
    /// The URL isn't one.
    pub fn new(url: &str, authorities: Option<PathBuf>, token: PathBuf) -> Result<Self, ApiServerError> {
        let refused = || HttpError::Url { url: url.to_owned() };
        let uri: Uri = url.parse().map_err(|_| refused())?;
        Ok(Self {
            origin: Origin::of(&uri, authorities)?,
            base: url.trim_end_matches('/').to_owned(),
            token,
        })
    }

    /// Sends JSON and reads JSON.
    pub(crate) async fn post(&self, path: &str, body: Vec<u8>) -> Result<Bytes, ApiServerError> {
        let request = self.request(Method::POST, path, body).await?;
        Ok(self.origin.ask(request, MAX_ANSWER_BYTES, ANSWER_TIMEOUT).await?)
    }

    /// Reads JSON.
    pub(crate) async fn get(&self, path: &str) -> Result<Bytes, ApiServerError> {
        let request = self.request(Method::GET, path, Vec::new()).await?;
        Ok(self.origin.ask(request, MAX_ANSWER_BYTES, ANSWER_TIMEOUT).await?)
    }

    /// Opens a watch.
    pub(crate) async fn watch(&self, path: &str) -> Result<Incoming, ApiServerError> {
        let request = self.request(Method::GET, path, Vec::new()).await?;
        match tokio::time::timeout(ANSWER_TIMEOUT, self.origin.open(request)).await {
            Ok(body) => Ok(body?),
            Err(_) => Err(HttpError::TimedOut {
                authority: self.origin.authority().to_owned(),
                after: ANSWER_TIMEOUT,
            }
            .into()),
        }
    }

    async fn request(
        &self,
        method: Method,
        path: &str,
        body: Vec<u8>,
    ) -> Result<Request<Full<Bytes>>, ApiServerError> {
        let token = tokio::fs::read_to_string(&self.token)
            .await
            .map_err(|source| ApiServerError::Token {
                path: self.token.clone(),
                source,
            })?;
        let mut bearer = HeaderValue::from_str(&format!("Bearer {}", token.trim())).map_err(|_| {
            ApiServerError::BadToken {
                path: self.token.clone(),
            }
        })?;
        bearer.set_sensitive(true);
        let request = Request::builder()
            .method(method)
            // The path alone: HTTP/1.1 names the host in a header.
            .uri(path)
            .header(AUTHORIZATION, bearer)
            .header(ACCEPT, "application/json")
            .header(CONTENT_TYPE, "application/json")
            .body(Full::from(body))
            .map_err(HttpError::Request)?;
        Ok(request)
    }

    /// The URL, for logs.
    pub fn url(&self) -> &str {
        &self.base
    }
}
