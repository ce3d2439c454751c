//! An engine: its thread, its clients and its end.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use kvasir_backend::{ExecError, Executor};
use kvasir_client::types::{LoadReport, ModelInfo};
use kvasir_client::{EngineClient, assets};
use kvasir_engine_core::Scheduler;

use crate::dump::{self, Dump, DumpError};
use crate::host::Host;
use crate::journal::Journal;
use crate::local::LocalClient;
use crate::mailbox::Command;
use crate::setup::{EngineSetup, ServiceError, resolve_model};
use crate::shared::{EngineState, Health, Shared};
use crate::watchdog;
use crate::worker::{Published, Worker};
use crate::zmq::{self, Format, ZmqConfig, ZmqPublisher};

/// A running engine. Dropping it stops it without waiting; [`Engine::shutdown`] waits.
#[derive(Debug)]
pub struct Engine {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
    publisher: Option<ZmqPublisher>,
}

/// Whether an engine takes requests.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Condition {
    /// It does.
    Ready,
    /// It finishes what it has, or has ended.
    Draining,
    /// It makes no progress or has failed, for this reason.
    Broken(String),
}

impl Engine {
    /// Checks the setup, starts the scheduler thread and waits until the executor is warm.
    ///
    /// # Errors
    /// If the setup can't work, or the executor can't run a step.
    pub fn start(setup: EngineSetup) -> Result<Self, ServiceError> {
        let model = resolve_model(&setup)?;
        let EngineSetup {
            executor,
            scheduler: config,
            policies,
            model: _,
            assets,
            cache,
            identity,
            kv_events,
            limits,
            diagnostics,
        } = setup;
        if let Some(folder) = &diagnostics.dump_dir {
            dump::prepare(folder).map_err(ServiceError::DumpDir)?;
        }
        let warmup_tokens = (config.max_num_batched_tokens as usize).min(limits.max_warmup_tokens);
        let max_in_flight = policies.max_in_flight;
        check_in_flight(&*executor, max_in_flight)?;
        let mut scheduler = Scheduler::with_policies(config, policies).map_err(ServiceError::Config)?;
        scheduler.record(diagnostics.recorded_inputs);
        let journal = Journal::new(diagnostics.step_records, diagnostics.recorded_inputs);
        let (published, publisher) = kv_events
            .map(|config| publish(&config, &model, identity.dp_rank))
            .transpose()?
            .unzip();
        let shared = Arc::new(Shared::new(
            model,
            assets::chunks(&assets).collect(),
            cache,
            identity,
            limits,
            diagnostics,
            Host::new(scheduler, journal),
        ));
        let work = Work {
            executor,
            warmup_tokens,
            max_in_flight,
            published,
        };
        let thread = work.spawn(&shared)?;
        watchdog::spawn(Arc::clone(&shared)).map_err(ServiceError::Thread)?;
        Ok(Self {
            shared,
            thread: Mutex::new(Some(thread)),
            publisher,
        })
    }

    /// A client in this process, with request ids of its own. Clones of the `Arc` share them.
    pub fn client(&self) -> Arc<dyn EngineClient> {
        Arc::new(LocalClient::new(Arc::clone(&self.shared)))
    }

    /// What is served, as clients see it.
    pub fn model_info(&self) -> &ModelInfo {
        &self.shared.model
    }

    /// Says that the ranks of this engine's group have joined again, which emptied their caches: readers of its news start over under
    /// the new epoch.
    pub fn begin_epoch(&self, epoch: u64) {
        self.shared.kv_feed.begin_epoch(epoch);
        if self.shared.mailbox.post(Command::Look).is_err() {
            tracing::trace!("the engine had stopped already");
        }
    }

    /// Whether it takes requests.
    pub fn condition(&self) -> Condition {
        if let Health::Broken(reason) = &*self.shared.health.borrow() {
            return Condition::Broken(reason.clone());
        }
        match &*self.shared.state.borrow() {
            EngineState::Ready => Condition::Ready,
            EngineState::Draining | EngineState::Stopped => Condition::Draining,
            EngineState::Failed(message) => Condition::Broken(message.clone()),
        }
    }

    /// Its load, also while it is stuck.
    pub fn load(&self) -> LoadReport {
        self.shared.load_report()
    }

    /// Where KV events are published and where replays are asked for, with the ports that were taken.
    pub fn kv_event_endpoints(&self) -> Option<(&str, Option<&str>)> {
        let publisher = self.publisher.as_ref()?;
        Some((&publisher.endpoint, publisher.replay_endpoint.as_deref()))
    }

