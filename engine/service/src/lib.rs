//! The engine as a service: scheduler thread, in-process client and gRPC server.
//!
//! ```text
//! LocalClient ---+                       +--> OutputSender, one per request
//!                +--> Mailbox --> Worker-+
//! gRPC session --+   (bounded)  (thread) +--> Outbox, one per session --> one message per step
//! ```
//!
//! The worker thread alone drives scheduler and executor. It takes commands, keeps one or two steps in flight, and routes what happened; it
//! never waits for a client. A watchdog beside it fails the requests of a step that hangs, and leaves a [`dump`] of the state. Requests are validated where they enter, for both clients by the same code. Everything that can queue is bounded:
//!
//! | What | Bound | When it is reached |
//! |---|---|---|
//! | sessions | `ServiceLimits::max_sessions` | RESOURCE_EXHAUSTED |
//! | live requests of a client or session | `ServiceLimits::max_live_requests` | QUEUE_FULL |
//! | commands that the worker hasn't taken | `ServiceLimits::max_untaken_requests`, and one abort per live sequence | QUEUE_FULL |
//! | waiting sequences and their tokens | `SchedulerConfig` | QUEUE_FULL |
//! | readers of cache and load news, a place each | `ServiceLimits::max_watches` | QUEUE_FULL, RESOURCE_EXHAUSTED |
//! | outputs of a request that nobody has read | `ServiceLimits::output_buffer` | the request ends with SLOW_CLIENT |

pub mod dump;
mod engine;
pub mod grpc;
mod host;
mod journal;
mod kv_feed;
mod load_feed;
mod local;
mod mailbox;
mod names;
mod outbox;
mod pace;
pub mod pages;
mod setup;
mod shared;
mod sink;
mod validate;
mod watch;
mod watchdog;
mod worker;
mod zmq;

pub use engine::{Condition, Engine};
pub use journal::{StepPart, StepRecord};
pub use setup::{CacheParts, Diagnostics, EngineIdentity, EngineSetup, ServiceError, ServiceLimits};
pub use watchdog::StallLimits;
pub use zmq::{EndpointError, ZmqConfig, ZmqError};
