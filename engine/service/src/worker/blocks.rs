//! Tells of the prefix cache: readers of the feed what it holds, subscribers over ZeroMQ and the log what happened on whose behalf.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use kvasir_engine_core::{BlockEvent, BlockEventDetail, BlockEvents, Scheduler};

use super::live::LiveRequests;
use crate::kv_feed::Gather;
use crate::watch::KvFeed;
use crate::zmq::{EventSender, Format};

/// Contents that are looked at in one turn, when a reader begins: some tens of microseconds.
const CONTENTS_PER_TURN: usize = 1024;

/// Where events go in vLLM's format.
#[derive(Debug)]
pub(crate) struct Published {
    pub(crate) sender: EventSender,
    pub(crate) format: Format,
}

/// Events are recorded while somebody wants them; else they cost nothing.
#[derive(Debug)]
pub(super) struct BlockReporter {
    published: Option<Published>,
    events: BlockEvents,
    /// What the feed will begin with, while it is learnt.
    gather: Option<Gather>,
    /// Whether the feed has readers, or had some not long ago.
    is_fed: bool,
    detail: BlockEventDetail,
}

impl BlockReporter {
    /// Nothing happens between this and the first report.
    pub(super) fn new(published: Option<Published>) -> Self {
        Self {
            published,
            events: BlockEvents::new(),
            gather: None,
            is_fed: false,
            detail: BlockEventDetail::Off,
        }
    }

    /// Whether it has to be called again though nothing happens.
    pub(super) fn has_work(&self) -> bool {
        self.gather.is_some()
    }

    /// Passes on what happened since the last call. While the requests concerned are still known.
    pub(super) fn report(&mut self, feed: &KvFeed, scheduler: &mut Scheduler, live: &LiveRequests) {
        if self.detail != BlockEventDetail::Off {
            scheduler.take_block_events(&mut self.events);
            log(&self.events.events, live);
            self.publish(live);
            match &mut self.gather {
                Some(gather) => {
                    for event in &self.events.events {
                        gather.apply(event);
                    }
                }
                None if self.is_fed => feed.apply(&self.events.events),
                None => {}
            }
        }
        if feed.take_wish() {
            self.is_fed = true;
            self.gather = Some(Gather::new(scheduler.cached_blocks().len()));
        } else if self.is_fed && feed.end_if_unread(Instant::now()) {
            self.is_fed = false;
            self.gather = None;
        }
        self.look(feed, scheduler);
        self.record(scheduler);
    }

    fn publish(&mut self, live: &LiveRequests) {
        let Some(Published { sender, format }) = &mut self.published else {
            return;
        };
        if !self.events.events.is_empty() {
            let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            sender.send(format.encode(time.as_secs_f64(), &self.events, |seq| live.name_of(seq).0));
        }
    }

    fn look(&mut self, feed: &KvFeed, scheduler: &Scheduler) {
        let Some(gather) = &mut self.gather else { return };
        let num_contents = scheduler.cached_blocks().len();
        gather.take(num_contents, CONTENTS_PER_TURN, |index| {
            scheduler.cached_block(index)
        });
        if gather.is_complete()
            && let Some(gathered) = self.gather.take()
        {
            feed.begin(gathered);
        }
    }

    /// Turns the scheduler's events on and off. Nothing happens between the look at the contents and this.
    fn record(&mut self, scheduler: &mut Scheduler) {
        let is_wanted = self.is_fed || tracing::enabled!(tracing::Level::DEBUG);
        let detail = match (&self.published, is_wanted) {
            (Some(_), _) => BlockEventDetail::Tokens,
            (None, true) => BlockEventDetail::Hashes,
            (None, false) => BlockEventDetail::Off,
        };
        if self.detail != detail {
            self.detail = detail;
            scheduler.set_block_events(detail);
        }
    }
}

fn log(events: &[BlockEvent], live: &LiveRequests) {
    if !tracing::enabled!(tracing::Level::DEBUG) {
        return;
    }
    for event in events {
        match event {
            BlockEvent::Stored { seq, hash, index, .. } => {
                let (request_id, sequence) = live.name_of(*seq);
                tracing::debug!(request_id, sequence, index, hash = %format_args!("{:016x}", hash.short()), "block stored");
            }
            BlockEvent::Removed { seq, hash, .. } => {
                let (request_id, sequence) = live.name_of(*seq);
                tracing::debug!(request_id, sequence, hash = %format_args!("{:016x}", hash.short()), "block removed");
            }
            BlockEvent::AllCleared => tracing::debug!("all blocks cleared"),
        }
    }
}
