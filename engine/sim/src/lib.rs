//! Serving in virtual time: the real scheduler, driven by a cost model instead of a device.
//!
//! [`simulate`] plays a [`Workload`] against engines whose steps take as long as a [`CostModel`] says, and counts what clients would see as a
//! [`Report`]. The cost model comes from steps that were measured ([`fit()`]). Every decision is the scheduler's own: the simulator knows
//! nothing about batching, caching or preemption. Equal inputs give equal reports, and nothing here reads a clock or a file.
//!
//! What it leaves out, so that a real server is slower: the network, tokenizing, what other work on the machine takes, and steps that
//! differ in time though they look alike to the cost model.
//!
//! ```
//! use kvasir_engine_core::{Policies, SchedulerConfig};
//! use kvasir_sim::{Arrivals, CostModel, Engines, Lengths, Objectives, Pause, Span, Synthetic, Workload, simulate};
//!
//! let engines = Engines {
//!     limits: SchedulerConfig {
//!         max_num_batched_tokens: 2048,
//!         max_num_seqs: 128,
//!         max_num_active_seqs: 128,
//!         max_model_len: 8192,
//!         block_size: 16,
//!         num_blocks: 10_000,
//!         enable_prefix_caching: true,
//!         long_prefill_token_threshold: 0,
//!         max_num_queued_reqs: 1024,
//!         max_num_queued_tokens: 16 << 20,
//!         ..SchedulerConfig::default()
//!     },
//!     policies: Policies::serve(),
//!     cost: CostModel::DEFAULT,
//!     count: 1,
//! };
//! let workload = Workload::Synthetic(Synthetic {
//!     arrivals: Arrivals::Clients { count: 8, pause: Pause::Fixed(0.0), ramp_seconds: 0.0 },
//!     prompts: Lengths::Fixed(256),
//!     outputs: Lengths::Fixed(128),
//!     ..Synthetic::default()
//! });
//! let span = Span { num_requests: Some(16), ..Span::default() };
//! let report = simulate(&engines, &workload, &span, &Objectives::parse(["ttft:5000"])?)?;
//! assert_eq!((report.requests.completed, report.requests.passed), (16, 16));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod collect;
mod cost;
mod dist;
mod engine;
mod fit;
mod goodput;
mod histogram;
mod queue;
mod record;
mod recording;
mod report;
mod rng;
mod simulation;
mod source;
mod sweep;
mod time;
mod workload;

pub use cost::{CostError, CostModel, MIN_STEP_SECONDS, StepShape};
pub use dist::{DistError, Lengths, Pause};
pub use fit::{Fit, FitError, Residuals, fit};
pub use goodput::{ObjectiveError, Objectives, Times, goodput};
pub use histogram::{Histogram, Summary};
pub use queue::EventQueue;
pub use record::{RecordError, StepRecord};
pub use recording::{Recording, RecordingError};
pub use report::{Counts, EngineReport, Report, TenantReport};
pub use rng::Rng;
pub use simulation::{Engines, SimError, Span, simulate};
pub use sweep::{Load, Point, Setting, Sweep, best};
pub use time::{MAX_SECONDS, SimTime};
pub use workload::{
    Arrivals, Conversation, MAX_REQUESTS, SharedPrefix, Synthetic, Tenant, Workload, WorkloadError,
};
