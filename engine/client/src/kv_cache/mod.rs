//! Follows what an engine's prefix cache holds, and comes back after losses.

mod view;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;

use crate::types::Error;
use crate::{EngineClient, KvCacheStream};

pub use self::view::{KvCacheChange, KvCacheView, KvCacheViewError};

const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Reads the cache news of one engine for as long as it is asked for changes.
///
/// After a loss it opens the stream again, with growing pauses, and goes on where it was if the engine still knows what was missed; else
/// the set is reset and filled anew. Nothing is read ahead: a follower that isn't asked costs the engine a place and no memory.
pub struct KvCacheFollower {
    engine: Arc<dyn EngineClient>,
    view: KvCacheView,
    stream: Option<KvCacheStream>,
    changes: VecDeque<KvCacheChange>,
    pause: Duration,
}

impl std::fmt::Debug for KvCacheFollower {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KvCacheFollower")
            .field("source", &self.view.source())
            .field("num_held", &self.view.len())
            .field("is_connected", &self.stream.is_some())
            .finish_non_exhaustive()
    }
}

impl KvCacheFollower {
    /// A follower that holds at most `max_held` contents; an engine that has more isn't listened to. `ModelInfo.num_blocks` is what an
    /// engine can have in each group.
    pub fn new(engine: Arc<dyn EngineClient>, max_held: usize) -> Self {
        Self {
            engine,
            view: KvCacheView::new(max_held),
            stream: None,
            changes: VecDeque::new(),
            pause: FIRST_PAUSE,
        }
    }

    /// What the engine has told so far; it includes the change that `next` returned last, and may be ahead of it.
    pub fn view(&self) -> &KvCacheView {
        &self.view
    }

    /// The next change. Never ends: an engine that can't be reached is tried again. May be dropped and called again at any time.
    pub async fn next(&mut self) -> KvCacheChange {
        loop {
            if let Some(change) = self.changes.pop_front() {
                return change;
            }
            let Some(stream) = &mut self.stream else {
                self.open().await;
                continue;
            };
            match stream.next().await {
                Some(Ok(update)) => match self.view.apply(update) {
                    Ok(changes) => {
                        self.pause = FIRST_PAUSE;
                        self.changes.extend(changes);
                    }
                    Err(error) => self.lose(error.to_string()),
                },
                Some(Err(error)) => self.lose(error.message),
                None => self.lose("the engine ended the stream".to_owned()),
            }
        }
    }

    async fn open(&mut self) {
        match self.try_open().await {
            Ok(stream) => self.stream = Some(stream),
            Err(error) => self.lose(error.message),
        }
    }

    async fn try_open(&mut self) -> Result<KvCacheStream, Error> {
        // The first attempt after a success doesn't wait.
        if self.pause > FIRST_PAUSE {
            tokio::time::sleep(self.pause).await;
        }
        self.engine.watch_kv_cache(self.view.position()).await
    }

    fn lose(&mut self, reason: String) {
        self.stream = None;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        self.changes.push_back(KvCacheChange::Lost(reason));
    }
}
