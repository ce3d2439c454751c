//! The edge against a scripted engine: every route, every error, streams, disconnects, hostile input.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed helper fails its test")]
#![allow(clippy::wildcard_imports, reason = "every module uses most of the helpers")]
#![allow(clippy::too_many_lines, reason = "tables have one row per case")]
#![allow(clippy::needless_pass_by_value, reason = "callers write the values in place")]

mod access;
mod answers;
#[path = "../support/byte_assets.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    reason = "support that several test programs share"
)]
mod byte_assets;
mod disconnects;
mod errors;
mod hostile;
mod probes;
mod serving;
mod stops;
mod streams;
mod support;
