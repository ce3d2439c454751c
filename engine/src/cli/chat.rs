//! `kvasir chat`.

use std::io::{self, IsTerminal, stdin, stdout};
use std::path::PathBuf;

use clap::Args;
use etcetera::BaseStrategy as _;

use super::flags::{Flags, Offline};
use super::sampling::SamplingArgs;
use super::settings::Settings;
use super::{runtime, say};
use crate::answerer::Answerer;
use crate::chat::{Chat, ChatError, Conversation, Interrupt, Lines, Pipe, Remote, Terminal};
use crate::exit::Failure;
use crate::llm::Llm;
use crate::logging;

/// How to chat.
#[derive(Debug, Args)]
pub(crate) struct ChatArgs {
    #[command(flatten)]
    flags: Flags<Offline>,
    #[command(flatten)]
    sampling: SamplingArgs,
    /// What the model is told first
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// Talk to the model of a running server instead, for example http://127.0.0.1:8000
    #[arg(long, value_name = "URL", help_heading = "Server")]
    url: Option<String>,
    /// Key of that server
    #[arg(
        long,
        value_name = "KEY",
        env = "KVASIR_API_KEY",
        hide_env_values = true,
        help_heading = "Server"
    )]
    api_key: Option<String>,
    /// Take all of a pipe as one message instead of a message per line
    #[arg(long)]
    one_message: bool,
    /// Show figures after each answer
    #[arg(long)]
    stats: bool,
    /// Don't read or write the history of input lines
    #[arg(long)]
    no_history: bool,
}

pub(crate) fn run(args: ChatArgs) -> Result<(), Failure> {
    let mut settings = Settings::resolve(args.flags)?;
    // A person doesn't want log lines in a conversation.
    settings.quiet();
    logging::start(&settings.process);
    settings.log_warnings();
    let is_interactive = stdin().is_terminal() && stdout().is_terminal();
    let runtime = runtime()?;
    let answerer = match args.url {
        Some(url) => {
            let remote = Remote::connect(&url, args.api_key).map_err(|error| Failure::failed(&error))?;
            Partner::Remote(remote)
        }
        None => Partner::Local(Box::new(runtime.block_on(Llm::load(settings.llm_options()))?)),
    };
    if is_interactive {
        say(&format!(
            "{}. /help lists commands, Ctrl-D leaves.",
            answerer.name()
        ));
    }
    let mut lines = lines(is_interactive, args.one_message, args.no_history)?;
    let chat = Chat {
        answerer: answerer.as_answerer(),
        runtime: &runtime,
        conversation: Conversation::new(args.system, args.sampling.fields(&settings.model)),
        output: &mut stdout(),
        notes: &mut io::stderr(),
        is_interactive,
        shows_stats: args.stats,
        interrupt: if is_interactive { &on_interrupt } else { &never },
    };
    let result = chat.run(&mut *lines);
    if let Partner::Local(llm) = answerer {
        runtime.block_on(llm.shut_down());
    }
    match result {
        Ok(()) => Ok(()),
        // Whoever read the answers has enough, as `head` does.
        Err(ChatError::Io(error)) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        Err(error) => Err(Failure::failed(&error)),
    }
}

/// Who answers.
enum Partner {
    Local(Box<Llm>),
    Remote(Remote),
}

impl Partner {
    fn name(&self) -> &str {
        match self {
            Self::Local(llm) => llm.model_name(),
            Self::Remote(remote) => remote.model_name(),
        }
    }

    fn as_answerer(&self) -> &dyn Answerer {
        match self {
            Self::Local(llm) => &**llm,
            Self::Remote(remote) => remote,
        }
    }
}

fn lines(is_interactive: bool, is_one_message: bool, no_history: bool) -> Result<Box<dyn Lines>, Failure> {
    if !is_interactive {
        return Ok(Box::new(Pipe::new(stdin().lock(), is_one_message)));
    }
    let history = if no_history { None } else { history_path() };
    Terminal::open(history, logging::has_colours(&stdout()))
        .map(|terminal| Box::new(terminal) as Box<dyn Lines>)
        .map_err(|error| Failure::Failed(format!("can't use the terminal: {error}")))
}

fn history_path() -> Option<PathBuf> {
    let strategy = etcetera::choose_base_strategy().ok()?;
    let folder = strategy.state_dir().unwrap_or_else(|| strategy.data_dir());
    Some(folder.join("kvasir").join("chat_history"))
}

fn on_interrupt() -> Interrupt {
    Box::pin(async {
        // Where signals can't be caught, Ctrl-C ends the process, which stops the answer too.
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    })
}

/// In a pipe Ctrl-C ends the process, as everywhere.
fn never() -> Interrupt {
    Box::pin(std::future::pending())
}
