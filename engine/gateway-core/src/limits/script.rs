//! Arguments and answers of the store's scripts, so that whoever talks to Redis only carries them.

use std::time::Duration;

use super::store::{Admission, Verdict};
use super::{
    Amounts, Cost, Dimension, DimensionUsage, Ended, Exhausted, Handover, Instance, LEASE, Limits, RequestId,
    Usage,
};

/// What a charge's script is given, after its keys. The account must be the known one, if there is one.
pub fn charge_arguments(
    limits: &Limits,
    estimate: Cost,
    request: &RequestId,
    known: Option<&Instance>,
) -> Vec<String> {
    let none_or = |limit: Option<u64>| limit.map_or("-1".to_owned(), |limit| limit.to_string());
    let mut arguments: Vec<String> = Dimension::ALL
        .map(|dimension| none_or(limits.per_minute(dimension)))
        .to_vec();
    arguments.extend(amounts(estimate.amounts()));
    arguments.push(none_or(limits.concurrency.map(u64::from)));
    arguments.push(request.to_string());
    arguments.push(lease());
    arguments.push(any_or(known));
    arguments
}

/// What a settlement's script is given.
pub fn settle_arguments(instance: &Instance, ended: &[Ended]) -> Vec<String> {
    let mut arguments = vec![instance.to_string()];
    for Ended { id, actual } in ended {
        arguments.push(id.to_string());
        arguments.extend(amounts(*actual));
    }
    arguments
}

/// What a merge's script is given.
pub fn merge_arguments(handover: &Handover) -> Vec<String> {
    let mut arguments = vec![
        handover.id.to_string(),
        any_or(handover.expected.as_ref()),
        lease(),
        handover.settled.len().to_string(),
    ];
    for (age, of) in &handover.settled {
        arguments.push(age.to_string());
        arguments.extend(amounts(*of));
    }
    for (id, age, of) in &handover.open {
        arguments.extend([id.to_string(), age.to_string()]);
        arguments.extend(amounts(*of));
    }
    arguments
}

/// What a renewal's script is given.
pub fn renew_arguments(instance: &Instance, requests: &[RequestId]) -> Vec<String> {
    let first = [instance.to_string(), lease()];
    first
        .into_iter()
        .chain(requests.iter().map(RequestId::to_string))
        .collect()
}

/// What a charge's script answered; `None` if it's no answer of that script.
pub fn charge_answer(answer: &[i64], instance: &str, limits: &Limits, estimate: Cost) -> Option<Verdict> {
    let [verdict, num_running, used @ .., retry] = answer else {
        return None;
    };
    let used: [i64; 4] = used.try_into().ok()?;
    let used = used.map(|amount| u64::try_from(amount).unwrap_or(0));
    let refused = match usize::try_from(*verdict).ok()? {
        0 if !instance.is_empty() => {
            return Some(Verdict::Admitted(Admission {
                instance: Instance(instance.into()),
                num_running: u32::try_from(*num_running).ok()?,
                used: Amounts::from(used),
            }));
        }
        5 => Exhausted::Concurrency {
            limit: limits.concurrency?,
        },
        6 => return Some(Verdict::Elsewhere),
        place => {
            let dimension = *Dimension::ALL.get(place.checked_sub(1)?)?;
            Exhausted::PerMinute {
                dimension,
                limit: limits.per_minute(dimension)?,
                used: used[place - 1],
                wanted: estimate.amounts().get(dimension),
                retry_after: u64::try_from(*retry).ok().map(Duration::from_millis),
            }
        }
    };
    Some(Verdict::Refused(refused))
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

fn lease() -> String {
    LEASE.as_millis().to_string()
}

fn any_or(instance: Option<&Instance>) -> String {
    instance.map(Instance::to_string).unwrap_or_default()
}
