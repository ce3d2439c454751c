//! `kvasir doctor`.

use std::io::{self, IsTerminal as _, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;

use super::say;
use crate::doctor::scrape::{Target, recorded};
use crate::doctor::{Diagnosis, Server, Snapshot, State, Window, diagnose, render};
use crate::exit::{EXIT_HELD_BACK, Failure};
use crate::logging;

pub(crate) const AFTER_HELP: &str = "\
Looks at the server's figures twice and walks, in this order: KV cache, budget and limits, scheduler and CPU, topology, prefix cache. \
The first that holds the server back is named. Works with servers of kvasir and, as far as their figures go, of vLLM.
Exit code: 0 healthy, idle or only busy; 3 something holds the server back; 1 no diagnosis; 64 wrong usage.

  kvasir doctor http://127.0.0.1:8000
  kvasir doctor --recorded before.prom after.prom --interval 30";

/// Which server, and how.
#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// The server, for example http://127.0.0.1:8000
    #[arg(required_unless_present = "recorded")]
    url: Option<String>,
    /// Key of that server
    #[arg(long, value_name = "KEY", env = "KVASIR_API_KEY", hide_env_values = true)]
    api_key: Option<String>,
    /// Seconds between the two looks
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = interval)]
    interval: Duration,
    /// Take what /metrics answered from two files, the older first, instead of asking a server
    #[arg(long, num_args = 2, value_names = ["BEFORE", "AFTER"], conflicts_with = "url")]
    recorded: Option<Vec<PathBuf>>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Above 0 and at most an hour.
fn interval(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds".to_owned())?;
    if seconds > 0.0 && seconds <= 3600.0 {
        Ok(Duration::from_secs_f64(seconds))
    } else {
        Err("must be above 0 and at most 3600 seconds".to_owned())
    }
}

pub(crate) fn run(args: &DoctorArgs) -> Result<ExitCode, Failure> {
    let (origin, looks) = match (&args.url, args.recorded.as_deref()) {
        (_, Some([before, after])) => {
            let looks = recorded_looks(before, after, args.interval)?;
            (format!("{} and {}", before.display(), after.display()), looks)
        }
        (Some(url), _) => {
            let target = Target::new(url, args.api_key.clone());
            (target.base().to_owned(), live_looks(&target, args.interval)?)
        }
        (None, _) => {
            return Err(Failure::Usage(
                "give the URL of a server, or --recorded".to_owned(),
            ));
        }
    };
    let window = Window {
        before: &looks.before,
        after: &looks.after,
        seconds: looks.seconds,
    };
    if window.went_back() {
        return Err(Failure::Failed(format!(
            "{origin}: the second look is no later one at the same server, its counters went back: the server was restarted, another \
             one answered, or the files are in the wrong order; look again"
        )));
    }
    let diagnosis = diagnose(&window, looks.complaint.clone());
    let text = if args.json {
        json(&origin, &looks, &diagnosis)
    } else {
        let heading = format!(
            "{origin} ({}), looked at twice within {:.1} s",
            name(&looks),
            looks.seconds
        );
        render(&heading, &diagnosis, logging::has_colours(&io::stdout()))
    };
    print(&text)?;
    Ok(match diagnosis.state {
        State::HeldBack(_) | State::Unhealthy(_) => ExitCode::from(EXIT_HELD_BACK),
        State::Idle | State::Healthy | State::Computing => ExitCode::SUCCESS,
    })
}

/// Two looks and what the probes say.
struct Looks {
    before: Snapshot,
    after: Snapshot,
    seconds: f64,
    complaint: Option<String>,
}

fn live_looks(target: &Target, interval: Duration) -> Result<Looks, Failure> {
    let look = || -> Result<(Snapshot, Instant, Duration), Failure> {
        let start = Instant::now();
        let snapshot = target.look().map_err(|error| Failure::failed(&error))?;
        let took = start.elapsed();
        // The server reads its figures somewhere between the question and the answer.
        Ok((snapshot, start + took / 2, took))
    };
    let (before, began, first) = look()?;
    if io::stderr().is_terminal() {
        say(&format!(
            "looking at {} for {:.0} s",
            target.base(),
            interval.as_secs_f64()
        ));
    }
    std::thread::sleep(interval);
    let (after, ended, second) = look()?;
    let slowest = first.max(second);
    if slowest > interval / 4 {
        say(&format!(
            "a look took {:.1} s, so the rates are inexact; a longer --interval helps",
            slowest.as_secs_f64()
        ));
    }
    Ok(Looks {
        before,
        after,
        seconds: (ended - began).as_secs_f64(),
        complaint: target.complaint(),
    })
}

fn recorded_looks(
    before: &std::path::Path,
    after: &std::path::Path,
    interval: Duration,
) -> Result<Looks, Failure> {
    let look = |path| recorded(path).map_err(|error| Failure::failed(&error));
    Ok(Looks {
        before: look(before)?,
        after: look(after)?,
        seconds: interval.as_secs_f64(),
        complaint: None,
    })
}

fn name(looks: &Looks) -> &'static str {
    match looks.after.server {
        Server::Kvasir => "kvasir",
        Server::Vllm => "vLLM",
    }
}

fn json(origin: &str, looks: &Looks, diagnosis: &Diagnosis) -> String {
    let value = serde_json::json!({
        "origin": origin,
        "server": name(looks),
        "seconds": looks.seconds,
        "diagnosis": diagnosis,
    });
    format!("{value}\n")
}

fn print(text: &str) -> Result<(), Failure> {
    match io::stdout().lock().write_all(text.as_bytes()) {
        // Whoever read has enough, as `head` does.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::Failed(format!("can't write: {error}")))
        }
        _ => Ok(()),
    }
}
