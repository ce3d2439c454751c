//! The answer of a lookup.

use super::Holder;

/// How many blocks of a prompt, from its start, each holder holds. Made once and used for many lookups.
#[derive(Clone, Debug, Default)]
pub struct Overlaps {
    by_holder: Vec<u32>,
    /// Those above 0.
    found: Vec<u16>,
}

impl Overlaps {
    /// The number of blocks.
    pub fn get(&self, holder: Holder) -> u32 {
        self.by_holder.get(usize::from(holder.0)).copied().unwrap_or(0)
    }

    /// Holders of one or more blocks with their numbers, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (Holder, u32)> + '_ {
        self.found
            .iter()
            .map(|holder| (Holder(*holder), self.by_holder[usize::from(*holder)]))
    }

    /// Changes what every holder of one or more blocks has.
    pub(super) fn update(&mut self, change: impl Fn(Holder, u32) -> u32) {
        for holder in &self.found {
            let num_blocks = &mut self.by_holder[usize::from(*holder)];
            *num_blocks = change(Holder(*holder), *num_blocks);
        }
        self.found
            .retain(|holder| self.by_holder[usize::from(*holder)] > 0);
    }

    pub(super) fn clear(&mut self) {
        for holder in self.found.drain(..) {
            self.by_holder[usize::from(holder)] = 0;
        }
    }

    pub(super) fn set(&mut self, holder: u16, num_blocks: u32) {
        let place = usize::from(holder);
        if place >= self.by_holder.len() {
            self.by_holder.resize(place + 1, 0);
        }
        self.by_holder[place] = num_blocks;
        self.found.push(holder);
    }
}
