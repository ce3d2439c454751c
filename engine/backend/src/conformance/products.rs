//! `linear` and `linear_add`.

use super::operands::{Rng, Weight, buffer, vector};
use super::{Outcome, close, read, same_bits};
use crate::{Backend, DType};

/// Products with and without bias, alone and added to a residual.
///
/// # Errors
/// If a value is off by more than the rounding of its sum.
pub fn products_match_f64<B: Backend>(backend: &mut B, unit: f64) -> Outcome {
    let mut rng = Rng(1);
    for (rows, outputs, cols) in [(1, 1, 1), (1, 17, 40), (3, 33, 300), (13, 48, 96)] {
        let weight = Weight::random(&mut rng, DType::F32, outputs, cols);
        let (x, bias, residual) = (
            rng.floats(rows * cols),
            rng.floats(outputs),
            rng.floats(rows * outputs),
        );
        let w = backend.load_matrix(&[weight.view()])?;
        let input = buffer(backend, &x, cols)?;
        let bias_vector = vector(backend, &bias)?;
        let mut out = backend.new_buffer(rows, outputs)?;
        backend.linear(&w, None, &input, &mut out)?;
        let plain = read(backend, &out, rows, outputs)?;
        let mut sum = buffer(backend, &residual, outputs)?;
        backend.linear_add(&w, Some(&bias_vector), &input, &mut sum)?;
        let added = read(backend, &sum, rows, outputs)?;
        for i in 0..rows * outputs {
            let (row, output) = (i / outputs, i % outputs);
            let (exact, magnitude) = dot(&x[row * cols..][..cols], weight.row(output));
            let what = || format!("row {row}, output {output} of {rows} x {outputs} x {cols}");
            close(what, plain[i], exact, (cols + 2) as f64 * unit * magnitude)?;
            let (bias, residual) = (f64::from(bias[output]), f64::from(residual[i]));
            let bound = (cols + 4) as f64 * unit * (magnitude + bias.abs() + residual.abs());
            close(what, added[i], exact + bias + residual, bound)?;
        }
    }
    Ok(())
}

/// Parts of several types and odd sizes, stacked.
///
/// # Errors
/// As for [`products_match_f64`].
pub fn stacked_parts_of_any_type_match_f64<B: Backend>(backend: &mut B, unit: f64) -> Outcome {
    let mut rng = Rng(2);
    let (cols, rows) = (64, 2);
    let types = [DType::F16, DType::Q8_0, DType::F32, DType::BF16];
    let parts: Vec<Weight> = types
        .iter()
        .zip([5, 16, 1, 35])
        .map(|(dtype, rows)| Weight::random(&mut rng, *dtype, rows, cols))
        .collect();
    let views: Vec<_> = parts.iter().map(Weight::view).collect();
    let w = backend.load_matrix(&views)?;
    let weights: Vec<&[f32]> = parts
        .iter()
        .flat_map(|part| (0..part.rows).map(|row| part.row(row)))
        .collect();
    let x = rng.floats(rows * cols);
    let input = buffer(backend, &x, cols)?;
    let mut out = backend.new_buffer(rows, weights.len())?;
    backend.linear(&w, None, &input, &mut out)?;
    let found = read(backend, &out, rows, weights.len())?;
    for (i, found) in found.iter().enumerate() {
        let (row, output) = (i / weights.len(), i % weights.len());
        let (exact, magnitude) = dot(&x[row * cols..][..cols], weights[output]);
        let what = || format!("row {row}, output {output} of the stack");
        close(what, *found, exact, (cols + 2) as f64 * unit * magnitude)?;
    }
    Ok(())
}

/// The first promise: a row's product is the same bits in every batch.
///
/// # Errors
/// If it isn't.
pub fn product_rows_ignore_the_batch<B: Backend>(backend: &mut B, _unit: f64) -> Outcome {
    let mut rng = Rng(3);
    let (outputs, cols, rows) = (100, 320, 40);
    for dtype in [DType::F32, DType::Q8_0] {
        let weight = Weight::random(&mut rng, dtype, outputs, cols);
        let w = backend.load_matrix(&[weight.view()])?;
        let x = rng.floats(rows * cols);
        let all = product(backend, &w, &x, rows, outputs)?;
        for (first, count) in [(0, 1), (39, 1), (3, 2), (0, 5), (7, 6), (1, 13), (8, 32)] {
            let some = product(backend, &w, &x[first * cols..][..count * cols], count, outputs)?;
            same_bits(
                "a row in another batch",
                &some,
                &all[first * outputs..][..count * outputs],
            )?;
        }
    }
    Ok(())
}

fn product<B: Backend>(
    backend: &mut B,
    w: &B::Matrix,
    x: &[f32],
    rows: usize,
    outputs: usize,
) -> Result<Vec<f32>, crate::BackendError> {
    let input = buffer(backend, x, x.len() / rows)?;
    let mut out = backend.new_buffer(rows, outputs)?;
    backend.linear(w, None, &input, &mut out)?;
    read(backend, &out, rows, outputs)
}

/// The dot product, and the sum of its terms' magnitudes.
pub(super) fn dot(x: &[f32], w: &[f32]) -> (f64, f64) {
    let terms = x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w));
    terms.fold((0.0, 0.0), |(sum, magnitude), term| {
        (sum + term, magnitude + term.abs())
    })
}
