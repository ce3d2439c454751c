//! The state of all decisions about engines and queues. No I/O: what happens comes in as calls with the time.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use kvasir_client::GrpcClient;
use kvasir_gateway_core::routing::{
    Capacity, Choice, EngineAddress, EngineId, EngineView, JoinError, NoEngine, RetryBudget, Revision,
    Revisions, RouteRequest, Router,
};
use kvasir_gateway_core::time::Micros;
use kvasir_gateway_core::waiting::{
    Arrival, Door, DoorConfig, Engines, Full, Refusal, Signal, Waiter, WaiterId, WaitingRoom,
};
use tokio::sync::oneshot;

use super::model::RevisionModel;
use crate::settings::Settings;

/// The revision of all engines where the configuration names none.
pub(super) const ONLY_REVISION: &str = "default";

/// Requests that an engine is given beyond those that it runs at once, as a part of these: enough that its next step is always full, few
/// enough that the order is decided here, where tenants take turns.
const QUEUE_PART: u32 = 4;

/// Everything that decisions read and write.
pub(super) struct Core {
    pub(super) router: Router,
    pub(super) budget: RetryBudget,
    revisions: Revisions,
    /// Those that take requests.
    served: BTreeSet<Revision>,
    /// Whether the configuration names revisions.
    has_revisions: bool,
    /// What revisions serve, as long as one of their engines is known, and afterwards until another takes the name.
    models: BTreeMap<Revision, Arc<RevisionModel>>,
    engines: HashMap<EngineId, Joined>,
    door: DoorConfig,
    room: WaitingRoom,
    waiting: BTreeMap<WaiterId, oneshot::Sender<()>>,
    /// Requests whose turn has come and that haven't chosen an engine yet.
    pub(super) num_going: usize,
}

/// An engine that requests may be sent to.
struct Joined {
    client: Arc<GrpcClient>,
    revision: Revision,
    /// Requests that it's given at one time.
    seats: u32,
}

/// What becomes of a request at the door.
pub(super) enum Place {
    /// It goes on at once.
    Go,
    /// It waits until its turn or the end of its time.
    Wait {
        id: WaiterId,
        turn: oneshot::Receiver<()>,
        until: Micros,
        then: Refusal,
    },
}

impl Core {
    pub(super) fn new(settings: &Settings) -> Self {
        let mut core = Self {
            router: Router::new(settings.router),
            budget: RetryBudget::new(settings.retry),
            revisions: Revisions::default(),
            served: BTreeSet::new(),
            has_revisions: false,
            models: BTreeMap::new(),
            engines: HashMap::new(),
            door: settings.door,
            room: WaitingRoom::new(settings.room),
            waiting: BTreeMap::new(),
            num_going: 0,
        };
        core.apply(settings);
        core
    }

    /// What can change while requests run. Policy, index and room are what they were at the start.
    pub(super) fn apply(&mut self, settings: &Settings) {
        self.door = settings.door;
        self.has_revisions = !settings.revisions.is_empty();
        let only = [(Revision(ONLY_REVISION.into()), 1)];
        let weights = if self.has_revisions {
            settings.revisions.as_slice()
        } else {
            &only
        };
        self.revisions.set(weights.iter().cloned());
        let served = weights.iter().filter(|(_, weight)| *weight > 0);
        self.served = served.map(|(revision, _)| revision.clone()).collect();
    }

    /// The revision of an engine that names itself `named`.
    pub(super) fn revision_of(&self, named: Option<Revision>) -> Revision {
        match named {
            Some(revision) if self.has_revisions => revision,
            _ => Revision(ONLY_REVISION.into()),
        }
    }

    pub(super) fn model(&self, revision: &Revision) -> Option<&Arc<RevisionModel>> {
        self.models.get(revision)
    }

    pub(super) fn any_model(&self) -> Option<&Arc<RevisionModel>> {
        self.models.values().next()
    }

    /// Whether engines of the revision are joined, so that what it serves is settled.
    pub(super) fn is_settled(&self, revision: &Revision, now: Micros) -> bool {
        self.router
            .engines(now)
            .any(|engine| engine.revision == *revision)
    }

    pub(super) fn set_model(&mut self, model: Arc<RevisionModel>) {
        self.models.insert(model.revision.clone(), model);
    }

    pub(super) fn join(
        &mut self,
        address: EngineAddress,
        model: &RevisionModel,
        (client, seats): (Arc<GrpcClient>, u32),
        now: Micros,
    ) -> Result<EngineId, JoinError> {
        let capacity = Capacity {
            num_blocks: model.num_blocks,
            block_size: model.info.block_size,
        };
        self.router
            .set_layout(&model.revision, model.identity.layout().clone());
        let id = self.router.join(address, &model.revision, capacity, now)?;
        let joined = Joined {
            client,
            revision: model.revision.clone(),
            seats: seats.max(1).saturating_add(seats / QUEUE_PART),
        };
        self.engines.insert(id, joined);
        self.usher(now);
        Ok(id)
    }

    pub(super) fn leave(&mut self, id: EngineId) {
        self.router.leave(id);
        self.engines.remove(&id);
    }

