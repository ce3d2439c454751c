//! The `InferenceService` custom resource: its types, its schema and rules, and the names of everything made from it.
//!
//! Start at [`InferenceServiceSpec`]. [`crd()`] is the definition that a cluster gets; [`names`] and [`labels`] are the only
//! places where a child gets its name or its marks.

mod accelerator;
mod autoscaling;
mod common;
mod condition;
mod crd;
mod engine;
mod gateway;
mod group_status;
pub mod labels;
mod model;
pub mod names;
mod network;
mod observability;
mod pod;
mod resource;
mod rollout;
mod rules;
mod scheduling;
mod status;
mod storage;
mod structural;
mod topology;

#[cfg(test)]
mod tests;

pub use accelerator::{AcceleratorSpec, AcceleratorType};
pub use autoscaling::{
    AutoscalingMode, AutoscalingSpec, MetricTarget, MetricType, ScaleToZero, ScalingBehavior, ScalingRules,
};
pub use common::{
    ConfigMapKeyRef, IpBlock, LabelSelector, NameRef, Quantity, Resources, SecretKeyRef, Unbuilt,
};
pub use condition::{ConditionType, Reason};
pub use crd::crd;
pub use engine::{Dtype, EnginePorts, EngineSpec, KvSpec};
pub use gateway::{
    AuthMode, AuthSpec, GatewayLimits, GatewayService, GatewaySpec, IngressSpec, JwtSpec, LimitsStore,
    LimitsStoreType, RouteParent, RouteSpec, RoutingPolicy, RoutingSpec, Scope, ServiceType, StateStoreSpec,
    TenantLimits, TenantSpec,
};
pub use group_status::{GroupState, GroupStatus, RankFailure, SeenPod};
pub use model::{
    HttpSource, HuggingFaceSource, ImageSource, LocalSource, ModelFormat, ModelSource, ModelSpec, PvcSource,
};
pub use network::{
    DnsSpec, EgressRule, IssuerRef, NetworkMode, NetworkSpec, Peer, PodPeer, TlsMode, TlsSpec,
};
pub use observability::{LogLevel, ObservabilitySpec, TracingSpec};
pub use pod::{EnvFrom, EnvVar, PullPolicy};
pub use resource::{InferenceService, InferenceServiceSpec};
pub use rollout::{
    CanaryAnalysis, CanarySpec, DisruptionSpec, RestartPolicySpec, RolloutSpec, RolloutStrategy,
};
pub use scheduling::{
    Gang, SchedulingSpec, SpreadConstraint, TaintEffect, Toleration, TolerationOperator, WhenUnsatisfiable,
};
pub use status::{
    AutoscalingStatus, GatewayStatus, InferenceServiceStatus, MAX_MESSAGE_BYTES, ModelStatus, NetworkStatus,
    RestingId, RolloutStatus, ScalingDecision, VersionStatus,
};
pub use storage::{AccessMode, CacheSpec, Retention, StorageSpec};
pub use topology::{PlacementSpec, TopologySpec};
