//! `kvasir replay`: runs the scheduler's recorded inputs again, without a model.

use std::io::{self, BufWriter, ErrorKind, Write};
use std::path::PathBuf;

use clap::Args;
use kvasir_engine_core::{Event, FinishReason, StepPlan};
use kvasir_files::{Limit, read_or_stdin};
use kvasir_service::dump::{Dump, Replayed};

use super::say;
use crate::exit::Failure;

/// A dump is held in memory, and so is what is decoded of it.
pub(crate) const DUMP_LIMIT: Limit = Limit {
    max_bytes: 2 << 30,
    advice: "is it a dump of kvasir serve? A lower --record-inputs gives smaller ones",
};

/// Which recording, and what to print of it.
#[derive(Debug, Args)]
#[command(
    after_help = "A dump comes from GET /debug/dump (kvasir serve --enable-debug-dump), or from the folder of --dump-dir; \
    it holds a recording if the server ran with --record-inputs. The plans are printed as the server executed them, byte \
    for byte; exit code 3 says that a plan differs, 1 that the file can't be replayed.

  kvasir serve --record-inputs 20000 --dump-dir dumps
  kill -USR1 $(pgrep -x kvasir)
  kvasir replay --summary dumps/kvasir-*-asked.dump.json
  curl -s http://127.0.0.1:8000/debug/dump | kvasir replay --quiet -"
)]
pub(crate) struct ReplayArgs {
    /// The dump; - is standard input
    file: PathBuf,
    /// Print what happened to each sequence, too
    #[arg(long)]
    events: bool,
    /// Print a line for each step instead of its plan
    #[arg(long, conflicts_with = "events")]
    summary: bool,
    /// Print no plans; only say how they compare
    #[arg(long, short, conflicts_with_all = ["events", "summary"])]
    quiet: bool,
}

pub(crate) fn run(args: &ReplayArgs) -> Result<(), Failure> {
    let name = args.file.display();
    let bytes = read_or_stdin(&args.file, DUMP_LIMIT)?;
    let unusable = |error| Failure::Failed(format!("{name}: {error}"));
    let dump = Dump::from_bytes(&bytes).map_err(unusable)?;
    let mut printer = Printer {
        out: BufWriter::new(io::stdout().lock()),
        broken: None,
    };
    let replayed = dump
        .replay(|plan, events| printer.print(args, plan, events))
        .map_err(unusable)?;
    if printer.finish()? {
        conclude(&replayed)?;
    }
    Ok(())
}

/// Says how the plans compare.
fn conclude(replayed: &Replayed) -> Result<(), Failure> {
    let Replayed {
        num_plans,
        num_compared,
        differing,
    } = replayed;
    if let Some(first) = differing.first() {
        return Err(Failure::Differs(format!(
            "{} of {num_compared} plans differ from those that the server executed, the first one is that of step {first}",
            differing.len()
        )));
    }
    say(&format!(
        "{num_plans} plans; {num_compared} compared with those that the server executed: all equal"
    ));
    Ok(())
}

/// Writes until nobody reads any more.
struct Printer<W: Write> {
    out: W,
    broken: Option<io::Error>,
}

impl<W: Write> Printer<W> {
    fn print(&mut self, args: &ReplayArgs, plan: &StepPlan, events: &[Event]) {
        if self.broken.is_some() || args.quiet {
            return;
        }
        let written = if args.summary {
            self.summary(plan)
        } else {
            self.plan(plan, if args.events { events } else { &[] })
        };
        self.broken = written.err();
    }

    /// The events come first: they happened before the plan was made.
    fn plan(&mut self, plan: &StepPlan, events: &[Event]) -> io::Result<()> {
        for event in events {
            self.event(event)?;
        }
        write!(self.out, "{plan}")
    }

    fn summary(&mut self, plan: &StepPlan) -> io::Result<()> {
        let samples = plan.seqs.iter().filter(|part| part.samples).count();
        writeln!(
            self.out,
            "step {} tokens {} sequences {} samples {samples} new blocks {}",
            plan.step.0,
            plan.num_tokens(),
            plan.seqs.len(),
            plan.blocks.len()
        )
    }

    fn event(&mut self, event: &Event) -> io::Result<()> {
        match event {
            Event::Scheduled {
                seq,
                cached_tokens,
                resumed,
            } => {
                let how = if *resumed { "resumed" } else { "scheduled" };
                writeln!(self.out, "{how} seq {} cached {cached_tokens}", seq.0)
            }
            Event::Preempted { seq } => writeln!(self.out, "preempted seq {}", seq.0),
            Event::Token { seq, token } => writeln!(self.out, "token seq {} {token}", seq.0),
            Event::Finished { seq, reason } => {
                writeln!(self.out, "finished seq {} {}", seq.0, reason_name(*reason))
            }
        }
    }

    /// Says whether all was written, or nobody wanted to read the rest, as `head` does.
    fn finish(mut self) -> Result<bool, Failure> {
        let result = match self.broken.take() {
            Some(error) => Err(error),
            None => self.out.flush(),
        };
        match result {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
            Err(error) => Err(Failure::Failed(format!("can't write: {error}"))),
        }
    }
}

fn reason_name(reason: FinishReason) -> String {
    match reason {
        FinishReason::Eos => "eos".to_owned(),
        FinishReason::StopToken(token) => format!("stop token {token}"),
        FinishReason::Length => "length".to_owned(),
        FinishReason::Abort => "abort".to_owned(),
        FinishReason::Error => "error".to_owned(),
        FinishReason::Deadline => "deadline".to_owned(),
    }
}
