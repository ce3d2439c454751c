//! The sequences that haven't ended, in slots that are used again: what runs is reached by index, without a search.

use std::collections::BTreeMap;

use crate::ids::SeqId;
use crate::sequence::Sequence;

/// Where a sequence lies. Valid until the sequence ends; [`Arena::find`] tells whether it still is.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) struct Slot(u32);

impl Slot {
    /// Where nothing lies: of a sequence that has ended.
    pub(crate) const NOWHERE: Self = Self(u32::MAX);
}

/// Slots, and where each id lies.
#[derive(Debug, Default)]
#[cfg_attr(feature = "model", derive(Clone))]
pub(crate) struct Arena {
    slots: Vec<Option<Sequence>>,
    vacant: Vec<Slot>,
    by_id: BTreeMap<SeqId, Slot>,
}

impl Arena {
    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }

    pub(crate) fn insert(&mut self, seq: Sequence) -> Slot {
        let id = seq.id;
        let slot = if let Some(slot) = self.vacant.pop() {
            self.slots[slot.0 as usize] = Some(seq);
            slot
        } else {
            self.slots.push(Some(seq));
            Slot(self.slots.len() as u32 - 1)
        };
        self.by_id.insert(id, slot);
        slot
    }

    pub(crate) fn remove(&mut self, slot: Slot) -> Option<Sequence> {
        let seq = self.slots.get_mut(slot.0 as usize)?.take()?;
        self.by_id.remove(&seq.id);
        self.vacant.push(slot);
        Some(seq)
    }

    /// Where a sequence lies, unless it has ended.
    pub(crate) fn slot_of(&self, id: SeqId) -> Option<Slot> {
        self.by_id.get(&id).copied()
    }

    /// The sequence `id`, unless it has ended and its slot may hold another one.
    pub(crate) fn find(&mut self, slot: Slot, id: SeqId) -> Option<&mut Sequence> {
        let seq = self.slots.get_mut(slot.0 as usize)?.as_mut();
        seq.filter(|seq| seq.id == id)
    }

    /// The same, to look at.
    pub(crate) fn get(&self, slot: Slot, id: SeqId) -> Option<&Sequence> {
        let seq = self.slots.get(slot.0 as usize)?.as_ref();
        seq.filter(|seq| seq.id == id)
    }

    /// By id, oldest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Sequence> {
        self.by_id.values().map(|&slot| &self[slot])
    }
}

/// A slot from a queue: a sequence leaves its queue before it leaves the arena.
impl std::ops::Index<Slot> for Arena {
    type Output = Sequence;

    fn index(&self, slot: Slot) -> &Sequence {
        self.slots[slot.0 as usize]
            .as_ref()
            .expect("a queued sequence has not ended")
    }
}

impl std::ops::IndexMut<Slot> for Arena {
    fn index_mut(&mut self, slot: Slot) -> &mut Sequence {
        self.slots[slot.0 as usize]
            .as_mut()
            .expect("a queued sequence has not ended")
    }
}
