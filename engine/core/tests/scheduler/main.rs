//! The scheduler through its public interface: worked cases, refusals, and laws that hold for any order of actions.

mod abort;
mod admission;
mod ahead;
mod block_events;
mod budget;
mod determinism;
mod group;
mod harness;
#[path = "../shared/known.rs"]
mod known;
mod kv_groups;
mod laws;
mod policies;
mod preemption;
mod prefix;
mod reference;
mod refusal;
mod replay;
mod reported;
mod steps;
mod stopping;
