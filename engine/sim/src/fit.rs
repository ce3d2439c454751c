//! A cost model from measured steps: least squares with coefficients of at least 0.
//!
//! Errors are weighed relative to the predicted time, in three rounds: a decode of 10 ms that is off by 2 ms matters as much as a
//! prefill of 1 s that is off by 200 ms, since the one is what clients wait for between tokens and the other before the first. Weights from
//! the measured times would pull the fit below them.
//!
//! With four columns the best fit with non-negative coefficients is found exactly: it is the plain least squares fit of the columns it uses, so
//! the best of the 15 choices of columns whose plain fit has no negative coefficient is it (the argument behind Lawson and Hanson's
//! NNLS, *Solving Least Squares Problems*, 1974).

use crate::cost::{CostModel, MIN_STEP_SECONDS, StepShape};
use crate::record::StepRecord;

/// Coefficients that are fitted; the host's part isn't in a step's time.
const NUM_COLUMNS: usize = 4;
const NAMES: [&str; NUM_COLUMNS] = ["step", "prefill_token", "decode_seq", "context_token"];
/// Below this, least squares finds a line through noise.
const MIN_RECORDS: usize = 8;
const ROUNDS: usize = 3;

/// A fitted model and how well it explains its records.
#[derive(Clone, Debug, PartialEq)]
pub struct Fit {
    /// The coefficients; `host` is 0.
    pub cost: CostModel,
    /// Coefficients that are 0 because no record says anything about them.
    pub unseen: Vec<&'static str>,
    /// Over all records, and by kind of step.
    pub residuals: Vec<Residuals>,
    /// The record with the largest relative error, and its predicted seconds.
    pub worst: (StepRecord, f64),
}

/// Errors of a group of steps.
#[derive(Clone, Debug, PartialEq)]
pub struct Residuals {
    /// Which group.
    pub kind: &'static str,
    /// Its records.
    pub count: usize,
    /// Predicted over measured time, summed over the group: 1 is without bias.
    pub bias: f64,
    /// Half of the records are predicted better than this: |predicted - measured| / measured.
    pub median: f64,
    /// 90 % of them are.
    pub p90: f64,
    /// 99 % of them are.
    pub p99: f64,
}

/// Why there is no fit.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum FitError {
    /// Too few records.
    #[error(
        "{count} step records are too few for a fit; it needs at least {MIN_RECORDS}, better some hundred"
    )]
    TooFew {
        /// Records given.
        count: usize,
    },
    /// All steps are alike.
    #[error("all {count} step records have the same shape; a fit needs steps of different sizes")]
    OneShape {
        /// Records given.
        count: usize,
    },
}

/// Fits a cost model.
///
/// # Errors
/// If the records can't tell one coefficient from another.
pub fn fit(records: &[StepRecord]) -> Result<Fit, FitError> {
    let count = records.len();
    if count < MIN_RECORDS {
        return Err(FitError::TooFew { count });
    }
    if records.iter().all(|record| record.shape() == records[0].shape()) {
        return Err(FitError::OneShape { count });
    }
    let mut coefficients = solve(records, |record| record.seconds);
    for _ in 1..ROUNDS {
        let cost = cost_of(coefficients);
        coefficients = solve(records, |record| predict(&cost, record));
    }
    let cost = cost_of(coefficients);
    Ok(Fit {
        cost,
        unseen: unseen(records),
        residuals: residuals(&cost, records),
        worst: worst(&cost, records),
    })
}

/// Seconds that the model gives a step, as the simulator takes them.
fn predict(cost: &CostModel, record: &StepRecord) -> f64 {
    cost.step_seconds(record.shape()).max(MIN_STEP_SECONDS)
}

fn cost_of([step, prefill_token, decode_seq, context_token]: [f64; NUM_COLUMNS]) -> CostModel {
    CostModel {
        step,
        prefill_token,
        decode_seq,
        context_token,
        host: 0.0,
    }
}

fn row(shape: StepShape) -> [f64; NUM_COLUMNS] {
    [
        1.0,
        shape.prefill_tokens as f64,
        shape.decode_seqs as f64,
        shape.context_tokens as f64,
    ]
}

