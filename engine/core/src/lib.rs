//! The pure heart of the engine: no I/O, no clock, no randomness.
//!
//! `submit` and `abort` change the queues, `schedule` fills a [`StepPlan`], `complete` takes the
//! [`StepOutcome`] back and tells what happened as [`Event`]s. The policy is explained in [`scheduler`].
//!
//! ```
//! use kvasir_cache_key::CacheIdentity;
//! use kvasir_engine_core::{
//!     Event, Micros, Request, Scheduler, SchedulerConfig, StepOutcome, StepPlan, StopConditions,
//! };
//!
//! let mut scheduler = Scheduler::new(SchedulerConfig {
//!     max_num_batched_tokens: 256,
//!     max_num_seqs: 8,
//!     max_num_active_seqs: 8,
//!     max_model_len: 1024,
//!     num_blocks: 65,
//!     ..SchedulerConfig::default()
//! })?;
//! let seq = scheduler.submit(Micros(0), Request {
//!     prompt: [3, 1, 4, 1, 5].into(),
//!     stop: StopConditions { max_tokens: 2, ..StopConditions::default() },
//!     priority: 0,
//!     cache_root: CacheIdentity::default().root(),
//!     reads_prefix_cache: true,
//! })?;
//!
//! let (mut plan, mut events) = (StepPlan::new(), Vec::new());
//! while scheduler.schedule(Micros(0), &mut plan, &mut events) {
//!     // A model would run `plan.tokens` here; this one always says 9.
//!     let sampled = plan.seqs.iter().filter(|part| part.samples).map(|part| (part.seq, 9));
//!     scheduler.complete(plan.step, &StepOutcome { sampled: sampled.collect() }, &mut events)?;
//! }
//! let output = events.iter().filter(|event| matches!(event, Event::Token { token: 9, .. })).count();
//! assert_eq!(output, 2);
//! assert!(matches!(events.last(), Some(Event::Finished { seq: ended, .. }) if *ended == seq));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod arena;
mod block;
mod config;
mod event;
mod ids;
mod invariant;
mod kv_group;
#[cfg(feature = "model")]
mod model;
mod plan;
mod policy;
mod request;
pub mod scheduler;
mod sequence;
mod tokens;
mod trace;

pub use block::{BlockEvent, BlockEventDetail, BlockEvents, CachedBlock};
pub use config::{ConfigError, SchedulerConfig};
pub use event::{Event, FinishReason};
pub use ids::{AdapterId, BlockId, GroupId, Micros, SeqId, StepId, TenantId, TokenId};
pub use invariant::Violation;
pub use kv_group::KvGroup;
pub use plan::{BlockCopy, PENDING_TOKEN, SeqPlan, StepOutcome, StepPlan};
pub use policy::{Order, Policies, Victim};
pub use request::{Deferral, Request, RequestOptions, StopConditions};
pub use scheduler::{CompleteError, Reject, Scheduler, Stats};
pub use trace::{Image, Input, RecordedRequest, ReplayError, Trace, TraceError};
