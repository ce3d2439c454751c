//! Which engine holds which blocks.
//!
//! The index maps the first 8 bytes of a block's hash to the set of engines that hold the block, and answers how many blocks of a prompt,
//! from its start, each engine holds. It's a hint: two blocks whose 8 bytes agree by chance cost a better choice, never a wrong answer.
//!
//! Layout, for 10 million blocks below 1 GiB: an open-addressed table of 12-byte entries, hash and set. A set of one is the engine's own
//! number; larger sets are shared among all blocks with the same holders (see the module `sets`), because the blocks of a conversation are held by the
//! same engines. The table is cut into shards by hash, so that growing and sweeping touch a few thousand entries at a time and never stop
//! the gateway. A client can't aim at a shard or a slot: hashes are salted with a secret.
//!
//! An engine that leaves costs nothing at once: its number is retired, lookups skip it, and [`sweep`](PrefixIndex::sweep) removes what is left
//! of it bit by bit before the number is used again. A snapshot is a new number that is filled while the old one still answers.
//!
//! Laws (properties in `tests`): the index equals a map of sets; it never holds more than its bound; overlap is the longest common prefix.

mod bits;
mod overlap;
mod sets;

use hashbrown::HashTable;
use hashbrown::hash_table::Entry as Place;

use bits::Bits;
use sets::{Sets, Value};

pub use overlap::Overlaps;

use super::layout::{CacheLayout, filed};

/// With 10 million blocks a shard holds 10,000 of them: its growth copies 200 KiB, its sweep takes some ten microseconds.
const NUM_SHARDS: usize = 1024;

/// A number under which an engine's blocks are filed. Not the engine itself: a snapshot moves it to another number.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Holder(u16);

/// Blocks of all engines.
#[derive(Debug)]
pub struct PrefixIndex {
    shards: Vec<HashTable<Entry>>,
    sets: Sets,
    holders: Vec<HolderState>,
    retired: Bits,
    free: Vec<u16>,
    /// The next shard to sweep.
    cursor: usize,
    num_pairs: usize,
    max_pairs: usize,
    num_refused: u64,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// The hash in two halves, so that an entry takes 12 bytes and not 16.
    hash: [u32; 2],
    value: Value,
}

/// A block among those of a prompt.
#[derive(Clone, Copy, Debug)]
struct Run {
    /// Its holders; `None` if there are none.
    value: Option<Value>,
    /// The first of the blocks up to it that all have these holders.
    start: u32,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum HolderState {
    Free,
    Live {
        num_blocks: u32,
    },
    /// Leaves after so many more shards have been swept.
    Retired {
        shards_left: usize,
    },
}

impl Entry {
    fn hash(&self) -> u64 {
        u64::from(self.hash[0]) << 32 | u64::from(self.hash[1])
    }
}

impl PrefixIndex {
    /// An index of at most `max_pairs` blocks, counted once for each engine that holds them. A pair takes up to 30 bytes.
    pub fn new(max_pairs: usize) -> Self {
        Self {
            shards: (0..NUM_SHARDS).map(|_| HashTable::new()).collect(),
            sets: Sets::default(),
            holders: Vec::new(),
            retired: Bits::default(),
            free: Vec::new(),
            cursor: 0,
            num_pairs: 0,
            max_pairs,
            num_refused: 0,
        }
    }

    /// A number for an engine; `None` if all 65,535 are taken.
    pub fn attach(&mut self) -> Option<Holder> {
        let live = HolderState::Live { num_blocks: 0 };
        if let Some(free) = self.free.pop() {
            self.holders[usize::from(free)] = live;
            return Some(Holder(free));
        }
        let next = u16::try_from(self.holders.len())
            .ok()
            .filter(|next| *next < u16::MAX)?;
        self.holders.push(live);
        Some(Holder(next))
    }

