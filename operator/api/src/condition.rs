//! The conditions of an `InferenceService` and every reason they give.
//!
//! All conditions exist from the first status on, `Unknown` until observed. `Ready` is the summary: it repeats the reason of
//! the first part that isn't ready. All are good when `True`, but `Progressing` and `Degraded`.

use std::fmt;

use schemars::{Schema, SchemaGenerator, json_schema};

use crate::status::MAX_MESSAGE_BYTES;

/// A condition's type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ConditionType {
    /// The service answers requests with the wanted revision's guarantees: accepted, loaded, minimum available.
    Ready,
    /// The spec is valid and can be built by this operator.
    Accepted,
    /// The model's files were found, verified and loaded by a group.
    ModelReady,
    /// At least the minimum of groups serves.
    EnginesReady,
    /// The gateway has a ready pod and a group to send requests to.
    GatewayReady,
    /// Network policies are in place and, once probed, enforced.
    NetworkSecured,
    /// Every pod's certificate is issued and not near its end.
    CertificatesReady,
    /// Autoscaling reads metrics and decides.
    AutoscalingActive,
    /// Groups are being created, replaced or removed.
    Progressing,
    /// Something needs a look though requests may be answered.
    Degraded,
}

impl ConditionType {
    /// All types, in the order in which they are listed in the status.
    pub const ALL: [Self; 10] = [
        Self::Ready,
        Self::Accepted,
        Self::ModelReady,
        Self::EnginesReady,
        Self::GatewayReady,
        Self::NetworkSecured,
        Self::CertificatesReady,
        Self::AutoscalingActive,
        Self::Progressing,
        Self::Degraded,
    ];

    /// The type as it stands in the status.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ready => "Ready",
            Self::Accepted => "Accepted",
            Self::ModelReady => "ModelReady",
            Self::EnginesReady => "EnginesReady",
            Self::GatewayReady => "GatewayReady",
            Self::NetworkSecured => "NetworkSecured",
            Self::CertificatesReady => "CertificatesReady",
            Self::AutoscalingActive => "AutoscalingActive",
            Self::Progressing => "Progressing",
            Self::Degraded => "Degraded",
        }
    }
}

impl fmt::Display for ConditionType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Why a condition has its status.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Reason {
            $($(#[$doc])* $name,)*
        }

        impl Reason {
            /// All reasons.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The reason as it stands in the status.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($name),)*
                }
            }
        }
    };
}

