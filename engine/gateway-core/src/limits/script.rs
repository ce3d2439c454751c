//! Arguments and answers of the store's scripts, so that whoever talks to Redis only carries them.

use std::time::Duration;

use super::store::Admission;
use super::{Amounts, Cost, Dimension, DimensionUsage, Exhausted, Limits, MergeItem, StoreAdjustment, Usage};

/// What a charge's script is given, after its keys.
pub fn charge_arguments(limits: &Limits, estimate: Cost, request: &str, lease: Duration) -> Vec<String> {
    let none_or = |limit: Option<u64>| limit.map_or("-1".to_owned(), |limit| limit.to_string());
    let mut arguments: Vec<String> = Dimension::ALL
        .map(|dimension| none_or(limits.per_minute(dimension)))
        .to_vec();
    arguments.extend(amounts(estimate.amounts()));
    arguments.push(none_or(limits.concurrency.map(u64::from)));
    arguments.push(request.to_owned());
    arguments.push(lease.as_millis().to_string());
    arguments
}

/// What a settlement's script is given. `request` is empty for one that has no lease, because it was admitted without the store.
pub fn settle_arguments(adjustment: &StoreAdjustment, request: &str) -> Vec<String> {
    let mut arguments = vec![adjustment.slot.to_string()];
    arguments.extend(amounts(adjustment.charged));
    arguments.extend(amounts(adjustment.actual));
    arguments.push(request.to_owned());
    arguments
}

/// What a merge's script is given, for the items of one tenant.
pub fn merge_arguments<'a>(items: impl IntoIterator<Item = &'a MergeItem>) -> Vec<String> {
    let of_item = |item: &MergeItem| {
        let age = std::iter::once(item.age_seconds.to_string());
        age.chain(amounts(item.amounts)).collect::<Vec<_>>()
    };
    items.into_iter().flat_map(of_item).collect()
}

/// What a renewal's script is given.
pub fn renew_arguments<'a>(lease: Duration, requests: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let lease = std::iter::once(lease.as_millis().to_string());
    lease.chain(requests.into_iter().map(str::to_owned)).collect()
}

/// What a charge's script answered; `None` if it's no answer of that script.
pub fn charge_answer(
    answer: &[i64],
    limits: &Limits,
    estimate: Cost,
) -> Option<Result<Admission, Exhausted>> {
    let [verdict, slot, num_running, used @ .., retry] = answer else {
        return None;
    };
    let used: [i64; 4] = used.try_into().ok()?;
    let used = used.map(|amount| u64::try_from(amount).unwrap_or(0));
    let refused = match usize::try_from(*verdict).ok()? {
        0 => {
            return Some(Ok(Admission {
                slot: u64::try_from(*slot).ok()?,
                num_running: u32::try_from(*num_running).ok()?,
                used: Amounts::from(used),
            }));
        }
        5 => Exhausted::Concurrency {
            limit: limits.concurrency?,
        },
        place => {
            let dimension = *Dimension::ALL.get(place - 1)?;
            Exhausted::PerMinute {
                dimension,
                limit: limits.per_minute(dimension)?,
                used: used[place - 1],
                wanted: estimate.amounts().get(dimension),
                retry_after: u64::try_from(*retry).ok().map(Duration::from_millis),
            }
        }
    };
    Some(Err(refused))
}

impl Admission {
    /// The state of the tenant's limits. The window is empty at the latest when the slot of this charge leaves it.
    pub fn usage(&self, limits: &Limits) -> Usage {
        Usage(Dimension::ALL.map(|dimension| {
            Some(DimensionUsage {
                limit: limits.per_minute(dimension)?,
                used: self.used.get(dimension),
                reset: Duration::from_secs(super::window::NUM_SLOTS as u64),
            })
        }))
    }
}

fn amounts(amounts: Amounts) -> [String; 4] {
    amounts.as_array().map(|amount| amount.to_string())
}
