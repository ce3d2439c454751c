use super::support::{Matrix, Rng, all_kernels, bits, scalar};
use crate::{K_CHUNK, Kernels, MatmulScratch, MatmulTask, Rows, WeightType};

/// The whole product, `[rows][outputs]`, with the panels cut into ranges of `panels_per_task`.
fn product(
    kernels: Kernels,
    matrix: &Matrix,
    x: &[f32],
    num_rows: usize,
    panels_per_task: usize,
) -> Vec<f32> {
    let (outputs, stride) = (matrix.layout.rows(), matrix.layout.cols());
    let mut out = vec![f32::NAN; num_rows * outputs];
    let mut scratch = MatmulScratch::default();
    for first in (0..matrix.layout.num_panels()).step_by(panels_per_task) {
        let panels = first..matrix.layout.num_panels().min(first + panels_per_task);
        let mut sink = |row: usize, output: usize, values: &[f32]| {
            out[row * outputs + output..][..values.len()].copy_from_slice(values);
        };
        kernels.matmul(MatmulTask {
            weights: matrix.packed(),
            panels,
            x: Rows {
                data: x,
                stride,
                num_rows,
            },
            scratch: &mut scratch,
            sink: &mut sink,
        });
    }
    out
}

fn shapes(weight_type: WeightType) -> Vec<(usize, usize)> {
    match weight_type.block_len() {
        1 => vec![
            (0, 16),
            (1, 1),
            (15, 15),
            (16, 16),
            (17, 17),
            (64, 256),
            (65, 257),
            (83, 600),
            (16, 0),
        ],
        32 => vec![(0, 32), (1, 32), (15, 64), (17, 256), (64, 288), (83, 576)],
        _ => vec![(1, 256), (17, 512), (64, 256), (83, 768)],
    }
}

#[test]
fn every_instruction_set_gives_the_scalar_bits_for_all_types_shapes_and_row_counts() {
    let mut rng = Rng(2);
    for weight_type in WeightType::ALL {
        for (outputs, cols) in shapes(weight_type) {
            let matrix = Matrix::pack(
                weight_type,
                outputs,
                cols,
                &rng.weights(weight_type, outputs, cols),
            );
            for num_rows in 0..=13 {
                let x = rng.floats(num_rows * cols);
                let expected = bits(&product(scalar(), &matrix, &x, num_rows, 4));
                for kernels in &all_kernels()[1..] {
                    let found = bits(&product(*kernels, &matrix, &x, num_rows, 4));
                    assert_eq!(
                        found,
                        expected,
                        "{weight_type:?} {num_rows} x {outputs} x {cols} {}",
                        kernels.isa()
                    );
                }
            }
        }
    }
}

#[test]
fn a_row_alone_equals_the_row_in_any_batch() {
    let mut rng = Rng(3);
    let (outputs, cols, num_rows) = (83, 768, 300);
    for weight_type in [WeightType::Q4_1, WeightType::Q6K, WeightType::F16] {
        let matrix = Matrix::pack(
            weight_type,
            outputs,
            cols,
            &rng.weights(weight_type, outputs, cols),
        );
        let x = rng.floats(num_rows * cols);
        for kernels in &all_kernels()[1..] {
            let batch = product(*kernels, &matrix, &x, num_rows, 4);
            for row in [0, 1, 5, 6, 255, 256, 299] {
                let alone = product(*kernels, &matrix, &x[row * cols..][..cols], 1, 4);
                assert_eq!(
                    bits(&alone),
                    bits(&batch[row * outputs..][..outputs]),
                    "row {row}"
                );
            }
        }
    }
}

#[test]
fn the_cut_into_tasks_changes_nothing() {
    let mut rng = Rng(4);
    let (outputs, cols) = (150, 512);
    let matrix = Matrix::pack(
        WeightType::Q4K,
        outputs,
        cols,
        &rng.weights(WeightType::Q4K, outputs, cols),
    );
    for num_rows in [1, 7] {
        let x = rng.floats(num_rows * cols);
        for kernels in all_kernels() {
            let expected = bits(&product(kernels, &matrix, &x, num_rows, 100));
            for panels in [1, 2, 3, 5] {
                assert_eq!(bits(&product(kernels, &matrix, &x, num_rows, panels)), expected);
            }
        }
    }
}

/// A chain of n fused operations errs by at most n units of 2^-24, relative to the sum of magnitudes (Higham, Accuracy and
/// Stability of Numerical Algorithms, 3.1); a sum passes through one chunk's chain and the addition of the chunks.
#[test]
fn scalar_products_are_within_the_rounding_bound_of_f64() {
    let mut rng = Rng(5);
    for weight_type in WeightType::ALL {
        for (outputs, cols) in shapes(weight_type) {
            let matrix = Matrix::pack(
                weight_type,
                outputs,
                cols,
                &rng.weights(weight_type, outputs, cols),
            );
            for num_rows in [1, 3] {
                let x = rng.floats(num_rows * cols);
                let out = product(scalar(), &matrix, &x, num_rows, 4);
                for output in 0..outputs {
                    let w = matrix.row(scalar(), output);
                    for row in 0..num_rows {
                        let terms = x[row * cols..]
                            .iter()
                            .zip(&w)
                            .map(|(x, w)| f64::from(*x) * f64::from(*w));
                        let terms: Vec<f64> = terms.collect();
                        let exact: f64 = terms.iter().sum();
                        let magnitude: f64 = terms.iter().map(|term| term.abs()).sum();
                        let roundings = cols.min(K_CHUNK) + cols.div_ceil(K_CHUNK) + 1;
                        let bound = roundings as f64 * 2.0_f64.powi(-24) * magnitude;
                        let error = (f64::from(out[row * outputs + output]) - exact).abs();
                        assert!(
                            error <= bound,
                            "{weight_type:?} {output}: off by {error}, bound {bound}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn strides_wider_than_the_inputs_are_skipped() {
    let mut rng = Rng(6);
    let matrix = Matrix::pack(WeightType::F32, 5, 3, &rng.weights(WeightType::F32, 5, 3));
    let x = [1.0, 2.0, 3.0, f32::NAN, 4.0, 5.0, 6.0];
    let packed = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
    for kernels in all_kernels() {
        let mut out = vec![0.0; 10];
        kernels.matmul(MatmulTask {
            weights: matrix.packed(),
            panels: 0..1,
            x: Rows {
                data: &x,
                stride: 4,
                num_rows: 2,
            },
            scratch: &mut MatmulScratch::default(),
            sink: &mut |row, output, values| out[row * 5 + output..][..values.len()].copy_from_slice(values),
        });
        assert_eq!(out, product(kernels, &matrix, &packed, 2, 1));
    }
}