    /// The engine is gone, or has moved to another number.
    pub fn retire(&mut self, holder: Holder) {
        if let Some(state @ HolderState::Live { .. }) = self.holders.get_mut(usize::from(holder.0)) {
            *state = HolderState::Retired {
                shards_left: NUM_SHARDS,
            };
            self.retired.insert(holder.0);
        }
    }

    /// The holder holds these blocks too. Blocks beyond the index's bound are counted in [`num_refused`](Self::num_refused).
    pub fn store(&mut self, holder: Holder, hashes: &[u64]) {
        for hash in hashes {
            let Some(HolderState::Live { .. }) = self.holders.get(usize::from(holder.0)) else {
                return;
            };
            if self.num_pairs >= self.max_pairs {
                self.num_refused += u64::from(!self.holds(holder, *hash));
                continue;
            }
            if self.insert(holder, *hash) {
                self.count(holder, 1);
            }
        }
    }

    /// The holder no longer holds these blocks. Unknown ones change nothing.
    pub fn remove(&mut self, holder: Holder, hashes: &[u64]) {
        for hash in hashes {
            if self.delete(holder, *hash) {
                self.count(holder, -1);
            }
        }
    }

    /// How many blocks of the prompt with these hashes each live holder holds, from the prompt's start.
    pub fn overlaps(&self, hashes: &[u64], overlaps: &mut Overlaps) {
        overlaps.clear();
        let mut values = hashes.iter().map_while(|hash| self.find(*hash));
        let Some(first) = values.next() else {
            return;
        };
        let mut held = self.sets.bits(first);
        held.subtract(&self.retired);
        let mut num_blocks = 1;
        let mut last = first;
        for value in values {
            if held.is_empty() {
                break;
            }
            if value != last {
                self.sets
                    .split(value, &mut held, |lost| overlaps.set(lost, num_blocks));
                last = value;
            }
            num_blocks += 1;
        }
        held.iter().for_each(|holder| overlaps.set(holder, num_blocks));
    }

    /// Behind how many blocks of the prompt with these hashes each live holder lets it start, where holders file the blocks of several groups
    /// (see [`CacheLayout`]).
    pub fn overlaps_in(&self, layout: &CacheLayout, hashes: &[u64], overlaps: &mut Overlaps) {
        let in_group = |group: u32| -> Vec<u64> { hashes.iter().map(|hash| filed(group, *hash)).collect() };
        match layout.full() {
            [0] => self.overlaps(hashes, overlaps),
            [first, others @ ..] => {
                self.overlaps(&in_group(*first), overlaps);
                let mut of_other = Overlaps::default();
                for group in others {
                    self.overlaps(&in_group(*group), &mut of_other);
                    overlaps.update(|holder, num_blocks| num_blocks.min(of_other.get(holder)));
                }
            }
            [] => self.all(hashes.len() as u32, overlaps),
        }
        if layout.has_windows() {
            let groups = layout.windows().map(|group| self.runs(&in_group(group)));
            let groups: Vec<Vec<Run>> = groups.collect();
            overlaps.update(|holder, num_blocks| {
                layout.behind_windows(num_blocks, |window, block| {
                    let run = groups[window][block as usize];
                    let is_held = run.value.is_some_and(|value| self.sets.contains(value, holder.0));
                    (is_held, run.start)
                })
            });
        }
    }

    /// For each block, who holds it, and the first of the blocks before it that the same ones hold. Prompts of many requests begin alike, so a
    /// holder is looked for once in many blocks.
    fn runs(&self, hashes: &[u64]) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::with_capacity(hashes.len());
        for (block, hash) in (0..).zip(hashes) {
            let value = self.find(*hash);
            let last = runs.last().filter(|last| last.value == value);
            let start = last.map_or(block, |last| last.start);
            runs.push(Run { value, start });
        }
        runs
    }

    /// So many blocks for every live holder.
    fn all(&self, num_blocks: u32, overlaps: &mut Overlaps) {
        overlaps.clear();
        for (number, state) in self.holders.iter().enumerate() {
            if let (HolderState::Live { .. }, true) = (state, num_blocks > 0) {
                overlaps.set(number as u16, num_blocks);
            }
        }
    }

