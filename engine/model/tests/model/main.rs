//! Tests of the model crate through its public interface.

mod driver;
mod fidelity;
mod fixture;
mod naive;