    /// The engine for a request, and the way to it.
    pub(super) fn choose(
        &mut self,
        request: &RouteRequest<'_>,
        now: Micros,
    ) -> Result<(Choice, Arc<GrpcClient>), NoEngine> {
        let choice = self.router.choose(request, now)?;
        match self.engines.get(&choice.engine) {
            Some(joined) => Ok((choice, Arc::clone(&joined.client))),
            // Both tables change together, so this can't be; the ticket belongs to nobody then.
            None => Err(NoEngine::NoneKnown),
        }
    }

    pub(super) fn pick(&mut self, session: Option<u64>, now: Micros) -> Option<Arc<RevisionModel>> {
        let (router, models) = (&self.router, &self.models);
        let usable = |revision: &Revision| models.contains_key(revision) && router.is_usable(revision, now);
        if let Some(revision) = self.revisions.choose(session, usable) {
            return models.get(revision).cloned();
        }
        let known = |revision: &Revision| models.contains_key(revision);
        let revision = self.revisions.choose(session, known)?;
        models.get(revision).cloned()
    }

    pub(super) fn views(&self, now: Micros) -> Vec<EngineView> {
        self.router.engines(now).collect()
    }

    pub(super) fn signal(&self, now: Micros) -> Signal {
        self.room.signal(now)
    }

    pub(super) fn is_ready(&self, now: Micros) -> bool {
        let door = Door {
            engines: self.state(None, now),
            others_wait: false,
        };
        door.is_ready(&self.door)
    }

    /// A request comes to the door, or comes back to it: the end of its first wait, which `waiter.until` then has, stays the end of all of them.
    pub(super) fn arrive(
        &mut self,
        waiter: &mut Waiter,
        revision: Option<&Revision>,
        now: Micros,
    ) -> Result<Place, Refusal> {
        self.expire(now);
        let door = Door {
            engines: self.state(revision, now),
            others_wait: self.room.signal(now).num_waiting > 0,
        };
        match door.arrival(&self.door, now) {
            Arrival::Go => {
                self.num_going += 1;
                Ok(Place::Go)
            }
            Arrival::SendAway(refusal) => Err(refusal),
            Arrival::Wait { until, then } => {
                let until = until.min(waiter.until);
                waiter.until = until;
                let id = self
                    .room
                    .enter(waiter.clone(), now)
                    .map_err(|full: Full| Refusal::from(full))?;
                let (sender, turn) = oneshot::channel();
                self.waiting.insert(id, sender);
                self.usher(now);
                Ok(Place::Wait {
                    id,
                    turn,
                    until,
                    then,
                })
            }
        }
    }

    /// A request that waited has left.
    pub(super) fn leave_room(&mut self, id: WaiterId) {
        self.waiting.remove(&id);
        // Whoever was called or has run out of time isn't there any more.
        drop(self.room.leave(id));
    }

    /// A request whose turn had come has chosen, or left without choosing.
    pub(super) fn gone(&mut self) {
        self.num_going = self.num_going.saturating_sub(1);
    }

    /// Lets those who wait go on, as far as engines are free.
    pub(super) fn usher(&mut self, now: Micros) {
        self.expire(now);
        while self.num_free(None, now) > self.num_going {
            let Some((id, _)) = self.room.next(now) else {
                return;
            };
            if let Some(sender) = self.waiting.remove(&id)
                && sender.send(()).is_ok()
            {
                self.num_going += 1;
            }
        }
    }

    pub(super) fn tick(&mut self, now: Micros) {
        self.router.tick(now);
        self.usher(now);
    }

    fn expire(&mut self, now: Micros) {
        for (id, _) in self.room.expire(now) {
            // Its receiver sees the closed channel and knows that its time is over.
            self.waiting.remove(&id);
        }
    }

    fn state(&self, revision: Option<&Revision>, now: Micros) -> Engines {
        let is_meant = |engine: &EngineView| self.is_meant(revision, &engine.revision);
        let is_usable = |engine: &EngineView| !engine.is_draining && engine.circuit.admits(now);
        let mut usable = self
            .router
            .engines(now)
            .filter(|engine| is_meant(engine) && is_usable(engine))
            .peekable();
        if usable.peek().is_none() {
            return Engines::MayCome;
        }
        if self.num_free(revision, now) > self.num_going {
            Engines::Free
        } else {
            Engines::Busy
        }
    }

    /// Whether engines of a revision count: those of the one that was asked for, or of all that take requests.
    fn is_meant(&self, asked: Option<&Revision>, revision: &Revision) -> bool {
        asked.map_or_else(|| self.served.contains(revision), |asked| asked == revision)
    }

    /// Requests that usable engines would still be given.
    fn num_free(&self, revision: Option<&Revision>, now: Micros) -> usize {
        let free = self.router.engines(now).map(|engine| {
            let Some(joined) = self.engines.get(&engine.id) else {
                return 0;
            };
            let is_usable = self.is_meant(revision, &joined.revision)
                && !engine.is_draining
                && engine.circuit.admits(now);
            if is_usable {
                joined.seats.saturating_sub(engine.num_requests) as usize
            } else {
                0
            }
        });
        free.sum()
    }
}

#[cfg(test)]
#[path = "core_tests.rs"]
mod tests;
