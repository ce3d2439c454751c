//! Builds the objects of a service. Every function is total: what could fail was refused by `validate`.

pub mod budget;
pub mod certificate;
pub mod config;
pub mod engine;
pub mod engine_pod;
pub mod environment;
pub mod gateway;
pub mod gateway_config;
mod gateway_model;
pub mod ingress;
pub mod meta;
pub mod model_image;
pub mod monitor;
pub mod overrides;
pub mod placement;
pub mod pod;
pub mod policy;
pub mod rights;
pub mod route;
pub mod services;
