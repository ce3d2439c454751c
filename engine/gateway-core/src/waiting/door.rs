//! Whether a request goes on, waits, or is sent away.

use std::time::Duration;

use super::room::Full;
use crate::time::Micros;

/// How long requests wait at most.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct DoorConfig {
    /// While engines are busy.
    pub max_wait: Duration,
    /// While there is no engine and one may come (`holdSeconds`); zero: not at all.
    pub hold: Duration,
    /// What `Retry-After` says to those who are sent away.
    pub retry_after: Duration,
}

/// What a request meets.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Door {
    /// The state of the engines.
    pub engines: Engines,
    /// Whether others wait, who must not be overtaken.
    pub others_wait: bool,
}

/// The state of the engines of a service.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Engines {
    /// Some take another request at once.
    Free,
    /// Some can be used, but not at once.
    Busy,
    /// None can be used, and one may come, because the service scales from zero or starts.
    MayCome,
    /// None can be used.
    None,
}

/// What becomes of a request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Arrival {
    /// It goes on.
    Go,
    /// It waits, until then at most; afterwards it's sent away with the refusal.
    Wait {
        /// The end of its time.
        until: Micros,
        /// What it's then told.
        then: Refusal,
    },
    /// It's sent away.
    SendAway(Refusal),
}

/// Why a request is sent away.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Refusal {
    /// There is no engine, and none to wait for.
    NoEngine,
    /// No engine came in time.
    HoldEnded,
    /// Engines were busy for too long.
    WaitEnded,
    /// The room is full.
    RoomFull,
    /// The tenant's part of the room is full.
    TenantsPartFull,
}

impl Default for DoorConfig {
    /// A minute in front of busy engines, no parking.
    fn default() -> Self {
        Self {
            max_wait: Duration::from_mins(1),
            hold: Duration::ZERO,
            retry_after: Duration::from_secs(5),
        }
    }
}

impl Door {
    /// What becomes of a request that arrives now.
    pub fn arrival(self, config: &DoorConfig, now: Micros) -> Arrival {
        match self.engines {
            Engines::Free if !self.others_wait => Arrival::Go,
            Engines::Free | Engines::Busy => Arrival::Wait {
                until: now.plus(config.max_wait),
                then: Refusal::WaitEnded,
            },
            Engines::MayCome if config.hold > Duration::ZERO => Arrival::Wait {
                until: now.plus(config.hold),
                then: Refusal::HoldEnded,
            },
            Engines::MayCome | Engines::None => Arrival::SendAway(Refusal::NoEngine),
        }
    }

    /// Whether the gateway is ready for requests: some engine is usable, or requests may be parked.
    pub fn is_ready(self, config: &DoorConfig) -> bool {
        match self.engines {
            Engines::Free | Engines::Busy => true,
            Engines::MayCome => config.hold > Duration::ZERO,
            Engines::None => false,
        }
    }
}

impl From<Full> for Refusal {
    fn from(full: Full) -> Self {
        match full {
            Full::Room { .. } => Self::RoomFull,
            Full::TenantsPart { .. } => Self::TenantsPartFull,
        }
    }
}

impl Refusal {
    /// The HTTP status: 429 where the tenant itself is the reason, else 503. Both come with `Retry-After`.
    pub fn status(self) -> u16 {
        match self {
            Self::TenantsPartFull => 429,
            Self::NoEngine | Self::HoldEnded | Self::WaitEnded | Self::RoomFull => 503,
        }
    }

    /// The stable code for the audit log and metrics.
    pub fn code(self) -> &'static str {
        match self {
            Self::NoEngine => "no_engine",
            Self::HoldEnded => "hold_ended",
            Self::WaitEnded => "wait_ended",
            Self::RoomFull => "queue_full",
            Self::TenantsPartFull => "tenant_queue_full",
        }
    }
}
