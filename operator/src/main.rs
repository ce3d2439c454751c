//! `kvasir-operator`: the commands around `InferenceService`.

mod ask;
mod crd;
mod explain;
mod logging;
mod run;
mod yaml;

use std::io::Write as _;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Parser, Subcommand};

/// Exit code where the arguments can't be used, as in `kvasir`; clap has 2.
const WRONG_USAGE: u8 = 64;
/// What commands end with.
const EXIT_CODES: &str = "Exit code: 0 done; 1 failed; 64 wrong usage.";
/// What `run` ends with.
const RUN_EXIT_CODES: &str = "Exit code: 0 stopped by a signal; 1 can't start, or a second signal; 64 wrong usage; 75 the lease was \
    lost: to be started again.";

/// Runs InferenceServices on Kubernetes
#[derive(Debug, Parser)]
#[command(
    name = "kvasir-operator",
    version,
    about,
    arg_required_else_help = true,
    max_term_width = 110
)]
#[command(after_help = "Each command's help has its exit codes.")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Print the custom resource definition as YAML, for `kubectl apply --server-side -f -`
    #[command(after_help = EXIT_CODES)]
    Crd,
    /// Look after InferenceServices, in the cluster of KUBECONFIG or of the pod
    #[command(after_help = RUN_EXIT_CODES)]
    Run(Box<run::RunArguments>),
    /// Ask an operator how it does, and fail unless the answer is good: for the chart's test
    #[command(after_help = EXIT_CODES)]
    Ask(ask::AskArguments),
    /// Say why a service is as it is, from its pods up to Ready
    #[command(after_help = EXIT_CODES)]
    Explain {
        /// The service
        #[arg(value_name = "NAMESPACE/NAME")]
        service: explain::Target,
    },
}

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return usage(&error),
    };
    let result = match arguments.command {
        Command::Crd => crd::print(&mut std::io::stdout().lock()).map_err(|error| fail(&error, 1)),
        Command::Ask(arguments) => ask::run(&arguments).map_err(|error| fail(&error, 1)),
        Command::Explain { service } => explain::print(&service).map_err(|error| fail(&error, 1)),
        Command::Run(arguments) => run::start(*arguments).map_err(|error| fail(&error, error.exit_code())),
    };
    result.err().unwrap_or(ExitCode::SUCCESS)
}

/// Help and version are no errors.
fn usage(error: &clap::Error) -> ExitCode {
    let is_help = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
    if error.print().is_err() {
        return ExitCode::FAILURE;
    }
    ExitCode::from(if is_help { 0 } else { WRONG_USAGE })
}

/// Says what went wrong. Nothing is left to report to when standard error is closed too.
fn fail(error: &dyn std::error::Error, code: u8) -> ExitCode {
    drop(writeln!(std::io::stderr(), "kvasir-operator: {error}"));
    ExitCode::from(code)
}
