//! What tells requests, and accounts of stores, apart.

use std::fmt;
use std::sync::Arc;

/// A request, or a handover, of any replica. A replica's later ones are larger.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct RequestId {
    pub(super) replica: Arc<str>,
    pub(super) number: u64,
}

/// One life of a tenant's account in the store: another one hasn't heard what this one had. It's named after the request that began it.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Instance(pub Arc<str>);

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.replica, self.number)
    }
}

impl fmt::Display for Instance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
