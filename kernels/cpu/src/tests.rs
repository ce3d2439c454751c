//! Every instruction set against the scalar twin bit for bit, and the scalar twin against naive f64.

mod attention;
mod dequant;
mod math;
mod matmul;
mod rowwise;
mod support;