    /// Removes what is left of retired holders from the next `num_shards` shards. Cheap when there are none.
    pub fn sweep(&mut self, num_shards: usize) {
        for _ in 0..num_shards {
            if self.retired.is_empty() {
                return;
            }
            self.sweep_next();
        }
    }

    /// Blocks that a holder holds.
    pub fn num_blocks(&self, holder: Holder) -> u32 {
        match self.holders.get(usize::from(holder.0)) {
            Some(HolderState::Live { num_blocks }) => *num_blocks,
            _ => 0,
        }
    }

    /// All blocks, counted once for each holder, with what retired ones have left behind.
    pub fn num_pairs(&self) -> usize {
        self.num_pairs
    }

    /// Blocks that were not filed because the index was full.
    pub fn num_refused(&self) -> u64 {
        self.num_refused
    }

    /// Memory of the index in bytes.
    pub fn num_bytes(&self) -> usize {
        let tables: usize = self.shards.iter().map(HashTable::allocation_size).sum();
        tables + self.sets.num_bytes() + self.holders.capacity() * size_of::<HolderState>()
    }

    fn shard_of(hash: u64) -> usize {
        // The table itself uses the lower bits and the topmost seven.
        (hash >> 40) as usize % NUM_SHARDS
    }

    fn find(&self, hash: u64) -> Option<Value> {
        let shard = &self.shards[Self::shard_of(hash)];
        shard
            .find(hash, |entry| entry.hash() == hash)
            .map(|entry| entry.value)
    }

    fn holds(&self, holder: Holder, hash: u64) -> bool {
        self.find(hash)
            .is_some_and(|value| self.sets.contains(value, holder.0))
    }

    fn insert(&mut self, holder: Holder, hash: u64) -> bool {
        let shard = &mut self.shards[Self::shard_of(hash)];
        match shard.entry(hash, |entry| entry.hash() == hash, Entry::hash) {
            Place::Vacant(place) => {
                let hash = [(hash >> 32) as u32, hash as u32];
                let value = Value::one(holder.0);
                place.insert(Entry { hash, value });
                true
            }
            Place::Occupied(mut place) => {
                let entry = place.get_mut();
                let with = self.sets.with(entry.value, holder.0);
                with.is_some_and(|value| {
                    entry.value = value;
                    true
                })
            }
        }
    }

    fn delete(&mut self, holder: Holder, hash: u64) -> bool {
        let shard = &mut self.shards[Self::shard_of(hash)];
        let Ok(mut place) = shard.find_entry(hash, |entry| entry.hash() == hash) else {
            return false;
        };
        let value = place.get().value;
        if !self.sets.contains(value, holder.0) {
            return false;
        }
        match self.sets.without(value, holder.0) {
            Some(value) => place.get_mut().value = value,
            None => drop(place.remove()),
        }
        true
    }

    fn count(&mut self, holder: Holder, change: i32) {
        self.num_pairs = self.num_pairs.saturating_add_signed(change as isize);
        if let Some(HolderState::Live { num_blocks }) = self.holders.get_mut(usize::from(holder.0)) {
            *num_blocks = num_blocks.saturating_add_signed(change);
        }
    }

    fn sweep_next(&mut self) {
        let Self {
            shards,
            sets,
            retired,
            num_pairs,
            ..
        } = self;
        shards[self.cursor].retain(|entry| {
            let (value, num_removed) = sets.without_all(entry.value, retired);
            *num_pairs -= num_removed;
            entry.value = value.unwrap_or(entry.value);
            value.is_some()
        });
        self.cursor = (self.cursor + 1) % NUM_SHARDS;
        for (number, state) in self.holders.iter_mut().enumerate() {
            if let HolderState::Retired { shards_left } = state {
                *shards_left -= 1;
                if *shards_left == 0 {
                    *state = HolderState::Free;
                    self.retired.remove(number as u16);
                    self.free.push(number as u16);
                }
            }
        }
    }
}
