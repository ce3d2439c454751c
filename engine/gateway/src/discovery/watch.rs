//! Lists and watches the EndpointSlices of a service, read-only.

use std::time::{Duration, Instant};

use http_body_util::BodyExt;
use hyper::body::Incoming;
use kvasir_client::Recurring;
use kvasir_config::gateway::EndpointSlicesConfig;
use tokio::sync::watch;

use super::slices::{Event, Slice, SliceList, Slices};
use super::{Targets, publish};
use crate::api_server::{ApiServer, ApiServerError};

/// How long the API server keeps a watch open; then it's opened again.
const WATCH_SECONDS: u64 = 240;
/// A watch that says nothing so long is dead.
const SILENCE: Duration = Duration::from_secs(WATCH_SECONDS + 30);
/// Longest line of a watch: a slice of a thousand endpoints has half a megabyte.
const MAX_LINE_BYTES: usize = 4 << 20;
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Follows the slices, and begins again after each failure.
pub(super) async fn follow(server: ApiServer, config: EndpointSlicesConfig, targets: watch::Sender<Targets>) {
    let mut pause = FIRST_PAUSE;
    let mut trouble = Recurring::default();
    loop {
        let mut follower = Follower {
            server: &server,
            config: &config,
            targets: &targets,
            slices: Slices::default(),
            version: String::new(),
        };
        let end = follower.run(&mut pause).await;
        match end {
            End::Expired => tracing::debug!("the watch of engines is too old; listing them again"),
            End::Failed(error) => {
                // A watch that was open before makes the failure a new one.
                if pause == FIRST_PAUSE {
                    trouble.is_over();
                }
                if trouble.is_news(&error.to_string(), Instant::now()) {
                    tracing::warn!(%error, server = server.url(), "can't follow engines; known ones stay");
                }
            }
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

enum End {
    /// What the watch goes on from is no longer known.
    Expired,
    Failed(ApiServerError),
}

impl From<ApiServerError> for End {
    fn from(error: ApiServerError) -> Self {
        Self::Failed(error)
    }
}

struct Follower<'a> {
    server: &'a ApiServer,
    config: &'a EndpointSlicesConfig,
    targets: &'a watch::Sender<Targets>,
    slices: Slices,
    version: String,
}

impl Follower<'_> {
    async fn run(&mut self, pause: &mut Duration) -> End {
        if let Err(end) = self.list().await {
            return end;
        }
        loop {
            match self.watch_once().await {
                // It works: the next failure is a new one.
                Ok(()) => *pause = FIRST_PAUSE,
                Err(end) => return end,
            }
        }
    }

    fn path(&self, rest: &str) -> String {
        let EndpointSlicesConfig {
            namespace, service, ..
        } = self.config;
        format!(
            "/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices?labelSelector=kubernetes.io%2Fservice-name%3D{service}{rest}"
        )
    }

    async fn list(&mut self) -> Result<(), End> {
        let answer = self.server.get(&self.path("")).await?;
        let list: SliceList = serde_json::from_slice(&answer).map_err(ApiServerError::Answer)?;
        self.version = list.metadata.resource_version;
        self.slices.replace(list.items);
        publish(self.targets, self.slices.targets(self.config.port.get()));
        Ok(())
    }

    /// Follows one watch to its end.
    async fn watch_once(&mut self) -> Result<(), End> {
        let rest = format!(
            "&watch=1&allowWatchBookmarks=true&timeoutSeconds={WATCH_SECONDS}&resourceVersion={}",
            self.version
        );
        let mut lines = Lines::new(self.server.watch(&self.path(&rest)).await?);
        while let Some(line) = lines.next().await {
            let event: Event = serde_json::from_slice(&line).map_err(ApiServerError::Answer)?;
            self.take(event)?;
        }
        Ok(())
    }

    fn take(&mut self, event: Event) -> Result<(), End> {
        if event.kind == "ERROR" {
            // Mostly 410 Gone; whatever it is, a list is the way out.
            return Err(End::Expired);
        }
        let slice: Slice = serde_json::from_value(event.object).map_err(ApiServerError::Answer)?;
        self.version.clone_from(&slice.metadata.resource_version);
        match event.kind.as_str() {
            "ADDED" | "MODIFIED" => self.slices.put(slice),
            "DELETED" => self.slices.remove(&slice.metadata.name),
            // A bookmark only moves the version.
            _ => return Ok(()),
        }
        publish(self.targets, self.slices.targets(self.config.port.get()));
        Ok(())
    }
}

/// Lines of a body that is still being sent.
struct Lines {
    body: Incoming,
    read: Vec<u8>,
}

impl Lines {
    fn new(body: Incoming) -> Self {
        Self {
            body,
            read: Vec::new(),
        }
    }

    /// The next line; `None` at the end, after a long silence, and where a line is too long. The caller then begins again.
    async fn next(&mut self) -> Option<Vec<u8>> {
        loop {
            if let Some(end) = self.read.iter().position(|byte| *byte == b'\n') {
                let rest = self.read.split_off(end + 1);
                let mut line = std::mem::replace(&mut self.read, rest);
                line.pop();
                if line.iter().all(u8::is_ascii_whitespace) {
                    continue;
                }
                return Some(line);
            }
            if self.read.len() > MAX_LINE_BYTES {
                tracing::warn!(limit = MAX_LINE_BYTES, "a line about engines is too long");
                return None;
            }
            let frame = tokio::time::timeout(SILENCE, self.body.frame()).await.ok()??;
            if let Ok(data) = frame.ok()?.into_data() {
                self.read.extend_from_slice(&data);
            }
        }
    }
}
