//! Backend over the CPU kernels: thread pool, KV storage and fused operations.
