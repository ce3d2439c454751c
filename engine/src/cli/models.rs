//! `kvasir models`: what is in the cache.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use kvasir_config::{ByteCount, ProcessConfig};
use serde_json::json;

use super::say;
use crate::copy;
use crate::exit::Failure;
use crate::fetch::{self, CachedModel, FetchOptions};
use crate::logging;
use crate::progress::{Bars, Watcher};

pub(crate) const AFTER_HELP: &str = "\
  kvasir models list
  kvasir models pull org/name:Q4_K_M
  kvasir serve $(kvasir models path)
  kvasir models rm org/name";

/// What to do with which model.
#[derive(Debug, Args)]
pub(crate) struct ModelsArgs {
    #[command(subcommand)]
    command: ModelsCommand,
    /// Folder that fetched models are kept in [default: KVASIR_CACHE, else the user's cache folder]
    #[arg(long, global = true, value_name = "DIR")]
    model_cache: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum ModelsCommand {
    /// List the models in the cache
    #[command(visible_alias = "ls")]
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Fetch a model into the cache
    Pull {
        /// Hugging Face repository as org/name[@revision][:quant or :file.gguf] [default: SmolLM2-135M-Instruct]
        model: Option<String>,
    },
    /// Remove a model from the cache
    #[command(visible_alias = "remove")]
    Rm {
        /// Name as `kvasir models list` shows it
        #[arg(required = true)]
        models: Vec<String>,
    },
    /// Print the SHA-256 of a model, as --model-sha256 and spec.model.sha256 take it
    Digest {
        /// A name, as for `kvasir serve` [default: SmolLM2-135M-Instruct]
        model: Option<String>,
    },
    /// Print the path of a model, fetching it if need be
    Path {
        /// A name, as for `kvasir serve` [default: SmolLM2-135M-Instruct]
        model: Option<String>,
    },
    /// Copy a model's file, or its folder's files, into another folder
    #[command(after_help = COPY_AFTER_HELP)]
    Copy {
        /// File or folder
        source: PathBuf,
        /// Folder, made if it is missing
        target: PathBuf,
    },
    /// Put this program with its libraries into a folder, to run in an image that has none
    #[command(after_help = INSTALL_AFTER_HELP)]
    InstallCopier {
        /// Folder, made if it is missing
        folder: PathBuf,
    },
}

const COPY_AFTER_HELP: &str = "\
  kvasir models copy /models /volume

Exit code: 0 all is there; 1 failed; 65 a file can't be read; 66 there is nothing; 73 no space left.";

const INSTALL_AFTER_HELP: &str = "\
  kvasir models install-copier /tools
  /tools/loader --library-path /tools /tools/kvasir models copy /models /volume";

pub(crate) fn run(args: ModelsArgs) -> Result<(), Failure> {
    logging::start(&ProcessConfig::default());
    let cache = args.model_cache;
    let options = || FetchOptions::from_env(cache).map_err(|error| Failure::failed(&error));
    match args.command {
        ModelsCommand::List { json } => list(&options()?, json),
        ModelsCommand::Pull { model } => {
            let local = resolve(model.as_deref(), &options()?)?;
            say(&format!("{} is in {}", local.name, local.path.display()));
            Ok(())
        }
        ModelsCommand::Rm { models } => remove(&models, &options()?),
        ModelsCommand::Digest { model } => {
            let local = resolve(model.as_deref(), &options()?)?;
            let digest = crate::load::digest(&local.path).map_err(|error| Failure::failed(&error))?;
            print(&format!("{digest}\n"))
        }
        ModelsCommand::Path { model } => {
            let local = resolve(model.as_deref(), &options()?)?;
            print(&format!("{}\n", local.path.display()))
        }
        ModelsCommand::Copy { source, target } => copy_files(&source, &target),
        ModelsCommand::InstallCopier { folder } => Ok(copy::install(&folder)?),
    }
}

fn copy_files(source: &Path, target: &Path) -> Result<(), Failure> {
    let copied = copy::copy(source, target)?;
    let (files, bytes) = (copied.files, ByteCount(copied.bytes));
    let what = if files == 1 { "file" } else { "files" };
    say(&format!(
        "{} has {files} {what} of {} ({bytes})",
        target.display(),
        source.display()
    ));
    Ok(())
}

fn resolve(model: Option<&str>, options: &FetchOptions) -> Result<fetch::LocalModel, Failure> {
    let bars = Bars::default();
    let on_event = |event: &fetch::FetchEvent<'_>| bars.on_fetch(event);
    fetch::resolve(model, options, &on_event).map_err(|error| Failure::failed(&error))
}

fn list(options: &FetchOptions, is_json: bool) -> Result<(), Failure> {
    let models = fetch::list(options).map_err(|error| Failure::failed(&error))?;
    if is_json {
        let rows: Vec<_> = models
            .iter()
            .map(|model| json!({ "name": model.name, "path": model.path, "bytes": model.bytes }))
            .collect();
        return print(&format!("{}\n", json!(rows)));
    }
    if models.is_empty() {
        say("no models in the cache; `kvasir models pull` fetches the default one");
        return Ok(());
    }
    print(&table(&models))
}

fn table(models: &[CachedModel]) -> String {
    let width = models
        .iter()
        .map(|model| model.name.len())
        .max()
        .unwrap_or(0)
        .max("NAME".len());
    let mut text = format!("{:width$}  {:>10}  PATH\n", "NAME", "SIZE");
    for model in models {
        let size = ByteCount(model.bytes).to_string();
        let path = model.path.display();
        let line = format!("{:width$}  {size:>10}  {path}\n", model.name);
        text.push_str(&line);
    }
    text
}

fn remove(names: &[String], options: &FetchOptions) -> Result<(), Failure> {
    for name in names {
        let removed = fetch::remove(name, options).map_err(|error| Failure::failed(&error))?;
        say(&format!(
            "removed {} ({})",
            removed.name,
            ByteCount(removed.bytes)
        ));
    }
    Ok(())
}

fn print(text: &str) -> Result<(), Failure> {
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        // Whoever read has enough, as `head` does.
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Failure::Failed(format!("can't write: {error}")))
        }
        _ => Ok(()),
    }
}
