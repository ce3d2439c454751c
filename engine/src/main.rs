//! The `kvasir` binary.

fn main() {}
