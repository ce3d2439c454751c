//! What happened, on its way to executor, clients, load report and watchdog.

use std::time::Instant;

use kvasir_engine_core::Event;

use super::Worker;
use crate::watchdog;

impl Worker {
    /// Notes what the scheduler told, and lets the executor forget what ended.
    pub(super) fn apply_events(&mut self) {
        if self.events.is_empty() {
            return;
        }
        for event in &self.events {
            if let Event::Finished { seq, .. } = event {
                self.executor.release(*seq);
            }
        }
        let now = Instant::now();
        let mut live = self.shared.host.live();
        for event in self.events.drain(..) {
            live.note_event(event, now);
        }
    }

    /// Tells readers of the cache what has changed, if there are any.
    pub(super) fn report_blocks(&mut self) {
        let mut scheduler = self.shared.host.scheduler();
        let live = self.shared.host.live();
        self.blocks.report(&self.shared.kv_feed, &mut scheduler, &live);
    }

    /// Sends outputs. Requests whose reader is too slow or gone end, which gives more outputs.
    pub(super) fn flush(&mut self) {
        let mut ended = self.shared.host.live().flush();
        while !ended.is_empty() {
            let mut scheduler = self.shared.host.scheduler();
            for seq in ended {
                scheduler.abort(seq, &mut self.events);
            }
            drop(scheduler);
            self.apply_events();
            self.publish();
            ended = self.shared.host.live().flush();
        }
    }

    /// Brings the load report up to date, and tells the watchdog of progress.
    pub(super) fn publish(&mut self) {
        let stats = self.shared.host.scheduler().stats();
        let idle = stats.num_running + stats.num_waiting == 0;
        self.progress = if idle {
            None
        } else {
            Some(self.progress.unwrap_or_else(Instant::now))
        };
        self.counters.update(&stats);
        self.shared.publish(&self.counters, self.progress);
        if idle && self.flight.is_empty() {
            self.shared.host.pulse.rest();
        } else {
            self.beat(None);
        }
    }

    /// Tells the watchdog of progress, and how long it may take until there is more: what is in flight, and a step of `next` tokens that is
    /// about to be.
    pub(super) fn beat(&self, next: Option<usize>) {
        let sizes = self.flight.sizes().chain(next);
        let allowance = watchdog::allowance(&self.pace, &self.shared.diagnostics.stall, sizes);
        self.shared.host.pulse.beat(allowance);
    }
}
