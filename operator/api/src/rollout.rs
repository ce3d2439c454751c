//! How groups are replaced, restarted and taken away.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::rules;

/// How a changed spec reaches the groups. The unit is the group, never a pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = rules::ROLLOUT.json()))]
pub struct RolloutSpec {
    /// Surge starts new groups first, Recreate stops old ones first.
    pub strategy: RolloutStrategy,
    /// Groups above spec.replicas.
    #[schemars(range(min = 0, max = 1000))]
    pub max_surge: i32,
    /// Groups that may be missing.
    #[schemars(range(min = 0, max = 1000))]
    pub max_unavailable: i32,
    /// Time without progress that is failure.
    #[schemars(range(min = 10, max = 86_400))]
    pub progress_deadline_seconds: i32,
    /// Old revisions that are kept.
    #[schemars(range(min = 1, max = 20))]
    pub revision_history_limit: i32,
    /// Goes back when a rollout fails.
    pub auto_rollback: bool,
    /// Tries a revision on a share first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub canary: Option<CanarySpec>,
}

impl Default for RolloutSpec {
    fn default() -> Self {
        Self {
            strategy: RolloutStrategy::Surge,
            max_surge: 1,
            max_unavailable: 0,
            progress_deadline_seconds: 1800,
            revision_history_limit: 3,
            auto_rollback: true,
            canary: None,
        }
    }
}

/// In which order old groups stop and new ones start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum RolloutStrategy {
    /// Start the new one first.
    #[default]
    Surge,
    /// Stop the old one first.
    Recreate,
}

/// Tries a new revision on a share of the requests first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CanarySpec {
    /// Percent of requests for the new group.
    ///
    /// Share of the requests that the first new group gets, in percent.
    #[schemars(range(min = 1, max = 99))]
    pub weight_percent: i32,
    /// Length of the trial; 0 waits for annotation kvasir.dev/promote: REVISION.
    ///
    /// How long the share stays before the rollout goes on; 0 waits until the annotation kvasir.dev/promote names the
    /// revision.
    #[serde(default = "five_minutes")]
    #[schemars(range(min = 0, max = 604_800))]
    pub pause_seconds: i32,
    /// When the trial has failed.
    ///
    /// Ends the trial early when the new revision fails more often.
    #[serde(default)]
    pub analysis: CanaryAnalysis,
}

/// When a canary has failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CanaryAnalysis {
    /// Largest permille of failed requests.
    ///
    /// Largest share of failed requests in permille before the revision is rolled back.
    #[schemars(range(min = 0, max = 1000))]
    pub max_error_permille: i32,
    /// Requests before that counts.
    ///
    /// Requests that must have been seen before the share counts.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub min_requests: i32,
    /// Only requests of this last time count.
    #[schemars(range(min = 30, max = 86_400))]
    pub window_seconds: i32,
}

impl Default for CanaryAnalysis {
    fn default() -> Self {
        Self {
            max_error_permille: 20,
            min_requests: 20,
            window_seconds: 300,
        }
    }
}

fn five_minutes() -> i32 {
    300
}

/// How often a broken group is restarted as a whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = rules::RESTART_POLICY.json()))]
pub struct RestartPolicySpec {
    /// Most restarts of one group per window.
    ///
    /// Restarts of one group within the window; then it stays as it is, for inspection, and Degraded becomes True.
    #[schemars(range(min = 0, max = 100))]
    pub max_group_restarts: i32,
    /// Length of the window.
    #[schemars(range(min = 60, max = 604_800))]
    pub window_seconds: i32,
    /// Wait before the first, then doubled.
    ///
    /// Wait before the first restart; it doubles with each further one.
    #[schemars(range(min = 1, max = 3600))]
    pub backoff_initial_seconds: i32,
    /// Longest wait.
    #[schemars(range(min = 1, max = 86_400))]
    pub backoff_max_seconds: i32,
}

impl Default for RestartPolicySpec {
    fn default() -> Self {
        Self {
            max_group_restarts: 6,
            window_seconds: 3600,
            backoff_initial_seconds: 10,
            backoff_max_seconds: 300,
        }
    }
}

/// How groups leave.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DisruptionSpec {
    /// Groups that a node drain leaves; default max(1, replicas - 1).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1000))]
    pub min_available_groups: Option<i32>,
    /// Time for running requests to end.
    ///
    /// How long running requests may go on when their group leaves.
    #[schemars(range(min = 0, max = 86_400))]
    pub drain_timeout_seconds: i32,
}

impl Default for DisruptionSpec {
    fn default() -> Self {
        Self {
            min_available_groups: None,
            drain_timeout_seconds: 300,
        }
    }
}
