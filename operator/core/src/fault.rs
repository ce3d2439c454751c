//! What it means for a model that its engine didn't start.

use kvasir_config::StartFault;
use kvasir_operator_api::Reason;

/// The reason for `ModelReady`; nothing where it isn't the model's fault.
pub(crate) const fn model_reason(fault: StartFault) -> Option<Reason> {
    match fault {
        StartFault::Configuration | StartFault::SelfTest => None,
        StartFault::BadFiles => Some(Reason::LoadFailed),
        StartFault::NotFound => Some(Reason::SourceNotFound),
        StartFault::Unreachable => Some(Reason::PullFailed),
        StartFault::NoSpace => Some(Reason::NoSpace),
        StartFault::Digest => Some(Reason::DigestMismatch),
        StartFault::Unauthorized => Some(Reason::Unauthorized),
    }
}
