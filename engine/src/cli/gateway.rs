//! `kvasir gateway`: serves as the door of a service, checks its configuration and makes API keys.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::{Args, Subcommand, ValueEnum};
use kvasir_config::LogLevel;
use kvasir_config::gateway::{MAX_GATEWAY_FILE_BYTES, gateway_schema, parse_gateway};
use kvasir_edge::Shutdown;
use kvasir_files::{Limit, read_text_or_stdin};
use kvasir_gateway::{Gateway, Settings, StartError, new_key};
use kvasir_gateway_core::names::TenantName;
use kvasir_gateway_core::time::UnixSeconds;

use tokio_util::sync::CancellationToken;

use super::{runtime, say};
use crate::exit::Failure;
use crate::logging;
use crate::signals::{ReopenSignal, Signals};

pub(crate) const AFTER_HELP: &str = "\
  kvasir gateway keys new --tenant acme >> keys.yaml
  kvasir gateway check --files gateway.yaml
  kvasir gateway schema > gateway.schema.json";

/// What a ConfigMap holds; a thousand tenants take a third of it.
const FILE_LIMIT: Limit = Limit {
    max_bytes: MAX_GATEWAY_FILE_BYTES as u64,
    advice: "is it the gateway's configuration? Keys may be in files of their own, under auth.apiKeys.files",
};

const SECONDS_PER_DAY: i64 = 24 * 60 * 60;

/// What to do.
#[derive(Debug, Args)]
pub(crate) struct GatewayArgs {
    #[command(subcommand)]
    command: GatewayCommand,
}

#[derive(Debug, Subcommand)]
enum GatewayCommand {
    /// Serve clients with the engines that the configuration names
    ///
    /// SIGTERM and SIGINT end it after the running answers, a second one at once. SIGHUP opens the configuration's auditFile anew, for tools
    /// that rotate logs; the configuration needs no signal, since its changes are noticed.
    Run {
        /// The YAML file; new versions of it are taken over while the gateway runs
        #[arg(long, value_name = "FILE", env = "KVASIR_GATEWAY_CONFIG")]
        config: PathBuf,
        /// Least severe message: trace, debug, info, warn or error
        #[arg(long, value_name = "LEVEL", env = "KVASIR_LOG_LEVEL", default_value = "info", value_parser = log_level)]
        log_level: LogLevel,
        /// One JSON object per log line
        #[arg(long, env = "KVASIR_JSON")]
        json: bool,
    },
    /// Check a gateway's configuration; exit code 64 says that it can't be used
    Check {
        /// The YAML file; - is standard input
        file: PathBuf,
        /// Read the files that it names, too: keys, key sets and the salt's secret
        #[arg(long)]
        files: bool,
    },
    /// Print the JSON Schema of the configuration
    Schema,
    /// Make API keys
    Keys {
        #[command(subcommand)]
        command: KeysCommand,
    },
}

#[derive(Debug, Subcommand)]
enum KeysCommand {
    /// Make a key: the key itself goes to standard error, once, and what a gateway needs to know of it to standard output
    New {
        /// Whose key it is
        #[arg(long, value_name = "NAME", value_parser = TenantName::new)]
        tenant: TenantName,
        /// Days until it expires [default: never]
        #[arg(long, value_name = "DAYS", value_parser = clap::value_parser!(u32).range(1..))]
        expires_in_days: Option<u32>,
        /// What to print to standard output
        #[arg(long, value_enum, default_value_t)]
        format: KeyFormat,
        /// Name of the Secret
        #[arg(long, value_name = "NAME", default_value = "kvasir-api-keys")]
        secret_name: String,
    },
}

/// How a key's record is printed.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum KeyFormat {
    /// A key file, for auth.apiKeys.files
    #[default]
    File,
    /// The manifest of a Kubernetes Secret with a key file
    Secret,
}

