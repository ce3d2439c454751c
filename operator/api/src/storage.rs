//! Volumes of the engine pods.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::common::Quantity;

/// Volumes of the engine pods. A change concerns new groups only.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct StorageSpec {
    /// A claim per pod for fetched models.
    ///
    /// A claim per engine pod for fetched models, so that a restart fetches nothing. A pod-local folder if left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache: Option<CacheSpec>,
}

/// A claim per engine pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CacheSpec {
    /// Its size, for example 20Gi.
    pub size: Quantity,
    /// Its StorageClass.
    ///
    /// StorageClass; the cluster's default if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub storage_class_name: Option<String>,
    /// Its access mode.
    ///
    /// Access mode of the claim: ReadWriteOncePod or ReadWriteOnce.
    #[serde(default)]
    pub access_mode: AccessMode,
    /// What becomes of it after its group.
    ///
    /// What happens to the claim when its group is deleted: Delete or Retain.
    #[serde(default)]
    pub retention: Retention,
}

/// Access mode of a claim.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum AccessMode {
    /// One node.
    #[default]
    ReadWriteOnce,
    /// One pod.
    ReadWriteOncePod,
}

/// What happens to a claim when its group is deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Retention {
    /// It is deleted too.
    #[default]
    Delete,
    /// It stays for you to delete.
    Retain,
}
