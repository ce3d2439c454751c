//! The state of all decisions about engines and queues. No I/O: what happens comes in as calls with the time.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use kvasir_client::GrpcClient;
use kvasir_client::types::ModelInfo;
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
use crate::model_settings::ModelSettings;

/// The revision of engines that name none.
pub(super) const UNNAMED_REVISION: &str = "default";

/// Requests that an engine is given beyond those that it runs at once, as a part of these: enough that its next step is always full, few
/// enough that the order is decided here, where tenants take turns.
const QUEUE_PART: u32 = 4;

/// Everything that decisions read and write.
pub(super) struct Core {
    pub(super) router: Router,
    pub(super) budget: RetryBudget,
    revisions: Revisions,
    /// What the configuration says of revisions.
    weights: BTreeMap<Revision, u32>,
    /// What revisions serve. One stays without engines until there is another one, so that requests can be read while they wait.
    models: BTreeMap<Revision, Arc<RevisionModel>>,
    engines: HashMap<EngineId, Joined>,
    served: Served,
    door: DoorConfig,
    room: WaitingRoom,
    waiting: BTreeMap<WaiterId, oneshot::Sender<()>>,
    /// Requests whose turn has come and that haven't chosen an engine yet.
    pub(super) num_going: usize,
    /// Whether nobody may come any more, because other engines serve the model now or none do.
    is_closed: bool,
}

/// An engine that requests may be sent to.
struct Joined {
    client: Arc<GrpcClient>,
    revision: Revision,
    /// Requests that it's given at one time.
    seats: u32,
}

