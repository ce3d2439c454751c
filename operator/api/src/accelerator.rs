//! Which device each rank computes on.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::rules;

/// The device of each rank.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = rules::ACCELERATOR.json()))]
pub struct AcceleratorSpec {
    /// CPU asks for no device. CUDA isn't built yet: refused with Accepted=False/Unsupported.
    pub r#type: AcceleratorType,
    /// Resource such as nvidia.com/gpu.
    ///
    /// Extended resource of the device plugin, for example nvidia.com/gpu.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub resource_name: Option<String>,
    /// DeviceClass, instead of resourceName.
    ///
    /// DeviceClass of dynamic resource allocation, instead of resourceName.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub device_class_name: Option<String>,
    /// Devices per pod. Without it topology.devicesPerPod.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 16))]
    pub count: Option<i32>,
}

/// Kind of device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum AcceleratorType {
    /// The node's processors.
    #[default]
    CPU,
    /// NVIDIA GPUs.
    CUDA,
}