    /// Stops admission and waits for running requests, at most `deadline`. Returns how many still run.
    pub async fn drain(&self, deadline: Duration) -> u32 {
        self.shared.drain(deadline).await
    }

    /// Ends every request and the thread. Requests that still run fail with code UNAVAILABLE; drain first to let them finish.
    pub fn stop(&self) {
        self.shared.advance(EngineState::Stopped);
        if self.shared.mailbox.post(Command::Stop).is_err() {
            tracing::trace!("the engine had stopped already");
        }
    }

    /// Stops, and waits until the steps in flight have ended and the thread is gone, or is taken for stuck.
    pub async fn shutdown(&self) {
        self.stop();
        let (mut ended, mut health) = (self.shared.ended.subscribe(), self.shared.health.subscribe());
        // Waiting fails only when the sender is gone, and `self` holds it.
        let stuck = tokio::select! {
            biased;
            _ = ended.wait_for(|ended| *ended) => false,
            _ = health.wait_for(|health| *health != Health::Fine) => true,
        };
        if stuck {
            tracing::warn!("the executor doesn't come back; its thread is left behind");
            return;
        }
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // It has nothing left to do. It catches its panics and reports them through `failed`.
            drop(thread.join());
        }
    }

    /// The state of the engine now, also while it is stuck.
    pub fn dump(&self, cause: &str) -> Dump {
        dump::capture(&self.shared, cause)
    }

    /// Writes the state of the engine now to the folder for dumps.
    ///
    /// # Errors
    /// If there is no such folder, or it can't be written to.
    pub fn write_dump(&self, cause: &str) -> Result<PathBuf, DumpError> {
        let folder = self.shared.diagnostics.dump_dir.as_ref();
        let folder = folder.ok_or(DumpError::NoFolder)?;
        dump::write(folder, "asked", &self.dump(cause).to_bytes())
    }

    /// Resolves with the message if the scheduler thread panics; the process should end with code 70 then. Pending for ever otherwise.
    pub fn failed(&self) -> impl Future<Output = String> + Send + 'static {
        let mut state = self.shared.state.subscribe();
        async move {
            loop {
                if let EngineState::Failed(message) = &*state.borrow_and_update() {
                    return message.clone();
                }
                if state.changed().await.is_err() {
                    // The engine is gone without having failed.
                    std::future::pending::<()>().await;
                }
            }
        }
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.stop();
    }
}

/// What the scheduler thread owns.
struct Work {
    executor: Box<dyn Executor>,
    warmup_tokens: usize,
    max_in_flight: u32,
    published: Option<Published>,
}

impl Work {
    /// Starts the thread and waits until the executor is warm.
    fn spawn(mut self, shared: &Arc<Shared>) -> Result<JoinHandle<()>, ServiceError> {
        let (started, start) = mpsc::sync_channel::<Result<(), ExecError>>(1);
        let shared = Arc::clone(shared);
        let thread = std::thread::Builder::new()
            .name("kvasir-scheduler".to_owned())
            .spawn(move || {
                let warm = self.executor.warmup(self.warmup_tokens);
                let failed = warm.is_err();
                // If nobody waits for it, the engine was dropped already and the mailbox says stop.
                drop(started.send(warm));
                if !failed {
                    Worker::new(
                        Arc::clone(&shared),
                        self.executor,
                        self.max_in_flight,
                        self.published,
                    )
                    .run();
                }
                shared.host.pulse.end();
                shared.ended.send_replace(true);
            })
            .map_err(ServiceError::Thread)?;
        start
            .recv()
            .map_err(|_| ServiceError::StartPanicked)?
            .map_err(ServiceError::Warmup)?;
        Ok(thread)
    }
}

fn check_in_flight(executor: &dyn Executor, asked: u32) -> Result<(), ServiceError> {
    let limit = executor.max_in_flight();
    if asked as usize > limit {
        return Err(ServiceError::StepsInFlight { asked, limit });
    }
    Ok(())
}

/// Opens the sockets of the event publisher.
fn publish(
    config: &ZmqConfig,
    model: &ModelInfo,
    dp_rank: u32,
) -> Result<(Published, ZmqPublisher), ServiceError> {
    let format = Format {
        block_size: model.block_size,
        dp_rank,
        int_hashes: config.int_block_hashes,
    };
    let (sender, publisher) = zmq::start(config, dp_rank).map_err(ServiceError::KvEvents)?;
    Ok((Published { sender, format }, publisher))
}
