//! Sets of small numbers as bitmaps.

/// A set of numbers below 65,536. The last word is never 0, so equal sets have equal words.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(super) struct Bits(Vec<u64>);

impl Bits {
    pub(super) fn words(&self) -> &[u64] {
        &self.0
    }

    pub(super) fn num_bytes(&self) -> usize {
        self.0.capacity() * size_of::<u64>()
    }

    pub(super) fn count(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn contains(&self, number: u16) -> bool {
        let word = self.0.get(usize::from(number / 64));
        word.is_some_and(|word| word >> (number % 64) & 1 == 1)
    }

    pub(super) fn insert(&mut self, number: u16) {
        let place = usize::from(number / 64);
        if place >= self.0.len() {
            self.0.resize(place + 1, 0);
        }
        self.0[place] |= 1 << (number % 64);
    }

    pub(super) fn remove(&mut self, number: u16) {
        if let Some(word) = self.0.get_mut(usize::from(number / 64)) {
            *word &= !(1 << (number % 64));
        }
        self.trim();
    }

    /// In order.
    pub(super) fn iter(&self) -> impl Iterator<Item = u16> + '_ {
        self.0
            .iter()
            .enumerate()
            .flat_map(|(place, word)| ones(place, *word))
    }

    /// Keeps what is in `other` too; the rest is reported in order.
    pub(super) fn intersect(&mut self, other: &Self, mut lost: impl FnMut(u16)) {
        for (place, word) in self.0.iter_mut().enumerate() {
            let kept = *word & other.0.get(place).copied().unwrap_or(0);
            ones(place, *word & !kept).for_each(&mut lost);
            *word = kept;
        }
        self.trim();
    }

    /// Drops what is in `other`; says how many that were.
    pub(super) fn subtract(&mut self, other: &Self) -> usize {
        let mut num_dropped = 0;
        for (word, gone) in self.0.iter_mut().zip(&other.0) {
            num_dropped += (*word & gone).count_ones() as usize;
            *word &= !gone;
        }
        self.trim();
        num_dropped
    }

    fn trim(&mut self) {
        while self.0.last() == Some(&0) {
            self.0.pop();
        }
    }
}

impl FromIterator<u16> for Bits {
    fn from_iter<I: IntoIterator<Item = u16>>(numbers: I) -> Self {
        let mut bits = Self::default();
        numbers.into_iter().for_each(|number| bits.insert(number));
        bits
    }
}

/// The numbers of one word's bits.
fn ones(place: usize, mut word: u64) -> impl Iterator<Item = u16> {
    std::iter::from_fn(move || {
        let bit = word.trailing_zeros();
        word &= word.wrapping_sub(1);
        (bit < 64).then(|| (place * 64) as u16 + bit as u16)
    })
}