fn unseen(records: &[StepRecord]) -> Vec<&'static str> {
    let is_seen = |column: usize| records.iter().any(|record| row(record.shape())[column] > 0.0);
    (0..NUM_COLUMNS)
        .filter(|&column| !is_seen(column))
        .map(|column| NAMES[column])
        .collect()
}

/// The normal equations: `gram * x = moment`, with the columns scaled to length 1.
struct Normal {
    gram: [[f64; NUM_COLUMNS]; NUM_COLUMNS],
    moment: [f64; NUM_COLUMNS],
    scale: [f64; NUM_COLUMNS],
}

/// The best non-negative coefficients, with errors divided by `unit`.
fn solve(records: &[StepRecord], unit: impl Fn(&StepRecord) -> f64) -> [f64; NUM_COLUMNS] {
    let normal = normal(records, unit);
    let mut best = (0.0, [0.0; NUM_COLUMNS]);
    for columns in 1_u32..1 << NUM_COLUMNS {
        let chosen: Vec<usize> = (0..NUM_COLUMNS)
            .filter(|column| columns & (1 << column) != 0)
            .collect();
        let Some(x) = eliminate(&normal, &chosen) else {
            continue;
        };
        if x.iter().any(|&value| value < 0.0) {
            continue;
        }
        // Of the squared error |y|^2 - x . moment, only the second part depends on the choice.
        let gain: f64 = chosen
            .iter()
            .zip(&x)
            .map(|(&column, &value)| value * normal.moment[column])
            .sum();
        if gain > best.0 {
            let mut coefficients = [0.0; NUM_COLUMNS];
            for (&column, value) in chosen.iter().zip(x) {
                coefficients[column] = value / normal.scale[column];
            }
            best = (gain, coefficients);
        }
    }
    best.1
}

fn normal(records: &[StepRecord], unit: impl Fn(&StepRecord) -> f64) -> Normal {
    let mut gram = [[0.0; NUM_COLUMNS]; NUM_COLUMNS];
    let mut moment = [0.0; NUM_COLUMNS];
    for record in records {
        let weight = unit(record).recip();
        let row = row(record.shape()).map(|value| value * weight);
        for i in 0..NUM_COLUMNS {
            moment[i] += row[i] * record.seconds * weight;
            for j in 0..NUM_COLUMNS {
                gram[i][j] += row[i] * row[j];
            }
        }
    }
    // An unseen column keeps a scale of 1 and is singular.
    let scale: [f64; NUM_COLUMNS] =
        std::array::from_fn(|i| if gram[i][i] > 0.0 { gram[i][i].sqrt() } else { 1.0 });
    for i in 0..NUM_COLUMNS {
        moment[i] /= scale[i];
        for j in 0..NUM_COLUMNS {
            gram[i][j] /= scale[i] * scale[j];
        }
    }
    Normal { gram, moment, scale }
}

/// Solves the equations of some columns by elimination with pivoting; nothing if they depend on each other.
fn eliminate(normal: &Normal, chosen: &[usize]) -> Option<Vec<f64>> {
    /// Columns of length 1 that are equal but for rounding leave less than this.
    const SINGULAR: f64 = 1e-10;
    let len = chosen.len();
    let mut rows: Vec<Vec<f64>> = chosen
        .iter()
        .map(|&i| {
            let left = chosen.iter().map(|&j| normal.gram[i][j]);
            left.chain([normal.moment[i]]).collect()
        })
        .collect();
    for pivot in 0..len {
        let largest = (pivot..len).max_by(|&a, &b| rows[a][pivot].abs().total_cmp(&rows[b][pivot].abs()))?;
        rows.swap(pivot, largest);
        if rows[pivot][pivot].abs() < SINGULAR {
            return None;
        }
        let source = rows[pivot].clone();
        for row in rows.iter_mut().skip(pivot + 1) {
            let factor = row[pivot] / source[pivot];
            for (value, above) in row.iter_mut().zip(&source) {
                *value -= factor * above;
            }
        }
    }
    let mut x = vec![0.0; len];
    for i in (0..len).rev() {
        let known: f64 = (i + 1..len).map(|j| rows[i][j] * x[j]).sum();
        x[i] = (rows[i][len] - known) / rows[i][i];
    }
    Some(x)
}

