//! `kvasir serve`: the HTTP edge, with an engine inside or before one.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use kvasir_client::{EngineClient, GrpcClient};
use kvasir_config::{Bind, LocalAddress, Secret, Source, is_loopback_host};
use kvasir_edge::{ApiKey, Edge, EdgeConfig, Shutdown, Spans};
use kvasir_service::Engine;
use tokio_util::sync::CancellationToken;

use super::banner;
use super::flags::{Flags, Serve};
use super::listening::Listening;
use super::runtime;
use super::settings::Settings;
use crate::exit::Failure;
use crate::llm::generation_config;
use crate::load::{Place, start_engine};
use crate::logging;
use crate::progress::Bars;
use crate::signals::{DumpSignal, Signals};

/// Options of the model and the scheduler that an edge before an engine has a use for.
const EDGE_KEYS: &[&str] = &[
    "served-model-name",
    "trust-request-chat-template",
    "generation-config",
    "seed",
];

pub(crate) fn run(flags: Flags<Serve>) -> Result<(), Failure> {
    let mut settings = Settings::resolve(flags)?;
    logging::start(&settings.process);
    settings.log_warnings();
    let keys = Keys {
        clients: settings.api_keys()?,
        admins: settings.admin_api_keys()?,
    };
    let bind = settings.http.bind(!keys.clients.is_empty())?;
    settings.http.check_admin(&bind, &keys.clients, &keys.admins)?;
    warn_if_open(&bind, &keys.clients);
    warn_of_dumps(&settings, &keys);
    if settings.http.engine.value.is_some() {
        settings.restrict_to_edge(EDGE_KEYS)?;
    }
    let runtime = runtime()?;
    let result = runtime.block_on(serve(settings, &keys, &bind));
    // What still runs has been failed or is of no use any more.
    runtime.shutdown_timeout(Duration::from_millis(200));
    result
}

/// Who may ask for what.
#[derive(Debug, Default)]
struct Keys {
    clients: Vec<Secret>,
    admins: Vec<Secret>,
}

/// Says whose hands dumps may get into, and what was asked for in vain.
fn warn_of_dumps(settings: &Settings, keys: &Keys) {
    if settings.engine.record_inputs.value > 0
        && settings.engine.dump_dir.value.is_none()
        && !settings.http.enable_debug_dump.value
    {
        tracing::warn!(
            "record-inputs costs time and memory, and nothing can fetch the recording: give --dump-dir or --enable-debug-dump"
        );
    }
    if settings.http.enable_debug_dump.value {
        let who = if keys.admins.is_empty() {
            "everyone who can reach this port"
        } else {
            "every admin key"
        };
        tracing::warn!(
            "GET /debug/dump gives {who} the token ids of everybody's prompts (enable-debug-dump)"
        );
    } else if !keys.admins.is_empty() {
        tracing::warn!(
            "an admin key was given, but no admin route is served: --enable-debug-dump serves one"
        );
    }
}

fn warn_if_open(bind: &Bind, keys: &[Secret]) {
    if let Bind::Tcp { host, .. } = bind
        && keys.is_empty()
        && !is_loopback_host(host)
    {
        tracing::warn!(
            "NO API KEY IS SET AND {host} IS NOT LOOPBACK: everyone who can reach this port can use the model \
             and read the metrics"
        );
    }
}

async fn serve(mut settings: Settings, keys: &Keys, bind: &Bind) -> Result<(), Failure> {
    let mut signals = Signals::catch()?;
    let mut dump_signal = DumpSignal::catch()?;
    // Early, because an address in use should be found before a model is loaded. Who connects meanwhile waits.
    let listening = Listening::open(bind).await?;
    let started = tokio::select! {
        started = start(&mut settings) => started?,
        name = signals.next() => {
            tracing::info!("{name} while starting; nothing to drain");
            return Ok(());
        }
    };
    let mut config = edge_config(&settings, keys);
    if let (Some(engine), true) = (&started.engine, config.served_model_names.is_empty()) {
        let given = settings.model.model.value.as_deref();
        config.served_model_names = default_names(&engine.model_info().model, given);
    }
    let endpoint = settings.http.otlp_traces_endpoint.value.as_deref();
    config.spans = endpoint
        .map(|endpoint| Spans::open(endpoint, 100))
        .transpose()
        .map_err(|error| Failure::failed(&error))?;
    let spans = config.spans.clone();
    let edge = Edge::new(config, Arc::clone(&started.client))
        .await
        .map_err(|error| Failure::failed(&error))?;
    banner::show(&settings, &edge, listening.address(), !keys.clients.is_empty());
    let running = run_until_stopped(edge, listening, &mut signals, &started, &settings);
    let result = if let Some(engine) = &started.engine {
        tokio::select! {
            result = running => result,
            never = dump_signal.serve(engine) => never,
        }
    } else {
        tokio::select! {
            result = running => result,
            never = dump_signal.decline() => never,
        }
    };
    if let Some(spans) = spans {
        let closed = tokio::task::spawn_blocking(move || spans.close()).await;
        closed.map_err(|error| Failure::failed(&error))?;
    }
    if let Some(engine) = started.engine {
        finish(engine, &result).await;
    }
    result
}

/// A running engine, or a connection to one.
struct Started {
    engine: Option<Engine>,
    client: Arc<dyn EngineClient>,
}

