//! Operations on single rows.

use super::operands::{Rng, Weight, buffer, vector};
use super::{Outcome, close, read, same_bits};
use crate::{Activation, Backend, DType};

/// `embed`, `gather_rows` and `read_row` move values without changing them.
///
/// # Errors
/// If a value changes.
pub fn embedded_and_gathered_rows_are_exact<B: Backend>(backend: &mut B, _unit: f64) -> Outcome {
    let mut rng = Rng(4);
    let cols = 96;
    let parts = [DType::Q8_0, DType::F16].map(|dtype| Weight::random(&mut rng, dtype, 21, cols));
    let table = backend.load_matrix(&[parts[0].view(), parts[1].view()])?;
    let tokens = [41, 0, 20, 21, 20];
    let mut rows = backend.new_buffer(8, cols)?;
    backend.embed(&table, &tokens, &mut rows)?;
    for (row, token) in tokens.iter().enumerate() {
        let mut found = vec![0.0; cols];
        backend.read_row(&rows, row, &mut found)?;
        let token = *token as usize;
        same_bits("an embedded row", &found, parts[token / 21].row(token % 21))?;
    }
    let mut gathered = backend.new_buffer(3, cols)?;
    backend.gather_rows(&rows, &[4, 0], &mut gathered)?;
    let found = read(backend, &gathered, 2, cols)?;
    same_bits("a gathered row", &found[..cols], parts[0].row(20))?;
    same_bits("a gathered row", &found[cols..], parts[1].row(20))
}

/// `rms_norm`.
///
/// # Errors
/// If a value is off by more than the rounding of its sum.
pub fn norms_match_f64<B: Backend>(backend: &mut B, unit: f64) -> Outcome {
    let mut rng = Rng(5);
    for (rows, width) in [(1, 1), (2, 17), (3, 576)] {
        let (x, weights) = (rng.floats(rows * width), rng.floats(width));
        let input = buffer(backend, &x, width)?;
        let weight = vector(backend, &weights)?;
        let mut out = backend.new_buffer(rows, width)?;
        backend.rms_norm(&input, &weight, 1e-5, &mut out)?;
        let found = read(backend, &out, rows, width)?;
        for (row, x) in x.chunks(width).enumerate() {
            let mean = x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / width as f64;
            for (i, x) in x.iter().enumerate() {
                let exact = f64::from(*x) / (mean + 1e-5).sqrt() * f64::from(weights[i]);
                let what = || format!("row {row}, value {i} of width {width}");
                close(
                    what,
                    found[row * width + i],
                    exact,
                    exact.abs() * (width + 8) as f64 * unit,
                )?;
            }
        }
    }
    Ok(())
}

/// `gated_activation`.
///
/// # Errors
/// If a value is off by more than the rounding of the exponent explains.
pub fn activations_match_f64<B: Backend>(backend: &mut B, unit: f64) -> Outcome {
    let mut rng = Rng(6);
    for activation in [Activation::Silu, Activation::GeluTanh] {
        for (rows, width) in [(1, 1), (2, 19), (3, 64)] {
            let x: Vec<f32> = rng.floats(rows * width * 2).iter().map(|x| x * 12.0).collect();
            let input = buffer(backend, &x, 2 * width)?;
            let mut out = backend.new_buffer(rows, width)?;
            backend.gated_activation(&input, activation, &mut out)?;
            let found = read(backend, &out, rows, width)?;
            for (i, found) in found.iter().enumerate() {
                let (row, column) = (i / width, i % width);
                let gate = f64::from(x[row * 2 * width + column]);
                let up = f64::from(x[row * 2 * width + width + column]);
                // tanh(u) = 2 / (1 + e^-2u) - 1, in a form that doesn't cancel.
                let exponent = match activation {
                    Activation::Silu => gate,
                    Activation::GeluTanh => {
                        2.0 * (2.0 / std::f64::consts::PI).sqrt() * (gate + 0.044_715 * gate.powi(3))
                    }
                };
                let exact = gate / (1.0 + (-exponent).exp()) * up;
                // An error of the exponent becomes a relative one of its power; results below 1e-30 may vanish.
                let bound = exact.abs() * unit * (8.0 * exponent.abs() + 16.0) + 1e-30;
                close(|| format!("{activation:?}({gate}) * {up}"), *found, exact, bound)?;
            }
        }
    }
    Ok(())
}
