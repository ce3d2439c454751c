//! The gateway as clients and engines meet it: over HTTP in front of real engines, whose executor alone is scripted, behind gRPC.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "test code outside of test functions, which the configuration's exceptions don't cover"
)]

mod access;
mod audit;
#[path = "../../../edge/tests/support/byte_assets.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    reason = "support that several test programs share"
)]
mod byte_assets;
#[path = "../../../service/tests/support/executor.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::panic,
    clippy::missing_panics_doc,
    reason = "support of another crate's tests"
)]
mod executor;
mod failures;
mod figures;
mod http_client;
mod isolation;
mod limits;
mod models;
mod processes;
#[path = "../support/redis_server.rs"]
mod redis_server;
mod reloading;
mod revisions;
#[path = "../support/mod.rs"]
mod scripted;
mod secure;
mod sharing;
mod spans;
mod support;
mod waiting;
mod walk;
