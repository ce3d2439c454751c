//! `kvasir engine`: an engine behind gRPC.

use std::sync::Arc;
use std::time::Duration;

use kvasir_service::Engine;
use kvasir_service::grpc::GrpcServer;
use tokio_util::sync::CancellationToken;

use super::flags::{self, Flags};
use super::ports::{self, Ports};
use super::settings::Settings;
use super::{banner, runtime, say};
use crate::exit::Failure;
use crate::load::{LoadError, Place, start_engine};
use crate::logging;
use crate::progress::Bars;
use crate::signals::{DumpSignal, Signals};

/// How long sessions may take to send what is queued, once no request runs any more.
const FLUSH: Duration = Duration::from_secs(2);

pub(crate) fn run(flags: Flags<flags::Engine>) -> Result<(), Failure> {
    let settings = Settings::resolve(flags)?;
    logging::start(&settings.process);
    settings.log_warnings();
    let runtime = runtime()?;
    let result = runtime.block_on(serve(settings));
    runtime.shutdown_timeout(Duration::from_millis(200));
    result
}

async fn serve(mut settings: Settings) -> Result<(), Failure> {
    let mut signals = Signals::catch()?;
    let mut dump_signal = DumpSignal::catch()?;
    // Early, because files that can't be used and addresses in use should be found before a model is loaded, and probes want an answer meanwhile.
    let listener = ports::listener(&settings.access, &settings.grpc.listen.value)?;
    let ports = Ports::open(&settings.access).await?;
    let (mut model, mut config) = (settings.model.clone(), settings.engine.clone());
    let mut place = Place {
        gateway_mode: settings.access.gateway_mode.value,
        config: settings.place.clone(),
    };
    let loading = tokio::task::spawn_blocking(move || {
        start_engine(&mut model, &mut config, &mut place, &Bars::default())
            .map(|engine| (engine, model, config, place))
    });
    let (engine, model, config, place) = tokio::select! {
        loaded = loading => loaded
            .map_err(|error| Failure::failed(&error))?
            .map_err(LoadError::of_engine)?,
        name = signals.next() => {
            tracing::info!("{name} while starting; nothing to drain");
            return Ok(());
        }
    };
    (settings.model, settings.engine, settings.place) = (model, config, place.config);
    // Late, because the socket of an engine tells an edge that there is one.
    let server = listener.bind().await.map_err(|error| Failure::failed(&error))?;
    let engine = Arc::new(engine);
    let served_name = settings.model.served_model_name.value.first();
    let _ports = ports.serve(&engine, served_name.map(String::as_str));
    show(&settings, &engine, &server.target());
    let timeout = settings.process.shutdown_timeout.value.0;
    let result = tokio::select! {
        result = run_until_stopped(&engine, server, &mut signals, timeout) => result,
        never = dump_signal.serve(&engine) => never,
    };
    if result.is_ok() {
        engine.shutdown().await;
    } else {
        engine.stop();
    }
    result
}

fn show(settings: &Settings, engine: &Engine, target: &str) {
    let model = &engine.model_info().model;
    if settings.process.json.value {
        tracing::info!(model, target, configuration = %settings.report().to_json(), "ready");
        return;
    }
    banner::show_configuration(settings);
    say(&format!("\nServing {model} over gRPC on {target}\n"));
    // Only gateways have the certificates for TLS.
    if !target.starts_with("https://") && !settings.access.gateway_mode.value {
        say(&format!("kvasir serve --engine {target}\n"));
    }
}

async fn run_until_stopped(
    engine: &Engine,
    server: GrpcServer,
    signals: &mut Signals,
    timeout: Duration,
) -> Result<(), Failure> {
    let stop = CancellationToken::new();
    let mut serving = std::pin::pin!(server.serve(engine, stop.clone()));
    let name = tokio::select! {
        ended = &mut serving => return ended.map_err(|error| Failure::failed(&error)),
        message = engine.failed() => return Err(Failure::SchedulerCrashed(message)),
        name = signals.next() => name,
    };
    tracing::info!(
        "{name}: no new requests; running ones have {} s",
        timeout.as_secs_f64()
    );
    let mut draining = std::pin::pin!(engine.drain(timeout));
    let remaining = tokio::select! {
        remaining = &mut draining => remaining,
        // It only ends by itself if it fails; the requests are lost then.
        ended = &mut serving => return ended.map_err(|error| Failure::failed(&error)),
        message = engine.failed() => return Err(Failure::SchedulerCrashed(message)),
        _ = signals.next() => return Err(Failure::SecondSignal),
    };
    stop.cancel();
    if remaining > 0 {
        return Err(Failure::ForcedShutdown {
            timeout_seconds: timeout.as_secs_f64(),
            remaining,
        });
    }
    match tokio::time::timeout(FLUSH, serving).await {
        Ok(ended) => ended.map_err(|error| Failure::failed(&error)),
        // An edge that keeps its idle connection open must not keep us.
        Err(_) => Ok(()),
    }
}
