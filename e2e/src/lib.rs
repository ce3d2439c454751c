//! Tests across crates: the dependency table, API suites and benches.