async fn start(settings: &mut Settings) -> Result<Started, Failure> {
    if let Some(address) = &settings.http.engine.value {
        let target = match address {
            LocalAddress::Tcp(address) => format!("http://{address}"),
            LocalAddress::Unix(path) => format!("unix:{}", path.display()),
        };
        let client = GrpcClient::connect(&target)
            .await
            .map_err(|error| Failure::failed(&error))?;
        return Ok(Started {
            engine: None,
            client: Arc::new(client),
        });
    }
    let (mut model, mut config) = (settings.model.clone(), settings.engine.clone());
    let loading = tokio::task::spawn_blocking(move || {
        start_engine(&mut model, &mut config, &mut Place::default(), &Bars::default())
            .map(|engine| (engine, model, config))
    });
    let (engine, model, config) = loading.await.map_err(|error| Failure::failed(&error))??;
    (settings.model, settings.engine) = (model, config);
    let client = engine.client();
    Ok(Started {
        engine: Some(engine),
        client,
    })
}

/// The model's own name, and the repository or alias that it was asked for by, because clients ask for that one too.
fn default_names(name: &str, given: Option<&str>) -> Vec<String> {
    let alias = given.filter(|given| *given != name && !Path::new(given).exists());
    std::iter::once(name).chain(alias).map(str::to_owned).collect()
}

fn edge_config(settings: &Settings, keys: &Keys) -> EdgeConfig {
    let known = |keys: &[Secret]| keys.iter().map(|key| ApiKey::new(key.expose())).collect();
    let http = &settings.http;
    let keep_alive = http.sse_keep_alive_interval.value.0;
    EdgeConfig {
        served_model_names: settings.model.served_model_name.value.clone(),
        api_keys: known(&keys.clients),
        admin_api_keys: known(&keys.admins),
        strict: http.strict.value,
        enable_prompt_tokens_details: http.enable_prompt_tokens_details.value,
        enable_request_id_headers: http.enable_request_id_headers.value,
        enable_force_include_usage: http.enable_force_include_usage.value,
        sse_keep_alive: (!keep_alive.is_zero()).then_some(keep_alive),
        generation_config: generation_config(&settings.model),
        seed: settings.model.seed.value,
        enable_debug_dump: http.enable_debug_dump.value,
        trust_request_chat_template: settings.model.trust_request_chat_template.value,
        request_timeout: http.request_timeout.value.map(|timeout| timeout.0),
        shutdown_timeout: settings.process.shutdown_timeout.value.0,
        resolved_config: settings.report().to_json(),
        ..EdgeConfig::default()
    }
}

async fn run_until_stopped(
    edge: Edge,
    listening: Listening,
    signals: &mut Signals,
    started: &Started,
    settings: &Settings,
) -> Result<(), Failure> {
    let stop = CancellationToken::new();
    // The guard removes a Unix socket's file at the end.
    let (listener, _guard) = listening.into_parts();
    let timeout = settings.process.shutdown_timeout.value.0;
    let mut serving = std::pin::pin!(edge.serve(listener, stop.clone()));
    let crashed = async {
        match &started.engine {
            Some(engine) => engine.failed().await,
            None => std::future::pending().await,
        }
    };
    let mut crashed = std::pin::pin!(crashed);
    loop {
        tokio::select! {
            ended = &mut serving => {
                return match ended.map_err(|error| Failure::failed(&error))? {
                    Shutdown::Clean => Ok(()),
                    Shutdown::Forced { remaining } => Err(Failure::ForcedShutdown {
                        timeout_seconds: timeout.as_secs_f64(),
                        remaining: u32::try_from(remaining).unwrap_or(u32::MAX),
                    }),
                };
            }
            message = &mut crashed => return Err(Failure::SchedulerCrashed(message)),
            name = signals.next() => {
                if stop.is_cancelled() {
                    return Err(Failure::SecondSignal);
                }
                tracing::info!("{name}: no new requests; running ones have {} s", timeout.as_secs_f64());
                stop.cancel();
            }
        }
    }
}

/// Ends the engine; only after a clean end is it worth waiting for its last step.
async fn finish(engine: Engine, result: &Result<(), Failure>) {
    if result.is_ok() {
        engine.shutdown().await;
    } else {
        engine.stop();
    }
}

impl Settings {
    /// Keeps only what an edge before an engine has a use for.
    ///
    /// # Errors
    /// If a flag was given that only the engine could honour.
    fn restrict_to_edge(&mut self, edge_keys: &[&str]) -> Result<(), Failure> {
        let entries = [self.model.entries(), self.engine.entries()].concat();
        let useless = entries
            .iter()
            .filter(|entry| !edge_keys.contains(&entry.key) && entry.source.is_explicit());
        for entry in useless {
            let key = entry.key;
            if entry.source == Source::Flag {
                return Err(Failure::Usage(format!(
                    "--{key} has no effect with --engine: give it to `kvasir engine`, which holds the model"
                )));
            }
            tracing::warn!("{key} (from {}) has no effect with --engine", entry.source);
        }
        self.hide(
            entries
                .iter()
                .map(|entry| entry.key)
                .filter(|key| !edge_keys.contains(key)),
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn model_answers_to_the_name_it_was_asked_for_by_but_not_to_paths() {
        assert_eq!(default_names("SmolLM2", None), ["SmolLM2"]);
        assert_eq!(default_names("SmolLM2", Some("SmolLM2")), ["SmolLM2"]);
        assert_eq!(
            default_names("SmolLM2", Some("HuggingFaceTB/SmolLM2")),
            ["SmolLM2", "HuggingFaceTB/SmolLM2"]
        );
        assert_eq!(default_names("SmolLM2", Some(".")), ["SmolLM2"]);
    }
}

#[cfg(test)]
#[path = "serve_tests.rs"]
mod crash;
