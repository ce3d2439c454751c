//! `kvasir generate`.

use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::{Args, ValueEnum};

use super::flags::{Flags, Offline};
use super::sampling::SamplingArgs;
use super::settings::Settings;
use super::{runtime, say};
use crate::exit::Failure;
use crate::generate::{self, Done, Format, Input, RowRules, RunPlan, Summary, open_input, open_output};
use crate::llm::Llm;
use crate::{logging, progress};

pub(crate) const AFTER_HELP: &str = "\
Input: a line per prompt, or a JSON object per line with `prompt` or `messages`, any sampling field of the HTTP routes, and \
optionally an `id`; rows of OpenAI batch files are understood too.
Output: a JSON object per line with `index`, `id`, `text`, `finish_reason` and `usage`, or `error`, in the order in which \
rows are done, and `request_digest`, which tells a later run whether the row still asks the same. A run that was stopped continues when the same command is given again; rows that failed are asked again, \
and of several lines of a row the last one counts.
Exit code: 0 every row has an answer; 3 some rows failed; 1 none could be answered, or the run ended early; 64 wrong usage.

  kvasir generate --prompt 'The capital of France is' --max-tokens 8
  kvasir generate --input questions.jsonl --output answers.jsonl";

/// What to generate from, and to where.
#[derive(Debug, Args)]
pub(crate) struct GenerateArgs {
    #[command(flatten)]
    flags: Flags<Offline>,
    #[command(flatten)]
    sampling: SamplingArgs,
    /// File with a row per line; - is standard input
    #[arg(
        long,
        short,
        value_name = "FILE",
        required_unless_present = "prompt",
        conflicts_with = "prompt"
    )]
    input: Option<PathBuf>,
    /// A prompt; repeatable
    #[arg(long, short, value_name = "TEXT")]
    prompt: Vec<String>,
    /// File to write or continue; - is standard output
    #[arg(long, short, value_name = "FILE", default_value = "-")]
    output: PathBuf,
    /// How the input is written [default: from the file's name or first character]
    #[arg(long, value_name = "FORMAT")]
    input_format: Option<InputFormat>,
    /// Take a plain prompt as a user's message instead of the beginning of a text
    #[arg(long)]
    chat: bool,
    /// Continue an existing output: rows that are done are skipped (the default)
    #[arg(long, conflicts_with = "overwrite")]
    resume: bool,
    /// Begin anew, even if the output exists
    #[arg(long)]
    overwrite: bool,
    /// Rows in work at the same time [default: twice max-num-seqs]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    concurrency: Option<u32>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum InputFormat {
    /// A JSON object per line
    Jsonl,
    /// A prompt per line
    Text,
}

pub(crate) fn run(args: GenerateArgs) -> Result<(), Failure> {
    let mut settings = Settings::resolve(args.flags)?;
    settings.quiet();
    logging::start(&settings.process);
    settings.log_warnings();
    let input = input(args.input.as_deref(), args.prompt, args.input_format)?;
    // The output is opened before the model is loaded: what is wrong with it should be said at once.
    let (mut output, done) = output(&args.output, args.input.as_deref(), args.overwrite)?;
    let rules = RowRules {
        format: input.format,
        as_chat: args.chat,
        defaults: args.sampling.fields(&settings.model),
        model: settings.model.model.value.clone().unwrap_or_default(),
    };
    let runtime = runtime()?;
    let twice_seqs = settings.engine.max_num_seqs.value.get().saturating_mul(2);
    let concurrency = args.concurrency.unwrap_or(twice_seqs) as usize;
    let llm = runtime.block_on(Llm::load(settings.llm_options()))?;
    let total = input.total;
    let began = Instant::now();
    // A bar and rows on the same terminal would fight for the line.
    let writes_to_terminal = args.output == Path::new("-") && io::stdout().is_terminal();
    let bar = if writes_to_terminal {
        indicatif::ProgressBar::hidden()
    } else {
        progress::rows_bar(total)
    };
    let on_row = |summary: &Summary| {
        bar.set_position(summary.answered + summary.failed + summary.skipped);
        bar.set_message(format!("{:.0} tokens/s", rate(summary, began)));
    };
    let plan = RunPlan {
        rules: &rules,
        done: &done,
        answerer: &llm,
        concurrency,
        on_row: &on_row,
    };
    let result = runtime.block_on(async {
        tokio::select! {
            result = generate::run(input.into_lines(), plan, &mut *output, stopped()) => {
                result.map_err(|error| Failure::failed(&error))
            }
            message = llm.crashed() => Err(Failure::SchedulerCrashed(message)),
        }
    });
    bar.finish_and_clear();
    runtime.block_on(llm.shut_down());
    finish(&result?, &done, began)
}

fn input(path: Option<&Path>, prompts: Vec<String>, format: Option<InputFormat>) -> Result<Input, Failure> {
    let Some(path) = path else {
        return Ok(Input::of_prompts(prompts));
    };
    let format = format.map(|format| match format {
        InputFormat::Jsonl => Format::Jsonl,
        InputFormat::Text => Format::Text,
    });
    open_input(path, format)
        .map_err(|error| Failure::Usage(format!("can't read {}: {error}", path.display())))
}

fn output(path: &Path, input: Option<&Path>, overwrite: bool) -> Result<(Box<dyn Write>, Done), Failure> {
    if path == Path::new("-") {
        return Ok((Box::new(io::stdout()), Done::default()));
    }
    let (file, done) =
        open_output(path, input, overwrite).map_err(|error| Failure::Usage(error.to_string()))?;
    if done.len() + done.num_failed() > 0 {
        let again = match done.num_failed() {
            0 => String::new(),
            failed => format!(", {failed} failed and are asked again"),
        };
        say(&format!(
            "continuing {}: {} rows are done{again}",
            path.display(),
            done.len()
        ));
    }
    Ok((Box::new(file), done))
}

async fn stopped() {
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending::<()>().await;
    }
}

fn rate(summary: &Summary, began: Instant) -> f64 {
    summary.usage.completion_tokens as f64 / began.elapsed().as_secs_f64().max(1e-3)
}

fn finish(summary: &Summary, done: &Done, began: Instant) -> Result<(), Failure> {
    let skipped = if summary.skipped > 0 {
        format!(", {} skipped", summary.skipped)
    } else {
        String::new()
    };
    let failed = if summary.failed > 0 {
        format!(", {} with errors", summary.failed)
    } else {
        String::new()
    };
    let figures = format!(
        "{} rows answered{failed}{skipped}, {} tokens in {:.1} s, {:.1} tokens/s",
        summary.answered,
        summary.usage.completion_tokens,
        began.elapsed().as_secs_f64(),
        rate(summary, began),
    );
    if summary.interrupted {
        return Err(Failure::Failed(format!(
            "stopped before the end: {figures}; with an --output file the same command continues"
        )));
    }
    if summary.failed > 0 && summary.answered + summary.skipped == 0 {
        return Err(Failure::Failed(format!("no row could be answered: {figures}")));
    }
    let left_over = (done.len() as u64).saturating_sub(summary.skipped);
    if left_over > 0 {
        say(&format!(
            "the output also holds {left_over} rows of an earlier run that this input doesn't have; --overwrite begins anew"
        ));
    }
    if summary.failed > 0 {
        return Err(Failure::SomeRows(format!(
            "{figures}; the output says why rows failed, and the same command asks them again"
        )));
    }
    say(&figures);
    Ok(())
}
