//! Requests and limits that contradict each other: the pods would never be created.

use kvasir_operator_api::{Reason, Resources};

use crate::field_error::FieldError;
use crate::quantity::milli;

/// Refuses a request above its limit.
pub(super) fn check(path: &str, resources: &Resources, errors: &mut Vec<FieldError>) {
    for (name, request) in &resources.requests {
        let Some(limit) = resources.limits.get(name) else {
            continue;
        };
        let (Some(wanted), Some(most)) = (milli(&request.0), milli(&limit.0)) else {
            let message = format!("{request} or {limit} isn't an amount such as 500m or 4Gi");
            errors.push(FieldError::new(
                format!("{path}.requests.{name}"),
                Reason::InvalidSpec,
                message,
            ));
            continue;
        };
        if wanted > most {
            let message =
                format!("the request {request} exceeds the limit {limit}: lower it or raise the limit");
            errors.push(FieldError::new(
                format!("{path}.requests.{name}"),
                Reason::InvalidSpec,
                message,
            ));
        }
    }
}
