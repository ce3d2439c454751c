//! What every [`Backend`] must pass: each operation against naive f64, the two promises of [`crate::Backend`], and refusal
//! of operands that don't fit.
//!
//! An implementation's tests say `kvasir_backend::conformance_tests!(unit, make)`, with the unit roundoff of its
//! activations (2^-24 for f32) and an expression that makes a backend.
//!
//! Bounds: a chain of n rounded operations errs by at most n units, relative to the sum of the terms' magnitudes (Higham,
//! Accuracy and Stability of Numerical Algorithms, 3.1). Nothing here is looser than that times a small constant.

mod attention;
mod copies;
mod operands;
mod products;
mod refusals;
mod rows;

use crate::{Backend, BackendError};

pub use attention::{
    attention_ignores_chunks_and_block_order, attention_ignores_what_blocks_held_before,
    attention_matches_f64, attention_rows_ignore_other_sequences,
};
pub use copies::{
    copied_positions_are_as_good_as_their_originals, copies_read_before_any_of_them_writes,
    positions_that_are_not_copied_stay,
};
pub use products::{product_rows_ignore_the_batch, products_match_f64, stacked_parts_of_any_type_match_f64};
pub use refusals::operands_that_do_not_fit_are_refused;
pub use rows::{activations_match_f64, embedded_and_gathered_rows_are_exact, norms_match_f64};

/// Instantiates the suite as tests.
#[macro_export]
macro_rules! conformance_tests {
    ($unit:expr, $make:expr) => {
        $crate::conformance_tests! { @each $unit, $make,
            products_match_f64 stacked_parts_of_any_type_match_f64 product_rows_ignore_the_batch
            embedded_and_gathered_rows_are_exact norms_match_f64 activations_match_f64
            attention_matches_f64 attention_ignores_chunks_and_block_order attention_rows_ignore_other_sequences
            attention_ignores_what_blocks_held_before
            copied_positions_are_as_good_as_their_originals copies_read_before_any_of_them_writes
            positions_that_are_not_copied_stay
            operands_that_do_not_fit_are_refused
        }
    };
    (@each $unit:expr, $make:expr, $($check:ident)+) => {
        $(
            #[test]
            fn $check() {
                let mut backend = $make;
                $crate::conformance::$check(&mut backend, $unit).unwrap();
            }
        )+
    };
}

/// Why a check failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// An operation that should work doesn't.
    #[error("an operation failed: {0}")]
    Operation(#[from] BackendError),
    /// A value is off by more than rounding explains.
    #[error("{what}: {found} where {expected} is right, off by more than {bound:e}")]
    Value {
        /// Which value.
        what: String,
        /// The backend's.
        found: f64,
        /// The oracle's.
        expected: f64,
        /// How far it may be off.
        bound: f64,
    },
    /// Values that should be the same bits aren't.
    #[error("{what} differs in value {index}: {left} and {right}")]
    Bits {
        /// What was compared.
        what: String,
        /// Where.
        index: usize,
        /// One side.
        left: f32,
        /// The other.
        right: f32,
    },
    /// Operands that don't fit were accepted.
    #[error("accepted: {0}")]
    Accepted(&'static str),
}

/// The result of a check.
pub type Outcome = Result<(), Failure>;

fn close(what: impl Fn() -> String, found: f32, expected: f64, bound: f64) -> Outcome {
    let found = f64::from(found);
    // Not `<`: NaN must fail.
    if (found - expected).abs() <= bound {
        return Ok(());
    }
    Err(Failure::Value {
        what: what(),
        found,
        expected,
        bound,
    })
}

fn same_bits(what: &str, left: &[f32], right: &[f32]) -> Outcome {
    let differs = |(left, right): (&f32, &f32)| left.to_bits() != right.to_bits();
    match left.iter().zip(right).position(differs) {
        None => Ok(()),
        Some(index) => Err(Failure::Bits {
            what: what.to_owned(),
            index,
            left: left[index],
            right: right[index],
        }),
    }
}

/// All rows of a buffer, one after the other.
fn read<B: Backend>(
    backend: &mut B,
    x: &B::Buffer,
    rows: usize,
    width: usize,
) -> Result<Vec<f32>, BackendError> {
    let mut out = vec![0.0; rows * width];
    for (row, out) in out.chunks_mut(width).enumerate() {
        backend.read_row(x, row, out)?;
    }
    Ok(out)
}
