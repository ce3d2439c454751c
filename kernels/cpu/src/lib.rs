//! SIMD kernels for CPUs: scalar reference, AVX2 and AVX-512, chosen at run time.
