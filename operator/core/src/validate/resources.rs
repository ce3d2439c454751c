//! Requests and limits that can't be, or that contradict each other: the pods would never be created.

use kvasir_operator_api::{Reason, Resources};

use crate::field_error::FieldError;
use crate::quantity::{milli, units};

/// Largest number of bytes, cores and so on: Kubernetes counts in 64 bits.
const MOST_UNITS: i128 = i64::MAX as i128;
/// Largest number of cores: Kubernetes counts them in thousandths.
const MOST_CORES: i128 = MOST_UNITS / 1000;

/// Refuses amounts that can't be, and a request above its limit.
pub(super) fn check(path: &str, resources: &Resources, errors: &mut Vec<FieldError>) {
    let mut refuse = |part: &str, name: &str, message: String| {
        errors.push(FieldError::new(
            format!("{path}.{part}.{name}"),
            Reason::InvalidSpec,
            message,
        ));
    };
    for (part, amounts) in [("requests", &resources.requests), ("limits", &resources.limits)] {
        for (name, amount) in amounts {
            let most = if name == "cpu" { MOST_CORES } else { MOST_UNITS };
            if units(&amount.0).is_none_or(|units| units > most) {
                refuse(
                    part,
                    name,
                    format!("{amount} is no amount from 0 to {most}: give one such as 500m or 4Gi"),
                );
            }
        }
    }
    for (name, request) in &resources.requests {
        let Some(limit) = resources.limits.get(name) else {
            continue;
        };
        if let (Some(wanted), Some(most)) = (milli(&request.0), milli(&limit.0))
            && wanted > most
        {
            refuse(
                "requests",
                name,
                format!("the request {request} exceeds the limit {limit}: lower it or raise the limit"),
            );
        }
    }
}
