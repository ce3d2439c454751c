//! `kvasir completions SHELL`.

use std::io::Write;

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use crate::exit::Failure;

/// Which shell.
#[derive(Debug, Args)]
#[command(
    after_help = "For bash: kvasir completions bash > ~/.local/share/bash-completion/completions/kvasir"
)]
pub(crate) struct CompletionsArgs {
    /// The shell that the script is for
    shell: Shell,
}

pub(crate) fn run(args: &CompletionsArgs) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut super::Cli::command(), "kvasir", &mut script);
    std::io::stdout()
        .lock()
        .write_all(&script)
        .map_err(|error| Failure::Failed(format!("can't write the completion script: {error}")))
}
