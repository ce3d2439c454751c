//! Tests of the model crate through its public interface.

// Lints know helpers of tests by this attribute only.
#[cfg(test)]
mod cpu;
#[cfg(test)]
mod driver;
#[cfg(test)]
mod failures;
#[cfg(test)]
mod fidelity;
#[cfg(test)]
mod fixture;
#[cfg(test)]
mod hostile_checkpoints;
#[cfg(test)]
mod hostile_plans;
#[cfg(test)]
mod naive;
#[cfg(test)]
mod same_tokens;
#[cfg(test)]
mod smollm2;
