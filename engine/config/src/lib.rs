//! Configuration types of every role, and where each value came from.
