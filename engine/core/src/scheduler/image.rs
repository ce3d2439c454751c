//! The state of a scheduler at rest, taken out and put back, so that a recording needs no inputs from before.

use super::Scheduler;
use crate::trace::Image;

impl Scheduler {
    /// The state, if nothing is going on.
    pub(crate) fn image(&self) -> Option<Image> {
        let is_at_rest = self.seqs.len() == 0 && self.in_flight.is_empty();
        let (free, content) = self.pool.image().filter(|_| is_at_rest)?;
        let (served, served_floor) = self.shares.image();
        Some(Image {
            free,
            content,
            served,
            served_floor,
            next_seq: self.next_seq,
            next_step: self.next_step,
            now: self.now,
        })
    }

    /// Puts a new scheduler into a state. False if the image isn't one of this pool; the scheduler is of no use then.
    pub(crate) fn restore(&mut self, image: &Image) -> bool {
        self.shares.restore(&image.served, image.served_floor);
        self.next_seq = image.next_seq;
        self.next_step = image.next_step;
        self.now = image.now;
        let num_groups = self.config.groups.len();
        let is_ours = image
            .content
            .iter()
            .all(|(content, _)| usize::from(content.group.0) < num_groups);
        is_ours && self.pool.restore(&image.free, &image.content)
    }
}
