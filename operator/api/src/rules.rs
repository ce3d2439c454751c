//! The rules that the API server evaluates (CEL), each with the message a user reads and the field it is about.
//!
//! They replace an admission webhook: nothing of ours has to run for a manifest to be checked. Every string and list that a
//! rule touches has an upper bound in its schema, because the API server refuses a definition whose estimated cost is too
//! high. Values that have defaults are always present here: defaults are applied before rules are.

use serde_json::{Value, json};

/// One rule.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rule {
    expression: &'static str,
    message: &'static str,
    /// JSON path of the field that is wrong, below the object that the rule is attached to.
    field: Option<&'static str>,
}

/// The rules of one object.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules(&'static [Rule]);

impl Rules {
    /// As the `x-kubernetes-validations` extension has them.
    pub(crate) fn json(self) -> Value {
        self.0.iter().map(Rule::json).collect()
    }
}

impl Rule {
    fn json(&self) -> Value {
        let mut value = json!({ "rule": self.expression, "message": self.message });
        if let Some(field) = self.field {
            value["fieldPath"] = field.into();
        }
        value
    }
}

const fn rule(expression: &'static str, message: &'static str, field: &'static str) -> Rule {
    Rule {
        expression,
        message,
        field: Some(field),
    }
}

const fn own(expression: &'static str, message: &'static str) -> Rule {
    Rule {
        expression,
        message,
        field: None,
    }
}

/// The whole object. A Service name is at most 63 characters of RFC 1035; a StatefulSet's pods carry its name, `-` and a
/// ten-character hash as a label value. 40 leaves room for every suffix in `names`.
pub(crate) const ROOT: Rules = Rules(&[own(
    "size(self.metadata.name) <= 40 && self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
    "metadata.name must be at most 40 characters of a-z, 0-9 and '-', from a letter to a letter or digit",
)]);

pub(crate) const SPEC: Rules = Rules(&[
    rule(
        "has(self.roles) == has(oldSelf.roles)",
        "roles can't be added or removed later; create a new service",
        ".roles",
    ),
    rule(
        "has(self.tenant) == has(oldSelf.tenant) && (!has(self.tenant) || self.tenant == oldSelf.tenant)",
        "tenant can't be changed; create a new service",
        ".tenant",
    ),
    rule(
        "!has(self.autoscaling) || self.autoscaling.mode == 'Off' || self.replicas <= self.autoscaling.maxReplicas",
        "replicas must not exceed autoscaling.maxReplicas",
        ".replicas",
    ),
]);

pub(crate) const MODEL: Rules = Rules(&[
    rule(
        "has(self.name) == has(oldSelf.name) && (!has(self.name) || self.name == oldSelf.name)",
        "model.name can't be changed; clients use it. Add an alias or create a new service",
        ".name",
    ),
    rule(
        "self.allowMutableReference || !has(self.source.image) || self.source.image.reference.matches('@sha256:[0-9a-f]{64}$')",
        "an image needs a digest (name@sha256:...), or set model.allowMutableReference",
        ".source.image.reference",
    ),
]);

pub(crate) const SOURCE: Rules = Rules(&[own(
    "[has(self.pvc), has(self.image), has(self.huggingFace), has(self.s3), has(self.http), has(self.local)].filter(x, x).size() == 1",
    "exactly one of pvc, image, huggingFace, s3, http and local must be set",
)]);

pub(crate) const RELATIVE_PATH: Rules = Rules(&[own(
    "!self.startsWith('/') && !self.split('/').exists(part, part == '..')",
    "the path must be relative to the volume and must not contain '..'",
)]);

pub(crate) const ABSOLUTE_PATH: Rules = Rules(&[own(
    "self.startsWith('/') && !self.split('/').exists(part, part == '..')",
    "the path must be absolute and must not contain '..'",
)]);

pub(crate) const CIDR: Rules = Rules(&[own("isCIDR(self)", "must be an address range such as 10.0.0.0/8")]);

pub(crate) const PORTS: Rules = Rules(&[own(
    "[self.grpc, self.rendezvous, self.collective, self.metrics, self.health, self.admin].all(p, \
     [self.grpc, self.rendezvous, self.collective, self.metrics, self.health, self.admin].exists_one(q, p == q))",
    "all ports must differ from each other",
)]);

/// The operator sets these itself; a second value would contradict the group's shape or the network policies.
pub(crate) const EXTRA_ARGS: Rules = Rules(&[own(
    "self.all(arg, !arg.matches('(?s)^(--(config|([a-z]+-)?listen|rank|world-size|group|epoch|rendezvous|[a-z]+-parallel-size|tls-[a-z-]*)(=.*)?|[^=]*[$][(].*)$'))",
    "the operator sets one of these: use fields of the spec instead",
)]);

pub(crate) const ENV: Rules = Rules(&[own(
    "self.all(e, !e.name.matches('^KVASIR_(CONFIG|LISTEN|RANK|WORLD_SIZE|GROUP|EPOCH|RENDEZVOUS|POD_.*|TLS_.*|.*_PARALLEL_SIZE|.*_LISTEN)$'))",
    "the operator sets one of these: use fields of the spec instead",
)]);

