//! How requests are divided between revisions of a model.
//!
//! Law: without sessions, after n choices between the same revisions each has had its part of n by weight, to within one less than the
//! number of revisions. (Smooth weighted round robin, as nginx has it: the chosen one pays the sum of all weights, all earn their own.)
//! Requests of a session go to one revision, so that a conversation keeps its prefix and its model; sessions are divided by weight, but
//! only on average.

use super::address::{Revision, mix};

/// Revisions with their weights.
#[derive(Clone, Debug, Default)]
pub struct Revisions(Vec<Weighted>);

#[derive(Clone, Debug)]
struct Weighted {
    revision: Revision,
    weight: u32,
    credit: i64,
}

impl Revisions {
    /// Takes over new weights. Credit stays with revisions that stay, so that frequent changes don't favour the first one.
    pub fn set(&mut self, weights: impl IntoIterator<Item = (Revision, u32)>) {
        let old = std::mem::take(&mut self.0);
        self.0 = weights
            .into_iter()
            .map(|(revision, weight)| {
                let known = old.iter().find(|known| known.revision == revision);
                Weighted {
                    credit: known.map_or(0, |known| known.credit),
                    revision,
                    weight,
                }
            })
            .collect();
    }

    /// The revision for a request, of those that are usable; `None` if none of weight above 0 is.
    pub fn choose(
        &mut self,
        session: Option<u64>,
        is_usable: impl Fn(&Revision) -> bool,
    ) -> Option<&Revision> {
        let usable = |weighted: &Weighted| weighted.weight > 0 && is_usable(&weighted.revision);
        let usable: Vec<usize> = (0..self.0.len())
            .filter(|place| usable(&self.0[*place]))
            .collect();
        let total: u64 = usable.iter().map(|place| u64::from(self.0[*place].weight)).sum();
        let chosen = match session {
            Some(session) => self.of_session(session, &usable, total),
            None => self.in_turn(&usable, total),
        }?;
        Some(&self.0[chosen].revision)
    }

    fn of_session(&self, session: u64, usable: &[usize], total: u64) -> Option<usize> {
        let mut point = mix(session).checked_rem(total)?;
        usable.iter().copied().find(|place| {
            let weight = u64::from(self.0[*place].weight);
            let is_here = point < weight;
            point = point.saturating_sub(weight);
            is_here
        })
    }

    fn in_turn(&mut self, usable: &[usize], total: u64) -> Option<usize> {
        for place in usable {
            self.0[*place].credit += i64::from(self.0[*place].weight);
        }
        // The first of equals, so that the order is stable.
        let chosen = usable
            .iter()
            .copied()
            .max_by_key(|place| (self.0[*place].credit, std::cmp::Reverse(*place)))?;
        self.0[chosen].credit -= total as i64;
        Some(chosen)
    }
}
