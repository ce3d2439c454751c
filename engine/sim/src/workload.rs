//! What is asked of the engines: described, checked, not yet drawn.

use crate::dist::{DistError, Lengths, Pause};
use crate::recording::Recording;
use crate::time::MAX_SECONDS;

/// Requests are told apart by a token of their own, in 31 bits.
pub const MAX_REQUESTS: u64 = (1 << 31) - 1;

/// Where requests come from.
#[derive(Clone, Debug, PartialEq)]
pub enum Workload {
    /// Drawn from distributions.
    Synthetic(Synthetic),
    /// As somebody recorded them.
    Recorded(Recording),
}

/// Requests from distributions.
#[derive(Clone, Debug, PartialEq)]
pub struct Synthetic {
    /// Equal seeds give equal requests.
    pub seed: u64,
    /// When they come.
    pub arrivals: Arrivals,
    /// Prompt tokens that a request has for itself; in a conversation, those that a turn adds.
    pub prompts: Lengths,
    /// Output tokens. What doesn't fit the model or the KV cache is cut off, as a server does.
    pub outputs: Lengths,
    /// Prompt beginnings that requests have in common.
    pub shared_prefix: Option<SharedPrefix>,
    /// Conversations instead of single requests.
    pub conversation: Option<Conversation>,
    /// Who asks, by share; nobody in particular if empty.
    pub tenants: Vec<Tenant>,
    /// Seconds after which a request is given up.
    pub timeout: Option<f64>,
}

/// One client that asks for 128 tokens after 256, again and again.
impl Default for Synthetic {
    fn default() -> Self {
        Self {
            seed: 0,
            arrivals: Arrivals::Clients {
                count: 1,
                pause: Pause::Fixed(0.0),
                ramp_seconds: 0.0,
            },
            prompts: Lengths::Fixed(256),
            outputs: Lengths::Fixed(128),
            shared_prefix: None,
            conversation: None,
            tenants: Vec::new(),
            timeout: None,
        }
    }
}

/// When requests come.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Arrivals {
    /// All at the start; the number of requests must be limited.
    AtOnce,
    /// At a rate, whatever the server does.
    Rate {
        /// Requests (or conversations) per second.
        per_second: f64,
        /// Shape of the gamma distribution of the gaps: 1 is a Poisson process, below 1 comes in bursts, above 1 is more regular.
        burstiness: f64,
    },
    /// At equal distances.
    Constant {
        /// Requests (or conversations) per second.
        per_second: f64,
    },
    /// Clients that each ask again when they have their answer. One that is refused comes back after the pause, and not before a second.
    Clients {
        /// How many.
        count: u32,
        /// From an answer to the next question.
        pause: Pause,
        /// Seconds over which their first requests are spread.
        ramp_seconds: f64,
    },
}

/// Prompt beginnings in common. They come before the tokens that a request has for itself, and are shared within a tenant only.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SharedPrefix {
    /// Different beginnings, equally likely.
    pub groups: u32,
    /// Tokens of each.
    pub tokens: u32,
}

/// Requests whose prompt is all that was said before. A conversation that outgrows the model ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Conversation {
    /// Requests of one conversation.
    pub turns: Lengths,
    /// From an answer to the next question.
    pub pause: Pause,
}

/// Somebody who asks.
#[derive(Clone, Debug, PartialEq)]
pub struct Tenant {
    /// Its name in reports.
    pub name: String,
    /// Its part of the requests, relative to the others'.
    pub share: f64,
    /// Lower runs earlier under the priority policy.
    pub priority: i64,
    /// Its part of the tokens under fair sharing, relative to the others'.
    pub weight: u32,
}

/// A workload that can't be used.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum WorkloadError {
    /// A distribution can't work.
    #[error(transparent)]
    Distribution(#[from] DistError),
    /// A number is outside of its range.
    #[error("{name} is {}; it must be a number from {} to {}", Shown(*value), Shown(*min), Shown(*max))]
    OutOfRange {
        /// Which one.
        name: &'static str,
        /// What was given.
        value: f64,
        /// Smallest one.
        min: f64,
        /// Largest one.
        max: f64,
    },
    /// A shared beginning leaves no room.
    #[error(
        "a shared prefix of {tokens} tokens leaves no room in prompts of at most {limit} tokens; shorten it or raise the model's length"
    )]
    PrefixTooLong {
        /// Its tokens.
        tokens: u32,
        /// The longest prompt.
        limit: u32,
    },
    /// Nobody asks.
    #[error("the shares of all tenants are 0; give at least one a share")]
    NoShare,
    /// Nothing would end the run.
    #[error("nothing ends this run: give a number of requests or a duration")]
    Endless,
    /// There is nothing in the recording.
    #[error("the recording has no requests")]
    Empty,
}

