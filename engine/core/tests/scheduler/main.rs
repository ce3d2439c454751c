//! The scheduler through its public interface: worked cases, refusals, and laws that hold for any order of actions.

mod abort;
mod admission;
mod budget;
mod determinism;
mod harness;
mod laws;
mod preemption;
mod prefix;
mod refusal;
mod steps;
mod stopping;
