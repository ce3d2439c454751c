//! `kvasir-operator`: the commands around `InferenceService`.

mod ask;
mod crd;
mod explain;
mod logging;
mod run;
mod yaml;

use std::io::Write as _;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Runs InferenceServices on Kubernetes
#[derive(Debug, Parser)]
#[command(name = "kvasir-operator", version, about, arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Print the custom resource definition as YAML, for `kubectl apply --server-side -f -`
    Crd,
    /// Look after InferenceServices, in the cluster of KUBECONFIG or of the pod
    Run(Box<run::RunArguments>),
    /// Ask an operator how it does, and fail unless the answer is good: for the chart's test
    Ask(ask::AskArguments),
    /// Say why a service is as it is, from its pods up to Ready
    Explain {
        /// The service
        #[arg(value_name = "NAMESPACE/NAME")]
        service: explain::Target,
    },
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Crd => crd::print(&mut std::io::stdout().lock()).map_err(|error| fail(&error, 1)),
        Command::Ask(arguments) => ask::run(&arguments).map_err(|error| fail(&error, 1)),
        Command::Explain { service } => explain::print(&service).map_err(|error| fail(&error, 1)),
        Command::Run(arguments) => run::start(*arguments).map_err(|error| fail(&error, error.exit_code())),
    };
    result.err().unwrap_or(ExitCode::SUCCESS)
}

/// Says what went wrong. Nothing is left to report to when standard error is closed too.
fn fail(error: &dyn std::error::Error, code: u8) -> ExitCode {
    drop(writeln!(std::io::stderr(), "kvasir-operator: {error}"));
    ExitCode::from(code)
}