pub(crate) fn run(args: GatewayArgs) -> Result<(), Failure> {
    match args.command {
        GatewayCommand::Run {
            config,
            log_level,
            json,
        } => {
            logging::start_at(log_level, json);
            let runtime = runtime()?;
            let result = runtime.block_on(serve(&config));
            // What still runs has been told, or has had its time.
            runtime.shutdown_timeout(Duration::from_millis(200));
            result
        }
        GatewayCommand::Check { file, files } => check(&file, files),
        GatewayCommand::Schema => print(&format!("{:#}\n", gateway_schema())),
        GatewayCommand::Keys {
            command:
                KeysCommand::New {
                    tenant,
                    expires_in_days,
                    format,
                    secret_name,
                },
        } => make_key(tenant, expires_in_days, format, &secret_name),
    }
}

async fn serve(config: &Path) -> Result<(), Failure> {
    let mut signals = Signals::catch_but_hang_up()?;
    let mut reopen = ReopenSignal::catch()?;
    let gateway = Gateway::start(config).await.map_err(|error| match error {
        StartError::Config(_) | StartError::Outside(_) | StartError::Spans(_) => {
            Failure::Usage(error.to_string())
        }
        StartError::Tls(_) | StartError::Bind { .. } | StartError::Audit { .. } => Failure::failed(&error),
    })?;
    let (url, operations) = (gateway.url(), gateway.operations_address());
    tracing::info!(url, %operations, "the gateway serves");
    say(&format!(
        "Serving on {url}, probes and metrics on http://{operations}"
    ));
    let audit_log = gateway.audit_log();
    let stop = CancellationToken::new();
    let mut serving = std::pin::pin!(gateway.serve(stop.clone()));
    loop {
        tokio::select! {
            ended = &mut serving => {
                return match ended.map_err(|error| Failure::failed(&error))? {
                    Shutdown::Clean => Ok(()),
                    Shutdown::Forced { remaining } => Err(Failure::GatewayForced {
                        remaining: u32::try_from(remaining).unwrap_or(u32::MAX),
                    }),
                };
            }
            () = reopen.next() => audit_log.reopen(),
            name = signals.next() => {
                if stop.is_cancelled() {
                    return Err(Failure::SecondSignal);
                }
                tracing::info!("{name}: no new requests; running ones may end");
                stop.cancel();
            }
        }
    }
}

fn log_level(text: &str) -> Result<LogLevel, String> {
    match text {
        "trace" => Ok(LogLevel::Trace),
        "debug" => Ok(LogLevel::Debug),
        "info" => Ok(LogLevel::Info),
        "warn" => Ok(LogLevel::Warn),
        "error" => Ok(LogLevel::Error),
        _ => Err("use trace, debug, info, warn or error".to_owned()),
    }
}

fn check(file: &Path, with_files: bool) -> Result<(), Failure> {
    let name = file.display();
    let yaml = read_text_or_stdin(file, FILE_LIMIT)?;
    let config = parse_gateway(&yaml).map_err(|faults| {
        let lines = faults.to_string().replace('\n', "\n  ");
        Failure::Usage(format!("{name} can't be used:\n  {lines}"))
    })?;
    if with_files {
        Settings::load(&config).map_err(|error| Failure::Usage(format!("{name} can't be used: {error}")))?;
    }
    let unread = if with_files {
        ""
    } else {
        "; the files that it names were not read, which --files does"
    };
    let models = match config.models.len() {
        0 => String::new(),
        others => format!(", models {}", others + 1),
    };
    say(&format!(
        "{name} is good: tenants {}{models}{unread}",
        config.tenants.len()
    ));
    Ok(())
}

fn make_key(
    tenant: TenantName,
    expires_in_days: Option<u32>,
    format: KeyFormat,
    secret_name: &str,
) -> Result<(), Failure> {
    let expires = expires_in_days.map(expiry).transpose()?;
    let key = new_key(tenant, expires);
    let record = match format {
        KeyFormat::File => key.key_file(),
        KeyFormat::Secret => key.secret_manifest(secret_name),
    };
    print(&format!("{record}\n"))?;
    say(&format!("the key, shown only now: {}", key.text()));
    Ok(())
}

fn expiry(days: u32) -> Result<UnixSeconds, Failure> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.map_err(|_| Failure::Failed("the clock is set before 1970".to_owned()))?;
    let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
    Ok(UnixSeconds(now).plus(i64::from(days) * SECONDS_PER_DAY))
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
