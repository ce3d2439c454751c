//! `kvasir simulate`: files, threads and the terminal around `kvasir-sim`.

mod calibrate;
mod cost;
mod refusal;
mod setup;
mod table;
#[cfg(test)]
mod tests;

use std::io::{self, Write};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use kvasir_sim::{Engines, Point, Report, best, simulate};
use serde_json::json;

pub(crate) use calibrate::{Calibration, calibrate};
pub(crate) use cost::fit;

use crate::cli::simulate::SimulateArgs;
use crate::exit::Failure;
use refusal::usage;
use setup::Setup;

/// Plays every point of the grid and prints what came out.
pub(crate) fn run(args: &SimulateArgs) -> Result<(), Failure> {
    print(&answer(args)?)
}

/// What is printed: the same for the same arguments and files, whatever the machine and the number of its cores.
fn answer(args: &SimulateArgs) -> Result<String, Failure> {
    let setup = Setup::of(args)?;
    let results = play_all(&setup)?;
    let best = best(&results);
    if args.json {
        let best = best.map(|index| {
            let (point, report) = &results[index];
            json!({"point": point, "goodput": report.goodput, "command": setup.serve_command(point.setting)})
        });
        let results: Vec<_> = results
            .iter()
            .map(|(point, report)| json!({"point": point, "report": report}))
            .collect();
        let answer = json!({
            "server": setup.server_text(),
            "cost_model": setup.engines.cost,
            "workload": setup.workload_text,
            "objectives": setup.objectives.to_string(),
            "results": results,
            "left_out": setup.sweep.left_out(),
            "best": best,
        });
        return Ok(format!("{answer:#}\n"));
    }
    Ok(match results.as_slice() {
        [(point, report)] => table::one(&setup, point, report),
        _ => table::many(&setup, &results, best),
    })
}

/// Each point on a thread of its own, as far as there are cores; the results are in the order of the points.
fn play_all(setup: &Setup) -> Result<Vec<(Point, Report)>, Failure> {
    let points = setup.sweep.points();
    if points.is_empty() {
        return Err(Failure::Usage(
            "every --max-num-batched-tokens is below every --max-num-seqs: every sequence must be able to decode in each step".to_owned(),
        ));
    }
    let num_threads = std::thread::available_parallelism()
        .map_or(1, std::num::NonZero::get)
        .min(points.len());
    let next = AtomicUsize::new(0);
    let done: Vec<Mutex<Option<Result<Report, Failure>>>> = points.iter().map(|_| Mutex::new(None)).collect();
    std::thread::scope(|scope| {
        for _ in 0..num_threads {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let (Some(point), Some(place)) = (points.get(index), done.get(index)) else {
                        break;
                    };
                    let result = play(setup, point);
                    if let Ok(mut place) = place.lock() {
                        *place = Some(result);
                    }
                }
            });
        }
    });
    let reports = done.into_iter().map(|place| {
        let result = place.into_inner().ok().flatten();
        result.unwrap_or_else(|| Err(Failure::Failed("a simulation ended without a result".to_owned())))
    });
    points
        .iter()
        .copied()
        .zip(reports)
        .map(|(point, report)| Ok((point, report?)))
        .collect()
}

fn play(setup: &Setup, point: &Point) -> Result<Report, Failure> {
    let engines = Engines {
        limits: point.setting.apply(&setup.engines.limits),
        ..setup.engines.clone()
    };
    let workload = point.load.apply(&setup.workload).map_err(|error| usage(&error))?;
    simulate(&engines, &workload, &setup.span, &setup.objectives).map_err(|error| usage(&error))
}

/// Writes to standard output. Where nobody reads it any more, nothing is lost.
fn print(text: &str) -> Result<(), Failure> {
    match io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(Failure::failed(&error)),
        _ => Ok(()),
    }
}