pub(crate) const ENV_VAR: Rules = Rules(&[own(
    "[has(self.value), has(self.secretKeyRef), has(self.configMapKeyRef), has(self.fieldPath)].filter(x, x).size() == 1",
    "exactly one of value, secretKeyRef, configMapKeyRef and fieldPath must be set",
)]);

pub(crate) const ENV_FROM: Rules = Rules(&[own(
    "has(self.secretRef) != has(self.configMapRef)",
    "exactly one of secretRef and configMapRef must be set",
)]);

pub(crate) const ACCELERATOR: Rules = Rules(&[
    rule(
        "self.type != 'CPU' || (!has(self.resourceName) && !has(self.deviceClassName))",
        "type CPU asks for no device: leave resourceName and deviceClassName out",
        ".type",
    ),
    own(
        "!(has(self.resourceName) && has(self.deviceClassName))",
        "only one of resourceName and deviceClassName may be set",
    ),
]);

pub(crate) const TOPOLOGY: Rules = Rules(&[
    rule(
        "self.tensor % self.devicesPerPod == 0 || self.devicesPerPod % self.tensor == 0",
        "tensor must be a multiple of devicesPerPod or divide it",
        ".devicesPerPod",
    ),
    rule(
        "(self.tensor * self.pipeline * self.data) % self.devicesPerPod == 0",
        "tensor * pipeline * data must be a multiple of devicesPerPod",
        ".devicesPerPod",
    ),
    own(
        "self.tensor * self.pipeline * self.data <= 1024",
        "a group has at most 1024 ranks (tensor * pipeline * data)",
    ),
    rule(
        "!self.expertParallel || self.tensor * self.data > 1",
        "expertParallel needs tensor * data above 1",
        ".expertParallel",
    ),
]);

pub(crate) const AUTOSCALING: Rules = Rules(&[
    rule(
        "self.minReplicas <= self.maxReplicas",
        "minReplicas must not exceed maxReplicas",
        ".minReplicas",
    ),
    rule(
        "self.minReplicas > 0 || self.scaleToZero.enabled",
        "minReplicas 0 needs scaleToZero.enabled",
        ".minReplicas",
    ),
    rule(
        "!(self.mode in ['HPA', 'KEDA']) || size(self.metrics) > 0",
        "modes HPA and KEDA need at least one metric",
        ".metrics",
    ),
]);

pub(crate) const ROLLOUT: Rules = Rules(&[
    rule(
        "self.strategy != 'Surge' || self.maxSurge > 0 || self.maxUnavailable > 0",
        "maxSurge and maxUnavailable can't both be 0",
        ".maxSurge",
    ),
    rule(
        "!has(self.canary) || (self.strategy == 'Surge' && self.maxSurge > 0)",
        "canary needs strategy Surge and maxSurge above 0",
        ".canary",
    ),
]);

pub(crate) const RESTART_POLICY: Rules = Rules(&[rule(
    "self.backoffInitialSeconds <= self.backoffMaxSeconds",
    "backoffInitialSeconds must not exceed backoffMaxSeconds",
    ".backoffInitialSeconds",
)]);

pub(crate) const AUTH: Rules = Rules(&[
    rule(
        "self.mode != 'JWT' || has(self.jwt)",
        "mode JWT needs jwt with issuer, audiences and jwksURL",
        ".jwt",
    ),
    rule(
        "!has(self.apiKeySecrets) || self.mode == 'APIKey'",
        "apiKeySecrets are read in mode APIKey only",
        ".apiKeySecrets",
    ),
]);

pub(crate) const GATEWAY: Rules = Rules(&[rule(
    "!has(self.gatewayRef) || !self.enabled",
    "gatewayRef uses another service's gateway: set enabled to false",
    ".gatewayRef",
)]);

pub(crate) const LIMITS_STORE: Rules = Rules(&[rule(
    "self.type != 'Redis' || has(self.url)",
    "store type Redis needs url",
    ".url",
)]);

pub(crate) const PEER: Rules = Rules(&[own(
    "has(self.ipBlock) != (has(self.namespaceSelector) || has(self.podSelector))",
    "a peer is either ipBlock or selectors",
)]);

pub(crate) const TLS: Rules = Rules(&[
    rule(
        "self.mode != 'CertManager' || has(self.issuerRef)",
        "mode CertManager needs issuerRef",
        ".issuerRef",
    ),
    rule(
        "self.mode != 'Provided' || has(self.secretName)",
        "mode Provided needs secretName",
        ".secretName",
    ),
]);

pub(crate) const TOLERATION: Rules = Rules(&[
    rule(
        "self.operator != 'Exists' || !has(self.value)",
        "operator Exists takes no value",
        ".value",
    ),
    rule(
        "!has(self.tolerationSeconds) || (has(self.effect) && self.effect == 'NoExecute')",
        "tolerationSeconds needs effect NoExecute",
        ".tolerationSeconds",
    ),
]);
