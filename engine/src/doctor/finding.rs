//! What a diagnosis is made of.

/// The places where a server is looked at, in the order of the drill: memory that is short costs work that a larger budget only adds to, limits hide
/// behind latency, and so on. The first that holds is what to change first.
#[derive(Clone, Copy, Debug, Eq, PartialEq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Place {
    /// KV usage, free blocks, preemptions.
    KvCache,
    /// Token budget, sequence cap, prompt lengths.
    Limits,
    /// Scheduler latency and CPU.
    Scheduling,
    /// Parallel ranks and the time they wait for each other.
    Topology,
    /// Prefix hit rate.
    PrefixCache,
}

impl Place {
    /// For people.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::KvCache => "KV cache",
            Self::Limits => "Budget and limits",
            Self::Scheduling => "Scheduler and CPU",
            Self::Topology => "Topology",
            Self::PrefixCache => "Prefix cache",
        }
    }
}

/// What is the matter in a place.
#[derive(Clone, Copy, Debug, Eq, PartialEq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Verdict {
    /// Nothing.
    Fine,
    /// It holds the server back.
    Holds,
    /// It may hold the server back; the server doesn't tell enough.
    Suspected,
    /// The server doesn't tell.
    Unknown,
}

/// A value that was looked at.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub(crate) struct Measure {
    /// What it is.
    pub(crate) name: &'static str,
    /// None if the server doesn't tell.
    pub(crate) value: Option<f64>,
    pub(crate) unit: Unit,
    /// Where it begins to hold the server back, if it does so by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) threshold: Option<Threshold>,
}

/// What a value counts.
#[derive(Clone, Copy, Debug, Eq, PartialEq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Unit {
    /// 0 to 1.
    Share,
    /// Things.
    Count,
    /// Things per second.
    PerSecond,
    /// Tokens.
    Tokens,
    /// Seconds.
    Seconds,
}

/// A bound of a value.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Threshold {
    /// It matters from here upwards.
    AtLeast(f64),
    /// It matters from here downwards.
    AtMost(f64),
}

/// What one place showed.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub(crate) struct Finding {
    pub(crate) place: Place,
    pub(crate) verdict: Verdict,
    pub(crate) measured: Vec<Measure>,
    /// What it means, in a sentence or two.
    pub(crate) explanation: String,
    /// Which flag or change helps; empty where nothing needs to change.
    pub(crate) advice: String,
}

/// How the server does, all in all.
#[derive(Clone, Debug, Eq, PartialEq, serde::Serialize)]
#[serde(rename_all = "snake_case", tag = "state", content = "what")]
pub(crate) enum State {
    /// It doesn't answer its probes, or makes no steps.
    Unhealthy(String),
    /// Nobody asks it for anything.
    Idle,
    /// It works, and nobody waits.
    Healthy,
    /// This holds it back.
    HeldBack(Place),
    /// Requests wait, and none of the five places is to blame: the steps themselves take the time.
    Computing,
}

/// The whole diagnosis.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub(crate) struct Diagnosis {
    #[serde(flatten)]
    pub(crate) state: State,
    /// What the state means and what helps, in a sentence or two.
    pub(crate) summary: String,
    /// Where the time of requests and steps goes.
    pub(crate) times: Vec<Measure>,
    /// In the drill's order.
    pub(crate) findings: Vec<Finding>,
}

impl Measure {
    /// A value that is only shown.
    pub(crate) fn new(name: &'static str, value: Option<f64>, unit: Unit) -> Self {
        Self {
            name,
            value,
            unit,
            threshold: None,
        }
    }

    /// The same with its bound.
    pub(crate) fn with(self, threshold: Threshold) -> Self {
        Self {
            threshold: Some(threshold),
            ..self
        }
    }
}