/// A number as people write it: beyond a million millions, and near 0, with an exponent.
pub(crate) struct Shown(pub(crate) f64);

impl std::fmt::Display for Shown {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self(value) = *self;
        let is_plain = value == 0.0 || (1e-4..1e12).contains(&value.abs()) || !value.is_finite();
        if is_plain {
            write!(f, "{value}")
        } else {
            write!(f, "{value:e}")
        }
    }
}

/// Checks `value` against a closed range; not-a-number lies in none.
pub(crate) fn in_range(name: &'static str, value: f64, min: f64, max: f64) -> Result<(), WorkloadError> {
    if (min..=max).contains(&value) {
        Ok(())
    } else {
        Err(WorkloadError::OutOfRange {
            name,
            value,
            min,
            max,
        })
    }
}

impl Workload {
    /// Checks everything that can be known before it is run; `max_model_len` is the model's length in tokens.
    ///
    /// # Errors
    /// The first value that can't work, with its limit.
    pub fn validate(&self, max_model_len: u32) -> Result<(), WorkloadError> {
        match self {
            Self::Synthetic(synthetic) => synthetic.validate(max_model_len),
            Self::Recorded(recording) if recording.is_empty() => Err(WorkloadError::Empty),
            Self::Recorded(_) => Ok(()),
        }
    }

    /// The names under which reports tell tenants apart.
    pub(crate) fn tenant_names(&self) -> Vec<String> {
        match self {
            Self::Synthetic(synthetic) => synthetic
                .tenants
                .iter()
                .map(|tenant| tenant.name.clone())
                .collect(),
            Self::Recorded(_) => Vec::new(),
        }
    }

    /// Whether all of it comes at one moment, so that no duration ends it.
    pub(crate) fn comes_at_once(&self) -> bool {
        matches!(self, Self::Synthetic(synthetic) if synthetic.arrivals == Arrivals::AtOnce)
    }

    /// Whether it ends by itself.
    pub(crate) fn is_finite(&self) -> bool {
        matches!(self, Self::Recorded(_))
    }
}

impl Synthetic {
    fn validate(&self, max_model_len: u32) -> Result<(), WorkloadError> {
        // One token of output needs room too.
        let limit = max_model_len.saturating_sub(1);
        self.arrivals.validate()?;
        let shared = self.shared_prefix.map_or(0, |prefix| prefix.tokens);
        if let Some(SharedPrefix { groups, tokens }) = self.shared_prefix {
            in_range(
                "the number of shared prefixes",
                f64::from(groups),
                1.0,
                MAX_REQUESTS as f64,
            )?;
            if tokens >= limit {
                return Err(WorkloadError::PrefixTooLong { tokens, limit });
            }
        }
        self.prompts.validate("prompt", " tokens", limit - shared)?;
        self.outputs.validate("output", " tokens", limit)?;
        if let Some(conversation) = &self.conversation {
            conversation
                .turns
                .validate("conversation, in turns,", "", 1_000_000)?;
            conversation.pause.validate("the pause between turns")?;
        }
        for tenant in &self.tenants {
            in_range("a tenant's share", tenant.share, 0.0, 1e9)?;
            in_range("a tenant's weight", f64::from(tenant.weight), 1.0, 1e6)?;
        }
        in_range("the number of tenants", self.tenants.len() as f64, 0.0, 1000.0)?;
        if !self.tenants.is_empty() && self.tenants.iter().all(|tenant| tenant.share == 0.0) {
            return Err(WorkloadError::NoShare);
        }
        in_range(
            "the timeout in seconds",
            self.timeout.unwrap_or(1.0),
            1e-6,
            MAX_SECONDS,
        )
    }
}

impl Arrivals {
    fn validate(&self) -> Result<(), WorkloadError> {
        let rate = |value| in_range("the request rate per second", value, 1e-6, 1e7);
        match *self {
            Self::AtOnce => Ok(()),
            Self::Rate {
                per_second,
                burstiness,
            } => {
                rate(per_second)?;
                in_range("the burstiness", burstiness, 1e-3, 1e6)
            }
            Self::Constant { per_second } => rate(per_second),
            Self::Clients {
                count,
                pause,
                ramp_seconds,
            } => {
                in_range("the number of clients", f64::from(count), 1.0, 1e6)?;
                pause.validate("the pause of a client")?;
                in_range("the ramp in seconds", ramp_seconds, 0.0, MAX_SECONDS)
            }
        }
    }
}
