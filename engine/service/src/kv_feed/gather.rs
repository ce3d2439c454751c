//! Learns what can be found while the scheduler goes on: a piece of the contents per turn, and the events in between.

use std::collections::BTreeSet;

use kvasir_engine_core::{BlockEvent, CachedBlock};

/// What was learnt so far, in order. Applied as a set it is right once every piece was taken: whatever could be found when it began is in
/// a piece, unless an event said that it went; what came later is in an event.
#[derive(Debug)]
pub(crate) struct Gather {
    /// Contents that haven't been looked at.
    left: usize,
    learnt: Vec<(CachedBlock, bool)>,
}

impl Gather {
    /// Begins with `num_contents` to look at.
    pub(crate) fn new(num_contents: usize) -> Self {
        Self {
            left: num_contents,
            learnt: Vec::new(),
        }
    }

    /// Whether everything is learnt.
    pub(crate) fn is_complete(&self) -> bool {
        self.left == 0
    }

    /// Takes the next piece, at most `max` of the `num_contents` there are now, from the back: when a content leaves, the last one takes its
    /// place, so what was not looked at is always in front of what was.
    pub(crate) fn take(
        &mut self,
        num_contents: usize,
        max: usize,
        content: impl Fn(usize) -> Option<CachedBlock>,
    ) {
        let end = self.left.min(num_contents);
        self.left = end.saturating_sub(max);
        let piece = (self.left..end).rev().filter_map(content);
        self.learnt.extend(piece.map(|content| (content, true)));
    }

    pub(crate) fn apply(&mut self, event: &BlockEvent) {
        match *event {
            BlockEvent::Stored { group, hash, .. } => self.learnt.push((CachedBlock { group, hash }, true)),
            BlockEvent::Removed { group, hash, .. } => self.learnt.push((CachedBlock { group, hash }, false)),
            BlockEvent::AllCleared => {
                self.learnt.clear();
                self.left = 0;
            }
        }
    }

    /// The contents, which takes time for what was learnt.
    pub(crate) fn into_contents(self) -> BTreeSet<CachedBlock> {
        let mut contents = BTreeSet::new();
        for (content, is_there) in self.learnt {
            if is_there {
                contents.insert(content);
            } else {
                contents.remove(&content);
            }
        }
        contents
    }
}
