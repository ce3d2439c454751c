//! Tests across crates live in `tests/`, scripts beside this folder; the library is empty on purpose.
