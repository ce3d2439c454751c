//! The task of one engine: connects, learns what it serves, reads its news, and comes back after losses.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use kvasir_client::types::{ModelInfo, RankAddress};
use kvasir_client::{EngineClient, GrpcClient, KvCacheFollower, LoadStream, Recurring, TextAssetFiles};
use kvasir_edge::{Pipeline, PipelineOptions};
use kvasir_gateway_core::routing::{EngineAddress, EngineId, LoadReport, Revision};
use kvasir_tls::ClientTls;
use tokio::sync::watch;

use super::Pool;
use super::core::UNNAMED_REVISION;
use super::dial;
use super::dispatch::NoSource;
use super::feed::Feed;
use super::model::{Identity, RevisionModel};
use crate::discovery::{Target, TargetState};

const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// An engine that comes back should be found soon: it may be the only one.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// Longest wait for an answer that an engine gives from memory.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);

/// Follows one engine until it's dropped.
pub(super) async fn run(pool: Arc<Pool>, mut target: watch::Receiver<Target>, tls: Option<Arc<ClientTls>>) {
    let mut pause = FIRST_PAUSE;
    let mut trouble = Recurring::default();
    loop {
        let known = target.borrow_and_update().clone();
        match open(&pool, &known, tls.as_ref()).await {
            Ok(joined) => {
                pause = FIRST_PAUSE;
                trouble.is_over();
                tracing::info!(engine = %joined.address, at = %known.address, revision = %joined.revision, "an engine has joined");
                follow(&pool, &joined, &mut target).await;
                tracing::info!(engine = %joined.address, at = %known.address, "an engine has left");
            }
            Err(reason) => {
                pool.metrics.link_failed();
                if trouble.is_news(&reason, std::time::Instant::now()) {
                    tracing::warn!(at = %known.address, %reason, "an engine can't be used; it's tried again");
                }
            }
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// An engine in the router. Leaves when it's dropped.
struct Joined {
    pool: Arc<Pool>,
    client: Arc<GrpcClient>,
    address: EngineAddress,
    revision: Revision,
    id: EngineId,
    /// Most contents that its cache can hold.
    max_held: usize,
}

impl Drop for Joined {
    fn drop(&mut self) {
        self.pool.lock().leave(self.id);
    }
}

async fn open(pool: &Arc<Pool>, target: &Target, tls: Option<&Arc<ClientTls>>) -> Result<Joined, String> {
    let client = Arc::new(dial::connect(pool.patience, tls, target.address).await?);
    let info = soon(client.model_info()).await?;
    let load = soon(client.load()).await?;
    let named = match (&target.revision, info.revision.as_str()) {
        (Some(revision), _) => Some(revision.clone()),
        (None, "") => None,
        (None, name) => Some(Revision(name.into())),
    };
    let revision = named.unwrap_or_else(|| Revision(UNNAMED_REVISION.into()));
    let model = model(pool, &client, &revision, info).await?;
    let address = address(target, load.address.clone());
    let seats = model.info.max_num_seqs;
    let max_held = (model.num_blocks as usize).saturating_mul(MAX_GROUPS);
    let now = pool.clock.now();
    let id = {
        let mut core = pool.lock();
        let way = (Arc::clone(&client), seats);
        let id = core
            .join(address.clone(), &model, way, now)
            .map_err(|error| error.to_string())?;
        core.router
            .set_draining(id, load.draining || target.state != TargetState::Ready);
        core.router.report(id, report(&load), now);
        core.usher(now);
        id
    };
    Ok(Joined {
        pool: Arc::clone(pool),
        client,
        address,
        revision,
        id,
        max_held,
    })
}

/// Contents are counted once for each KV group, of which models have a few.
const MAX_GROUPS: usize = 8;

/// Where blocks and load of an engine belong. Its own word about its start and rank counts; without one its port names the place.
fn address(target: &Target, said: Option<RankAddress>) -> EngineAddress {
    let RankAddress {
        instance_id,
        epoch,
        dp_rank,
    } = said.unwrap_or_default();
    let place = match (&target.pod_uid, instance_id.as_str()) {
        (_, id) if !id.is_empty() => id.into(),
        (Some(uid), _) => Arc::clone(uid),
        (None, _) => target.address.to_string().into(),
    };
    EngineAddress {
        pod_uid: place,
        epoch,
        dp_rank,
    }
}

async fn follow(pool: &Arc<Pool>, joined: &Joined, target: &mut watch::Receiver<Target>) {
    let engine: Arc<dyn EngineClient> = Arc::clone(&joined.client) as Arc<dyn EngineClient>;
    let mut cache = KvCacheFollower::new(Arc::clone(&engine), joined.max_held);
    let mut feed = Feed::default();
    let mut says_draining = false;
    let mut loads: Option<LoadStream> = None;
    loop {
        tokio::select! {
            () = joined.client.disconnected() => return,
            change = cache.next() => {
                let mut core = pool.lock();
                feed.apply(&mut core.router, &joined.address, &change);
            }
            load = next_load(&engine, &mut loads) => {
                says_draining = load.draining;
                let now = pool.clock.now();
                let mut core = pool.lock();
                let is_ready = target.borrow().state == TargetState::Ready;
                core.router.set_draining(joined.id, says_draining || !is_ready);
                core.router.report(joined.id, report(&load), now);
                core.usher(now);
            }
            changed = target.changed() => {
                if changed.is_err() {
                    return;
                }
                let is_ready = target.borrow_and_update().state == TargetState::Ready;
                let now = pool.clock.now();
                let mut core = pool.lock();
                core.router.set_draining(joined.id, says_draining || !is_ready);
                core.usher(now);
            }
        }
    }
}

/// The next report; the stream is opened again after a loss. May be dropped and called again at any time.
async fn next_load(
    engine: &Arc<dyn EngineClient>,
    loads: &mut Option<LoadStream>,
) -> kvasir_client::types::LoadReport {
    loop {
        if let Some(stream) = loads {
            if let Some(Ok(report)) = stream.next().await {
                return report;
            }
            *loads = None;
            tokio::time::sleep(FIRST_PAUSE).await;
        }
        match engine.watch_load().await {
            Ok(stream) => *loads = Some(stream),
            Err(_) => tokio::time::sleep(LONGEST_PAUSE).await,
        }
    }
}

fn report(load: &kvasir_client::types::LoadReport) -> LoadReport {
    LoadReport {
        num_running: load.num_running,
        num_waiting: load.num_waiting,
        num_free_blocks: load.num_free_blocks,
    }
}

/// What the engine serves: known already, or loaded from it. An engine that serves something else under a name that others serve is refused.
async fn model(
    pool: &Arc<Pool>,
    client: &GrpcClient,
    revision: &Revision,
    info: ModelInfo,
) -> Result<Arc<RevisionModel>, String> {
    let _loading = pool.loading.lock().await;
    let now = pool.clock.now();
    {
        let core = pool.lock();
        if let Some(known) = core.model(revision) {
            if known.identity == Identity::of(&info) {
                return Ok(Arc::clone(known));
            }
            if core.is_settled(revision, now) {
                pool.metrics.mismatch();
                return Err(format!(
                    "FAILED_PRECONDITION: it serves {} with other text assets, weights or cache keys than the other engines of the revision \
                     {revision}; give it another revision name",
                    info.model
                ));
            }
        }
    }
    let files = assets(client, &info).await?;
    let options = PipelineOptions {
        model_name: info.model.clone(),
        generation_config: pool.edge.generation_config,
        limits: Some(pool.edge.limits()),
        seed: None,
        figures: Some(pool.figures.clone()),
        spans: pool.edge.spans.clone(),
    };
    let pipeline = Pipeline::load(info.clone(), files, options, Arc::new(NoSource));
    let pipeline = pipeline.await.map_err(|error| error.to_string())?;
    let model = Arc::new(RevisionModel::new(revision.clone(), pipeline, info));
    pool.lock().set_model(Arc::clone(&model));
    tracing::info!(%revision, model = model.info.model, "a revision is known");
    Ok(model)
}

async fn assets(client: &GrpcClient, info: &ModelInfo) -> Result<TextAssetFiles, String> {
    let files = client.text_assets(&info.text_assets_digest).await;
    // The client has compared the digest.
    files.map_err(|error| error.message)
}

async fn soon<T>(call: impl Future<Output = Result<T, kvasir_client::types::Error>>) -> Result<T, String> {
    match tokio::time::timeout(CALL_TIMEOUT, call).await {
        Ok(answer) => answer.map_err(|error| error.message),
        Err(_) => Err(format!("no answer within {CALL_TIMEOUT:?}")),
    }
}
