//! Cost models: read, fitted, written.

use std::path::Path;

use kvasir_files::{Limit, read_text, read_text_or_stdin};
use kvasir_sim::{CostModel, Fit, StepRecord};
use serde_json::json;

use super::{print, usage};
use crate::cli::simulate::written_cost;
use crate::exit::Failure;

/// Some millions of steps.
const RECORDS_LIMIT: Limit = Limit {
    max_bytes: 1 << 30,
    advice: "a part of the records fits as well",
};

/// Fits a cost model to a file of step records, prints it with its errors, and writes it to `output`.
pub(crate) fn fit(records: &Path, output: Option<&Path>, as_json: bool) -> Result<(), Failure> {
    let text = read_text_or_stdin(records, RECORDS_LIMIT)?;
    let steps = StepRecord::parse_lines(&text)
        .map_err(|error| Failure::Usage(format!("{}: {error}", records.display())))?;
    let fit =
        kvasir_sim::fit(&steps).map_err(|error| Failure::Usage(format!("{}: {error}", records.display())))?;
    if let Some(path) = output {
        let json = format!("{:#}\n", json!(fit.cost));
        std::fs::write(path, json).map_err(|error| unwritable(path, &error))?;
    }
    print(&fit_text(&fit, as_json))
}

/// A cost model from a file or written out; the default model's if nothing is given.
pub(super) fn load(given: Option<&str>) -> Result<CostModel, Failure> {
    let Some(given) = given else {
        return Ok(CostModel::DEFAULT);
    };
    if let Some(cost) = written_cost(given) {
        return cost.map_err(|error| usage(&error));
    }
    let path = Path::new(given);
    let text = read_text(path, Limit::SMALL)?;
    let cost: CostModel = serde_json::from_str(&text)
        .map_err(|error| Failure::Usage(format!("{given} holds no cost model: {error}; --fit writes one")))?;
    cost.validate()
        .map_err(|error| Failure::Usage(format!("{given}: {error}")))?;
    Ok(cost)
}

/// The model and how well it explains its records.
pub(super) fn fit_text(fit: &Fit, as_json: bool) -> String {
    if as_json {
        return format!("{:#}\n", fit_json(fit));
    }
    let CostModel {
        step,
        prefill_token,
        decode_seq,
        context_token,
        ..
    } = fit.cost;
    let mut lines = vec![
        format!("step           {:>10.3} ms each", step * 1e3),
        format!("prefill token  {:>10.3} ms each", prefill_token * 1e3),
        format!("decode seq     {:>10.3} ms each", decode_seq * 1e3),
        format!("context token  {:>10.3} us each", context_token * 1e6),
    ];
    lines.extend(
        (fit.unseen.iter())
            .map(|name| format!("no record says anything about {name}: it is taken to cost nothing")),
    );
    lines.push(format!(
        "\n{:<14} {:>7} {:>10} {:>12} {:>8} {:>8}",
        "steps", "records", "bias", "error median", "p90", "p99"
    ));
    lines.extend(fit.residuals.iter().map(|group| {
        format!(
            "{:<14} {:>7} {:>+9.1}% {:>11.1}% {:>7.1}% {:>7.1}%",
            group.kind,
            group.count,
            (group.bias - 1.0) * 100.0,
            group.median * 100.0,
            group.p90 * 100.0,
            group.p99 * 100.0
        )
    }));
    let (worst, predicted) = &fit.worst;
    lines.push(format!(
        "\nworst: {} takes {:.1} ms by the model",
        worst.to_line(),
        predicted * 1e3
    ));
    lines.push(format!("\n--cost-model {}\n", fit.cost));
    lines.join("\n")
}

fn fit_json(fit: &Fit) -> serde_json::Value {
    let residuals: Vec<_> = fit
        .residuals
        .iter()
        .map(|group| {
            json!({"kind": group.kind, "count": group.count, "bias": group.bias, "median": group.median,
                "p90": group.p90, "p99": group.p99})
        })
        .collect();
    let (worst, predicted) = &fit.worst;
    json!({
        "cost_model": fit.cost,
        "unseen": fit.unseen,
        "residuals": residuals,
        "worst": {"record": worst, "predicted_seconds": predicted},
    })
}

pub(super) fn unwritable(path: &Path, error: &std::io::Error) -> Failure {
    Failure::Usage(format!("can't write {}: {error}", path.display()))
}
