//! The suite that every backend passes, with every instruction set of this CPU and one, two and three threads.

use crate::{CpuBackend, CpuOptions, Isa};

/// Unit roundoff of f32.
const UNIT: f64 = 1.0 / (1 << 24) as f64;

fn backend(isa: Isa, threads: usize) -> CpuBackend {
    // A CPU without the instruction set runs the best it has: the suite is about results.
    let isa = if isa.is_available() { isa } else { Isa::detect() };
    CpuBackend::new(CpuOptions {
        threads,
        isa: Some(isa),
    })
    .unwrap()
}

mod scalar {
    use super::*;
    kvasir_backend::conformance_tests!(UNIT, backend(Isa::Scalar, 1));
}

mod avx2 {
    use super::*;
    kvasir_backend::conformance_tests!(UNIT, backend(Isa::Avx2, 2));
}

mod avx512 {
    use super::*;
    kvasir_backend::conformance_tests!(UNIT, backend(Isa::Avx512, 3));
}