fn relative_error(cost: &CostModel, record: &StepRecord) -> f64 {
    (predict(cost, record) - record.seconds).abs() / record.seconds
}

fn residuals(cost: &CostModel, records: &[StepRecord]) -> Vec<Residuals> {
    type Belongs = fn(&StepRecord) -> bool;
    let kinds: [(&'static str, Belongs); 4] = [
        ("all", |_| true),
        ("prefill only", |record| record.decode_seqs == 0),
        ("decode only", |record| record.prefill_tokens == 0),
        ("mixed", |record| {
            record.prefill_tokens > 0 && record.decode_seqs > 0
        }),
    ];
    let groups = kinds.map(|(kind, belongs)| {
        let group: Vec<&StepRecord> = records.iter().filter(|record| belongs(record)).collect();
        residuals_of(kind, cost, &group)
    });
    groups.into_iter().flatten().collect()
}

fn residuals_of(kind: &'static str, cost: &CostModel, group: &[&StepRecord]) -> Option<Residuals> {
    let mut errors: Vec<f64> = group.iter().map(|record| relative_error(cost, record)).collect();
    errors.sort_by(f64::total_cmp);
    let rank = |share: f64| ((share * errors.len() as f64).ceil() as usize).saturating_sub(1);
    let quantile = |share: f64| errors.get(rank(share)).copied();
    let predicted: f64 = group.iter().map(|record| predict(cost, record)).sum();
    let measured: f64 = group.iter().map(|record| record.seconds).sum();
    Some(Residuals {
        kind,
        count: errors.len(),
        bias: predicted / measured,
        median: quantile(0.5)?,
        p90: quantile(0.9)?,
        p99: quantile(0.99)?,
    })
}

fn worst(cost: &CostModel, records: &[StepRecord]) -> (StepRecord, f64) {
    let worst = records
        .iter()
        .max_by(|a, b| relative_error(cost, a).total_cmp(&relative_error(cost, b)))
        .unwrap_or(&records[0]);
    (*worst, predict(cost, worst))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::rng::Rng;

    fn record(cost: &CostModel, prefill_tokens: u64, decode_seqs: u64, context_tokens: u64) -> StepRecord {
        let shape = StepShape {
            prefill_tokens,
            decode_seqs,
            context_tokens,
        };
        StepRecord {
            prefill_tokens,
            decode_seqs,
            context_tokens,
            seconds: cost.step_seconds(shape),
        }
    }

    /// Steps of all kinds.
    fn grid(cost: &CostModel) -> Vec<StepRecord> {
        let mut records = Vec::new();
        for prefill in [0, 1, 64, 500] {
            for decodes in [0, 1, 7, 32] {
                for context in [10, 1000, 20_000] {
                    if prefill + decodes > 0 {
                        records.push(record(cost, prefill, decodes, context));
                    }
                }
            }
        }
        records
    }

    fn close(found: f64, expected: f64, tolerance: f64) -> bool {
        (found - expected).abs() <= tolerance * expected.abs().max(1e-9)
    }

    #[test]
    fn noise_of_ten_percent_moves_the_coefficients_by_less_than_ten_percent() {
        let truth = CostModel {
            context_token: 2e-7,
            ..CostModel::DEFAULT
        };
        let mut rng = Rng::new(1, 0);
        let mut records: Vec<StepRecord> = (0..20).flat_map(|_| grid(&truth)).collect();
        for record in &mut records {
            record.seconds *= 1.0 + 0.1 * rng.normal().clamp(-3.0, 3.0);
        }
        let fit = fit(&records).unwrap();
        for ((name, found), (_, expected)) in [
            ("step", fit.cost.step),
            ("prefill", fit.cost.prefill_token),
            ("decode", fit.cost.decode_seq),
            ("context", fit.cost.context_token),
        ]
        .into_iter()
        .zip([
            ("", truth.step),
            ("", truth.prefill_token),
            ("", truth.decode_seq),
            ("", truth.context_token),
        ]) {
            assert!(close(found, expected, 0.1), "{name}: {found} for {expected}");
        }
        let all = &fit.residuals[0];
        assert!(
            (0.99..1.01).contains(&all.bias),
            "the fit has no bias: {}",
            all.bias
        );
        assert!(
            (0.05..0.09).contains(&all.median),
            "half of the noise is within 0.067: {}",
            all.median
        );
    }

    #[test]
    fn a_coefficient_that_would_be_negative_is_zero_and_the_others_are_the_best_without_it() {
        let truth = CostModel {
            context_token: 0.0,
            ..CostModel::DEFAULT
        };
        let mut records = grid(&truth);
        for record in &mut records {
            // Steps with more context are a little faster: a plain fit would say that reading KV saves time.
            record.seconds -= 1e-7 * record.context_tokens as f64;
        }
        let fit = fit(&records).unwrap();
        assert_eq!(fit.cost.context_token, 0.0);
        assert!(fit.cost.step > 0.0 && fit.cost.prefill_token > 0.0 && fit.cost.decode_seq > 0.0);
    }

    #[test]
    fn what_no_record_shows_is_named() {
        let records: Vec<StepRecord> = (1..20)
            .map(|n| record(&CostModel::DEFAULT, 0, n, 100 * n * n))
            .collect();
        let fit = fit(&records).unwrap();
        assert_eq!(fit.unseen, ["prefill_token"]);
        assert_eq!(fit.cost.prefill_token, 0.0);
        let kinds: Vec<&str> = fit.residuals.iter().map(|group| group.kind).collect();
        assert_eq!(kinds, ["all", "decode only"]);
    }

    #[test]
    fn columns_that_depend_on_each_other_still_predict() {
        // Every sequence has the same context: nothing tells a sequence from the positions it reads.
        let records: Vec<StepRecord> = (1..20)
            .map(|n| record(&CostModel::DEFAULT, 0, n, 100 * n))
            .collect();
        let fit = fit(&records).unwrap();
        assert!(fit.residuals[0].p99 < 1e-6, "{:?}", fit.residuals);
    }

    #[test]
    fn records_that_can_not_be_fitted_are_refused() {
        let one = record(&CostModel::DEFAULT, 1, 0, 1);
        assert_eq!(fit(&[one; 7]), Err(FitError::TooFew { count: 7 }));
        assert_eq!(fit(&[one; 9]), Err(FitError::OneShape { count: 9 }));
    }

    proptest! {
        #[test]
        fn a_model_is_found_again_from_its_own_steps(
            step in 1e-5_f64..0.1,
            prefill_token in 1e-7_f64..1e-2,
            decode_seq in 1e-6_f64..1e-2,
            context_token in 1e-9_f64..1e-6,
        ) {
            let truth = CostModel { step, prefill_token, decode_seq, context_token, host: 0.0 };
            let found = fit(&grid(&truth)).unwrap();
            prop_assert!(found.residuals[0].p99 < 1e-6, "{found:?}");
            prop_assert!(close(found.cost.step, step, 1e-3));
        }

        #[test]
        fn any_steps_give_coefficients_that_are_times(
            steps in proptest::collection::vec((0_u64..5000, 0_u64..300, 1_u64..1 << 40, 1e-9_f64..3600.0), 8..40),
        ) {
            let records: Vec<StepRecord> = steps
                .into_iter()
                .map(|(prefill_tokens, decode_seqs, context_tokens, seconds)| StepRecord {
                    prefill_tokens,
                    decode_seqs: decode_seqs.max(u64::from(prefill_tokens == 0)),
                    context_tokens,
                    seconds,
                })
                .collect();
            if let Ok(fit) = fit(&records) {
                prop_assert!(fit.cost.validate().is_ok(), "{:?}", fit.cost);
            }
        }
    }
}
