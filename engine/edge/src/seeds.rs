//! Seeds for requests that bring none.

use std::sync::atomic::{AtomicU64, Ordering};

use uuid::Uuid;

/// Where seeds come from.
#[derive(Debug)]
pub(crate) struct Seeds {
    base: Option<u64>,
    count: AtomicU64,
}

impl Seeds {
    /// Random ones, or with a base: the first request's seed, the second one's and so on follow from it.
    pub(crate) fn new(base: Option<u64>) -> Self {
        Self {
            base,
            count: AtomicU64::new(0),
        }
    }

    /// The next one.
    pub(crate) fn next(&self) -> u64 {
        match self.base {
            Some(base) => mix(base, self.count.fetch_add(1, Ordering::Relaxed)),
            None => random(),
        }
    }
}

/// The one place with randomness.
fn random() -> u64 {
    let (high, low) = Uuid::new_v4().as_u64_pair();
    // Each half has fixed bits (version, variant) at places where the other one is random.
    high ^ low
}

/// The `count`-th output of SplitMix64 (Steele, Lea and Flood, 2014) started at `base`.
fn mix(base: u64, count: u64) -> u64 {
    let mut z = base.wrapping_add(count.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base_decides_every_seed() {
        let (a, b, other) = (Seeds::new(Some(7)), Seeds::new(Some(7)), Seeds::new(Some(8)));
        let first: Vec<u64> = (0..4).map(|_| a.next()).collect();
        assert_eq!(first, (0..4).map(|_| b.next()).collect::<Vec<_>>());
        assert_ne!(first, (0..4).map(|_| other.next()).collect::<Vec<_>>());
        assert_ne!(first[0], first[1]);
        // The published first output for the seed 1234567.
        assert_eq!(mix(1_234_567, 0), 6_457_827_717_110_365_317);
    }

    #[test]
    fn seeds_without_base_differ() {
        let seeds = Seeds::new(None);
        assert_ne!(seeds.next(), seeds.next());
    }
}