/// What the engines serve, as clients know it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Served {
    /// The names that engines give the model, in their order: more than one while a revision comes from another file.
    pub(crate) names: Arc<[String]>,
    /// Of the first revision by name; none while no engine has told.
    pub(crate) info: Option<Arc<ModelInfo>>,
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
    pub(super) fn new(settings: &ModelSettings) -> Self {
        let mut core = Self {
            router: Router::new(settings.router),
            budget: RetryBudget::new(settings.retry),
            revisions: Revisions::default(),
            weights: BTreeMap::new(),
            models: BTreeMap::new(),
            engines: HashMap::new(),
            served: Served::default(),
            door: settings.door,
            room: WaitingRoom::new(settings.room),
            waiting: BTreeMap::new(),
            num_going: 0,
            is_closed: false,
        };
        core.apply(settings);
        core
    }

    /// What can change while requests run. Policy, index and room are what they were at the start.
    pub(super) fn apply(&mut self, settings: &ModelSettings) {
        self.door = settings.door;
        self.weights = settings.revisions.iter().cloned().collect();
        self.revisions.set(settings.revisions.iter().cloned());
        self.name_model();
    }

    pub(super) fn model(&self, revision: &Revision) -> Option<&Arc<RevisionModel>> {
        self.models.get(revision)
    }

    /// What clients can be told of the model.
    pub(super) fn served(&self) -> &Served {
        &self.served
    }

    /// Names the model anew, after engines or weights have changed. By what is there and never by what came first: all gateways of a service
    /// must say the same. A revision counts if it takes requests and has engines; if none does, those that have engines; then all.
    fn name_model(&mut self) {
        let has_engines = |revision: &Revision| {
            let mut engines = self.engines.values();
            engines.any(|engine| engine.revision == *revision)
        };
        let takes_requests = |revision: &Revision| {
            let weight = self.weights.get(revision);
            has_engines(revision) && weight.is_some_and(|weight| *weight > 0)
        };
        let by = |counts: &dyn Fn(&Revision) -> bool| -> Vec<&RevisionModel> {
            let counted = self.models.iter().filter(|(revision, _)| counts(revision));
            counted.map(|(_, model)| &**model).collect()
        };
        let rules: [&dyn Fn(&Revision) -> bool; 3] = [&takes_requests, &has_engines, &|_| true];
        let models = rules.into_iter().map(by).find(|models| !models.is_empty());
        let models = models.unwrap_or_default();
        let names: BTreeSet<&str> = models.iter().map(|model| model.info.model.as_str()).collect();
        self.served = Served {
            names: names.into_iter().map(str::to_owned).collect(),
            info: models.first().map(|model| Arc::clone(&model.info)),
        };
    }

    /// Whether engines of the revision are joined, so that what it serves is settled.
    pub(super) fn is_settled(&self, revision: &Revision, now: Micros) -> bool {
        self.router
            .engines(now)
            .any(|engine| engine.revision == *revision)
    }

    /// Takes over what a revision serves, and forgets revisions whose engines have all gone.
    pub(super) fn set_model(&mut self, model: Arc<RevisionModel>) {
        let engines = &self.engines;
        self.models
            .retain(|revision, _| engines.values().any(|engine| engine.revision == *revision));
        self.models.insert(model.revision.clone(), model);
        self.name_model();
    }

    pub(super) fn join(
        &mut self,
        address: EngineAddress,
        model: &Arc<RevisionModel>,
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
        // Another revision may have taken its place between being known and being joined.
        self.models.insert(model.revision.clone(), Arc::clone(model));
        self.name_model();
        self.usher(now);
        Ok(id)
    }

    pub(super) fn leave(&mut self, id: EngineId) {
        self.router.leave(id);
        self.engines.remove(&id);
        self.name_model();
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

    /// What a request is read by: a revision of the configuration by its weight; one that isn't in there only while none of those can be
    /// used. Without such weights each revision has its part of the engines.
    pub(super) fn pick(&mut self, session: Option<u64>, now: Micros) -> Option<Arc<RevisionModel>> {
        if self.weights.is_empty() {
            self.revisions.set(self.parts(now));
        }
        let (router, models) = (&self.router, &self.models);
        let known = |revision: &Revision| models.contains_key(revision);
        let usable = |revision: &Revision| known(revision) && router.is_usable(revision, now);
        let mut chosen = self.revisions.choose(session, usable).cloned();
        let mut unlisted = models
            .keys()
            .filter(|revision| !self.weights.contains_key(revision));
        chosen = chosen.or_else(|| unlisted.clone().find(|revision| usable(revision)).cloned());
        chosen = chosen.or_else(|| self.revisions.choose(session, known).cloned());
        chosen = chosen.or_else(|| unlisted.next().cloned());
        models.get(&chosen?).cloned()
    }

    /// The seats of each revision's usable engines. One revision alone has everything, without a look at its engines.
    fn parts(&self, now: Micros) -> BTreeMap<Revision, u32> {
        if self.models.len() == 1 {
            return self.models.keys().map(|revision| (revision.clone(), 1)).collect();
        }
        let mut parts = BTreeMap::new();
        for engine in self.router.engines(now).filter(|engine| is_usable(engine, now)) {
            let seats = self.engines.get(&engine.id).map_or(0, |joined| joined.seats);
            let part: &mut u32 = parts.entry(engine.revision).or_default();
            *part = part.saturating_add(seats);
        }
        parts
    }

    /// Nobody may come any more, and whoever waits is called away.
    pub(super) fn close(&mut self) {
        self.is_closed = true;
        // Their receivers see the closed channels.
        self.waiting.clear();
    }

    pub(super) fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Whether nothing runs or waits here.
    pub(super) fn is_idle(&self, now: Micros) -> bool {
        let is_free = |engine: EngineView| engine.num_own_requests == 0;
        self.num_going == 0 && self.room.signal(now).num_waiting == 0 && self.router.engines(now).all(is_free)
    }

    /// Whether no engine of the revision can be used any more, and some of another one that takes requests can, here or in the pool that has
    /// taken this one's place.
    pub(super) fn is_superseded(&self, revision: &Revision, now: Micros) -> bool {
        if self.is_closed {
            return true;
        }
        !self.router.is_usable(revision, now)
            && self.router.engines(now).any(|engine| {
                is_usable(&engine, now)
                    && self.weights.get(&engine.revision) != Some(&0)
                    && self.models.contains_key(&engine.revision)
            })
    }

    pub(super) fn views(&self, now: Micros) -> Vec<EngineView> {
        self.router.engines(now).collect()
    }

    pub(super) fn signal(&self, now: Micros) -> Signal {
        self.room.signal(now)
    }

    /// Whether some engine that takes requests can be used.
    pub(super) fn has_engine(&self, now: Micros) -> bool {
        self.state(None, now) != Engines::MayCome
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
        if self.is_closed {
            return Err(Refusal::NoEngine);
        }
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
        let is_meant = self.meant(revision, now);
        let mut all = self.router.engines(now);
        if !all.any(|engine| is_meant(&engine.revision) && is_usable(&engine, now)) {
            return Engines::MayCome;
        }
        if self.num_free(revision, now) > self.num_going {
            Engines::Free
        } else {
            Engines::Busy
        }
    }

    /// Whether engines of a revision count: those of the one that was asked for, or of all that take requests.
    fn meant<'a>(&'a self, asked: Option<&'a Revision>, now: Micros) -> impl Fn(&Revision) -> bool + 'a {
        let is_listed = |engine: &EngineView| {
            let weight = self.weights.get(&engine.revision);
            weight.is_some_and(|weight| *weight > 0) && is_usable(engine, now)
        };
        let others_too =
            self.weights.is_empty() || !self.router.engines(now).any(|engine| is_listed(&engine));
        move |revision| match (asked, self.weights.get(revision)) {
            (Some(asked), _) => asked == revision,
            (None, Some(weight)) => *weight > 0,
            (None, None) => others_too,
        }
    }

    /// Requests that usable engines would still be given.
    fn num_free(&self, revision: Option<&Revision>, now: Micros) -> usize {
        let is_meant = self.meant(revision, now);
        let free = self.router.engines(now).map(|engine| {
            let Some(joined) = self.engines.get(&engine.id) else {
                return 0;
            };
            if is_meant(&joined.revision) && is_usable(&engine, now) {
                joined.seats.saturating_sub(engine.num_sequences) as usize
            } else {
                0
            }
        });
        free.sum()
    }
}

fn is_usable(engine: &EngineView, now: Micros) -> bool {
    !engine.is_draining && engine.circuit.admits(now)
}

#[cfg(test)]
#[path = "core_tests.rs"]
mod tests;
