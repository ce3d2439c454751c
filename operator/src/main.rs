//! `kvasir-operator`: the commands around `InferenceService`.

mod crd;
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
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Crd => crd::print(&mut std::io::stdout().lock()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Nothing is left to report to when standard error is closed too.
            drop(writeln!(std::io::stderr(), "kvasir-operator: {error}"));
            ExitCode::FAILURE
        }
    }
}
