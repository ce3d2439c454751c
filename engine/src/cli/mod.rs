//! The command line: parsing, help, and the way from a result to an exit code.

mod banner;
mod chat;
mod completions;
mod doctor;
mod engine;
pub mod flags;
mod foreign;
mod gateway;
mod generate;
mod listening;
mod models;
mod ports;
mod replay;
mod sampling;
mod serve;
mod settings;
pub(crate) mod simulate;

use std::io::{IsTerminal, Write};
use std::process::ExitCode;

use clap::builder::Styles;
use clap::builder::styling::{AnsiColor, Effects};
use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use flags::{Engine, Flags, Serve};
use kvasir_config::{StartFault, printable};
use rustix::process::{Resource, getrlimit, setrlimit};

use crate::exit::Failure;

const STYLES: Styles = Styles::styled()
    .header(AnsiColor::Green.on_default().effects(Effects::BOLD))
    .usage(AnsiColor::Green.on_default().effects(Effects::BOLD))
    .literal(AnsiColor::Cyan.on_default().effects(Effects::BOLD))
    .placeholder(AnsiColor::Cyan.on_default());

const OPTIONS_NOTE: &str = "Each option can also be set by an environment variable (--max-model-len is \
    KVASIR_MAX_MODEL_LEN) or in the YAML file that --config names; flags win over variables, variables over the file.";

const SERVE_AFTER_HELP: &str = concat!(
    "  kvasir serve\n",
    "  kvasir serve ./model.gguf --port 9000 --max-num-seqs 32\n",
    "  kvasir serve org/name:Q4_K_M --host 0.0.0.0 --api-key-file keys.txt\n",
    "  kvasir serve --engine unix:/tmp/kvasir.sock\n\n",
    "Exit code: 0 stopped and drained; 1 can't start; 64 wrong configuration; 70 the scheduler crashed; 75 the shutdown was forced."
);

const ENGINE_AFTER_HELP: &str = concat!(
    "  kvasir engine --listen unix:/tmp/kvasir.sock\n",
    "  kvasir engine ./model.gguf --listen 127.0.0.1:50051\n\n",
    "Exit code: 0 stopped and drained; 1 can't start; 64 wrong configuration; 65 the model's files can't be loaded; 66 there is no such \
     model; 69 its source can't be reached; 70 the scheduler crashed; 71 the first step failed; 73 no space left for it; 75 the shutdown \
     was forced; 76 it isn't what its digest says; 77 its source wants another credential."
);

const CHAT_AFTER_HELP: &str = concat!(
    "  kvasir chat --system 'Answer in one sentence.'\n",
    "  kvasir chat --url http://127.0.0.1:8000\n",
    "  cat question.txt | kvasir chat --one-message"
);

/// Serves large language models.
#[derive(Debug, Parser)]
#[command(name = "kvasir", version, styles = STYLES, max_term_width = 110, propagate_version = true)]
#[command(after_help = "Start with `kvasir serve` or `kvasir chat`: without a model they fetch a small one.")]
pub struct Cli {
    #[command(subcommand)]
    command: CliCommand,
}

#[derive(Debug, Subcommand)]
enum CliCommand {
    /// Serve a model over HTTP, with the API of OpenAI
    #[command(after_help = with_options_note(SERVE_AFTER_HELP))]
    Serve(Flags<Serve>),
    /// Serve a model over gRPC, for `kvasir serve --engine`
    #[command(after_help = with_options_note(ENGINE_AFTER_HELP))]
    Engine(Flags<Engine>),
    /// Talk to a model in the terminal
    #[command(after_help = with_options_note(CHAT_AFTER_HELP))]
    Chat(Box<chat::ChatArgs>),
    /// Complete many prompts from a file, without a server
    #[command(after_help = generate::AFTER_HELP)]
    Generate(Box<generate::GenerateArgs>),
    /// Predict latencies and goodput, and find the best settings, without running a model
    #[command(after_help = simulate::AFTER_HELP)]
    Simulate(Box<simulate::SimulateArgs>),
    /// Find out what holds a running server back
    #[command(after_help = doctor::AFTER_HELP)]
    Doctor(doctor::DoctorArgs),
    /// Serve as the door of a service: check who asks and choose an engine
    #[command(after_help = gateway::AFTER_HELP)]
    Gateway(gateway::GatewayArgs),
    /// List, fetch and remove models
    #[command(after_help = models::AFTER_HELP)]
    Models(models::ModelsArgs),
    /// Run the recorded inputs of a server's scheduler again
    Replay(replay::ReplayArgs),
    /// Print the completion script of a shell
    Completions(completions::CompletionsArgs),
}

fn with_options_note(text: &str) -> String {
    format!("{OPTIONS_NOTE}\n\n{text}")
}

/// Runs the command that the process was started with.
pub fn run() -> ExitCode {
    let cli = match Cli::command()
        .try_get_matches()
        .and_then(|matches| Cli::from_arg_matches(&matches))
    {
        Ok(cli) => cli,
        Err(error) => return usage_error(&error),
    };
    match dispatch(cli.command) {
        Ok(code) => code,
        Err(failure) => {
            report(&failure);
            failure.into()
        }
    }
}

fn dispatch(command: CliCommand) -> Result<ExitCode, Failure> {
    match command {
        CliCommand::Serve(flags) => serve::run(flags),
        CliCommand::Engine(flags) => engine::run(flags),
        CliCommand::Chat(args) => chat::run(*args),
        CliCommand::Generate(args) => generate::run(*args),
        CliCommand::Simulate(args) => simulate::run(&args),
        CliCommand::Doctor(args) => return doctor::run(&args),
        CliCommand::Gateway(args) => gateway::run(args),
        CliCommand::Models(args) => models::run(args),
        CliCommand::Replay(args) => replay::run(&args),
        CliCommand::Completions(args) => completions::run(&args),
    }?;
    Ok(ExitCode::SUCCESS)
}

/// Help and version are no errors; all else is a configuration that can't be used, which is 64 here and 2 in clap.
fn usage_error(error: &clap::Error) -> ExitCode {
    let is_help = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
    // The terminal is gone if this fails: nobody is left to tell.
    if error.print().is_err() {
        return ExitCode::FAILURE;
    }
    if is_help {
        return ExitCode::SUCCESS;
    }
    if let Some(hint) = foreign::hint(error) {
        say(&format!("\n  tip: {hint}"));
    }
    ExitCode::from(StartFault::Configuration.exit_code())
}

/// Values of files and answers of servers are quoted in messages: they don't get to steer the terminal.
fn report(failure: &Failure) {
    let failure = printable(&failure.to_string());
    let stderr = std::io::stderr();
    if stderr.is_terminal() && crate::logging::has_colours(&stderr) {
        say(&format!("\u{1b}[1;31merror:\u{1b}[0m {failure}"));
    } else {
        say(&format!("error: {failure}"));
    }
}

/// Writes a line to standard error. Where nobody reads it, nothing is lost.
pub(crate) fn say(line: &str) {
    drop(writeln!(std::io::stderr().lock(), "{line}"));
}

/// Lets the process open as many files as it may: each connection is one.
fn raise_file_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::debug!(%error, "the limit of open files can't be raised");
    }
}

/// The runtime that a command's asynchronous part runs on. Computing has its own threads, so that a few are enough.
fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    raise_file_limit();
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(std::thread::available_parallelism().map_or(2, |count| count.get().clamp(2, 8)))
        .enable_all()
        .build()
        .map_err(|error| Failure::Failed(format!("can't start the runtime: {error}")))
}