reasons! {
    /// Nothing has been observed yet.
    Reconciling,
    /// Ready: every part is ready.
    AllComponentsReady,
    /// Ready: the spec isn't accepted.
    NotAccepted,
    /// Ready: too few groups serve.
    EnginesNotReady,
    /// Ready: the gateway doesn't serve.
    GatewayNotReady,
    /// Ready: the model isn't loaded.
    ModelNotReady,
    /// Ready: certificates are missing.
    CertificatesNotReady,
    /// spec.suspend is set.
    Suspended,
    /// Accepted: the spec can be built.
    Valid,
    /// Accepted: the ranks don't fit the pods, or need a flag of the operator.
    InvalidTopology,
    /// Accepted: the model source isn't allowed or isn't complete.
    UnsupportedSource,
    /// Accepted: a field that this version knows but can't honour is set.
    Unsupported,
    /// Accepted: a value contradicts another one.
    InvalidSpec,
    /// Accepted: mode None without the annotation that allows it.
    AnonymousNotAllowed,
    /// Accepted: podOverrides touches what the operator owns.
    OverrideForbidden,
    /// Accepted, EnginesReady: an object that isn't this service's has a name that it needs.
    NameCollision,
    /// Accepted: a quota of the namespace forbids the pods.
    QuotaExceeded,
    /// Accepted, EnginesReady: an admission rule, or a right that the operator lacks, forbids an object.
    Forbidden,
    /// ModelReady: where the model comes from is being found out.
    Resolving,
    /// ModelReady: a group has loaded the model.
    Resolved,
    /// ModelReady: the model's files lie in the cache.
    Cached,
    /// ModelReady: fetching failed.
    PullFailed,
    /// ModelReady: the credential isn't accepted.
    Unauthorized,
    /// ModelReady: the files aren't those that the digest names.
    DigestMismatch,
    /// ModelReady: the files don't fit the volume.
    NoSpace,
    /// ModelReady: there is no such model.
    SourceNotFound,
    /// ModelReady: the files are there but can't be loaded.
    LoadFailed,
    /// EnginesReady: at least the minimum of groups serves.
    MinimumGroupsAvailable,
    /// EnginesReady: groups are starting.
    Starting,
    /// EnginesReady: pods can't be scheduled.
    InsufficientCapacity,
    /// EnginesReady: pods have scheduling gates.
    SchedulingGated,
    /// EnginesReady: the engine image can't be pulled.
    ImagePullFailed,
    /// EnginesReady: a rank ended with an error.
    RankFailed,
    /// EnginesReady: a group's ranks didn't find each other in time.
    RendezvousTimeout,
    /// EnginesReady: a rank ends again and again.
    CrashLoop,
    /// EnginesReady: no group is wanted.
    ScaledToZero,
    /// GatewayReady: pods and a group are there.
    Available,
    /// GatewayReady: no gateway pod is ready.
    DeploymentUnavailable,
    /// GatewayReady: no group takes requests.
    NoReadyGroups,
    /// GatewayReady: no Gateway of spec.gateway.route serves the service's HTTPRoute.
    RouteNotAccepted,
    /// GatewayReady: the service that spec.gateway.gatewayRef names has no gateway that could serve this one.
    NoSharedGateway,
    /// The part is switched off in the spec.
    Disabled,
    /// NetworkSecured: all policies exist, and the operator's pod was refused where verification is possible.
    PoliciesApplied,
    /// NetworkSecured: a policy couldn't be written.
    PolicyApplyFailed,
    /// NetworkSecured: spec.network.mode is Open.
    Open,
    /// NetworkSecured: the operator's pod could connect; the cluster's network doesn't enforce policies.
    EnforcementUnverified,
    /// NetworkSecured: whether policies are enforced hasn't been probed yet.
    ProbePending,
    /// CertificatesReady: all are valid.
    Issued,
    /// CertificatesReady: a certificate couldn't be issued.
    IssueFailed,
    /// CertificatesReady: a certificate ends soon and wasn't renewed.
    ExpiringSoon,
    /// AutoscalingActive: signals arrive.
    MetricsFlowing,
    /// AutoscalingActive: signals are missing or old.
    MetricsStale,
    /// AutoscalingActive: another adapter owns the metrics API.
    MetricsAPIConflict,
    /// AutoscalingActive: a target can't be reached or read.
    TargetInvalid,
    /// AutoscalingActive: somebody else changes spec.replicas too.
    ReplicasContested,
    /// Progressing: groups of a new revision replace old ones.
    NewRevision,
    /// Progressing: the number of groups changes.
    Scaling,
    /// Progressing: a new revision gets its trial share of requests.
    CanaryPaused,
    /// Progressing: there is nothing left to do.
    Complete,
    /// Progressing: a rollout made no progress in time.
    DeadlineExceeded,
    /// Progressing: a rollout failed, groups have the last good revision again.
    RolledBack,
    /// Degraded: a group has used up its restarts and stays as it is.
    GroupRestartBudgetExhausted,
    /// Degraded: a rank restarts often.
    RankFlapping,
    /// Degraded: a node with ranks doesn't answer; a replacement group was started.
    NodeLost,
    /// Degraded: some groups serve, others don't.
    PartialGroups,
    /// Degraded: pods that aren't this service's carry its labels.
    ForeignPods,
    /// Degraded: nothing is wrong.
    AsExpected,
    /// Event: somebody changed an object of the service, and it is set back.
    EditUndone,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Schema of the conditions: one per type, so that two writers of different types don't erase each other.
pub(crate) fn conditions(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "maxItems": 16,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
        "items": {
            "description": "State of one part of the service.",
            "type": "object",
            "required": ["type", "status", "reason", "message", "lastTransitionTime"],
            "properties": {
                "type": { "description": "The part.", "type": "string", "maxLength": 316 },
                "status": { "description": "Whether it holds.", "type": "string", "enum": ["True", "False", "Unknown"] },
                "reason": {
                    "description": "Why, as one word.",
                    "type": "string",
                    "minLength": 1,
                    "maxLength": 128,
                    "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$",
                },
                "message": {
                    "description": "Why, and the way out.",
                    "type": "string",
                    "maxLength": MAX_MESSAGE_BYTES,
                },
                "lastTransitionTime": {
                    "description": "When status last changed.",
                    "type": "string",
                    "format": "date-time",
                },
                "observedGeneration": {
                    "description": "Generation that this is about.",
                    "type": "integer",
                    "format": "int64",
                    "minimum": 0,
                },
            },
        },
    })
}
