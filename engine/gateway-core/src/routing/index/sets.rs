//! Sets of holders, each stored once however many blocks have it.

use hashbrown::HashTable;

use super::bits::Bits;

/// A set of one or more holders: below [`FIRST_SHARED`] a holder by itself, from there on the number of a shared set.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Value(u32);

const FIRST_SHARED: u32 = 1 << 16;

/// Larger sets are bitmaps: smaller than lists for a thousand engines, and compared a word at a time.
const MAX_LISTED: usize = 32;

/// All sets of two or more holders.
#[derive(Debug, Default)]
pub(super) struct Sets {
    shared: Vec<Shared>,
    by_members: HashTable<u32>,
    free: Vec<u32>,
    /// Of the members of all sets.
    num_member_bytes: usize,
}

#[derive(Debug)]
struct Shared {
    members: Members,
    num_uses: u32,
}

/// One form for each set, so that equal sets are equal.
#[derive(Debug, Eq, PartialEq)]
enum Members {
    /// Up to [`MAX_LISTED`], in order.
    Listed(Box<[u16]>),
    /// More.
    Mapped(Bits),
}

impl Value {
    pub(super) fn one(holder: u16) -> Self {
        Self(u32::from(holder))
    }

    fn shared(self) -> Option<usize> {
        self.0.checked_sub(FIRST_SHARED).map(|number| number as usize)
    }
}

impl Members {
    fn from_bits(bits: Bits) -> Self {
        if bits.count() > MAX_LISTED {
            return Self::Mapped(bits);
        }
        Self::Listed(bits.iter().collect())
    }

    fn to_bits(&self) -> Bits {
        match self {
            Self::Listed(members) => members.iter().copied().collect(),
            Self::Mapped(bits) => bits.clone(),
        }
    }

    fn contains(&self, holder: u16) -> bool {
        match self {
            Self::Listed(members) => members.binary_search(&holder).is_ok(),
            Self::Mapped(bits) => bits.contains(holder),
        }
    }

    fn num_bytes(&self) -> usize {
        match self {
            Self::Listed(members) => size_of_val(&**members),
            Self::Mapped(bits) => bits.num_bytes(),
        }
    }

    /// FNV-1a, finished by a multiplication that reaches the topmost bits. Members are our own numbers, so nobody can aim for collisions.
    fn hash(&self) -> u64 {
        let step = |hash: u64, word: u64| (hash ^ word).wrapping_mul(0x0100_0000_01b3);
        let start = 0xcbf2_9ce4_8422_2325;
        let hash = match self {
            Self::Listed(members) => members.iter().map(|member| u64::from(*member)).fold(start, step),
            Self::Mapped(bits) => bits
                .words()
                .iter()
                .copied()
                .fold(start, |hash, word| step(hash, word ^ (word >> 29))),
        };
        (hash ^ (hash >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
}

impl Sets {
    pub(super) fn contains(&self, value: Value, holder: u16) -> bool {
        match value.shared() {
            None => value == Value::one(holder),
            Some(number) => self.shared[number].members.contains(holder),
        }
    }

    pub(super) fn bits(&self, value: Value) -> Bits {
        match value.shared() {
            None => std::iter::once(value.0 as u16).collect(),
            Some(number) => self.shared[number].members.to_bits(),
        }
    }

    /// Keeps those of `held` that are members; the others are reported.
    pub(super) fn split(&self, value: Value, held: &mut Bits, lost: impl FnMut(u16)) {
        let of_one = [value.0 as u16];
        let listed: &[u16] = match value.shared().map(|number| &self.shared[number].members) {
            Some(Members::Mapped(bits)) => return held.intersect(bits, lost),
            Some(Members::Listed(members)) => members,
            None => &of_one,
        };
        held.intersect(&listed.iter().copied().collect(), lost);
    }

    /// The set with one more member, in place of `value`; `None` if it is one already.
    pub(super) fn with(&mut self, value: Value, holder: u16) -> Option<Value> {
        if self.contains(value, holder) {
            return None;
        }
        let mut bits = self.bits(value);
        bits.insert(holder);
        let with = self.share(bits);
        self.release(value);
        Some(with)
    }

    /// The set with one member less, in place of `value`; `None` if nothing is left.
    pub(super) fn without(&mut self, value: Value, holder: u16) -> Option<Value> {
        self.without_all(value, &std::iter::once(holder).collect()).0
    }

    /// The set without the members that are gone, in place of `value`, and how many those were; no set if nothing is left.
    pub(super) fn without_all(&mut self, value: Value, gone: &Bits) -> (Option<Value>, usize) {
        if value.shared().is_none() {
            let is_gone = gone.contains(value.0 as u16);
            return ((!is_gone).then_some(value), usize::from(is_gone));
        }
        let mut rest = self.bits(value);
        let num_gone = rest.subtract(gone);
        if num_gone == 0 {
            return (Some(value), 0);
        }
        let rest = (rest.count() > 0).then(|| self.share(rest));
        self.release(value);
        (rest, num_gone)
    }

    pub(super) fn num_bytes(&self) -> usize {
        let fixed = self.shared.capacity() * size_of::<Shared>() + self.free.capacity() * size_of::<u32>();
        fixed + self.by_members.allocation_size() + self.num_member_bytes
    }

    /// One more use of the set of these one or more members.
    fn share(&mut self, bits: Bits) -> Value {
        let members = Members::from_bits(bits);
        if let Members::Listed(listed) = &members
            && let [holder] = **listed
        {
            return Value::one(holder);
        }
        let hash = members.hash();
        let shared = &mut self.shared;
        if let Some(number) = self
            .by_members
            .find(hash, |number| shared[*number as usize].members == members)
        {
            shared[*number as usize].num_uses += 1;
            return Value(FIRST_SHARED + *number);
        }
        self.num_member_bytes += members.num_bytes();
        let new = Shared { members, num_uses: 1 };
        let number = self.free.pop().unwrap_or(shared.len() as u32);
        if number as usize == shared.len() {
            shared.push(new);
        } else {
            shared[number as usize] = new;
        }
        self.by_members
            .insert_unique(hash, number, |number| shared[*number as usize].members.hash());
        Value(FIRST_SHARED + number)
    }

    /// One use less.
    fn release(&mut self, value: Value) {
        let Some(number) = value.shared() else {
            return;
        };
        let shared = &mut self.shared[number];
        shared.num_uses -= 1;
        if shared.num_uses > 0 {
            return;
        }
        let members = std::mem::replace(&mut shared.members, Members::Listed(Box::default()));
        self.num_member_bytes -= members.num_bytes();
        if let Ok(place) = self
            .by_members
            .find_entry(members.hash(), |other| *other as usize == number)
        {
            place.remove();
        }
        self.free.push(number as u32);
    }
}
