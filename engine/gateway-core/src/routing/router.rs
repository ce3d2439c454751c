//! The table of engines, and choices from it.

use std::collections::BTreeMap;

use super::address::{EngineAddress, EngineId, Revision};
use super::choose::{Candidate, Question, RoutingPolicy, choose};
use super::circuit::CircuitConfig;
use super::engine::{Capacity, Engine, LoadReport};
use super::index::{Overlaps, PrefixIndex};
use super::layout::CacheLayout;
use super::request::{Choice, EngineView, JoinError, NoEngine, RouteRequest};
use super::ticket::{Outcome, Ticket};
use crate::time::Micros;

/// How a router works.
#[derive(Clone, Copy, Debug)]
pub struct RouterConfig {
    /// How engines are chosen.
    pub policy: RoutingPolicy,
    /// Most blocks in the index, counted once for each engine that holds them.
    pub max_index_pairs: usize,
    /// When engines are left alone.
    pub circuit: CircuitConfig,
}

/// All engines of one service, as one gateway sees them.
#[derive(Debug)]
pub struct Router {
    pub(super) config: RouterConfig,
    pub(super) engines: Vec<Slot>,
    /// The newest epoch of each place.
    pub(super) places: BTreeMap<(std::sync::Arc<str>, u32), u32>,
    pub(super) revisions: Vec<Revision>,
    /// Of each revision, by its number.
    layouts: Vec<CacheLayout>,
    pub(super) index: PrefixIndex,
    last: Option<u32>,
    overlaps: Overlaps,
}

#[derive(Debug, Default)]
pub(super) struct Slot {
    generation: u32,
    pub(super) engine: Option<Engine>,
}

impl Default for RouterConfig {
    /// Prefix-aware, with ten million blocks.
    fn default() -> Self {
        Self {
            policy: RoutingPolicy::PrefixAware,
            max_index_pairs: 10_000_000,
            circuit: CircuitConfig::default(),
        }
    }
}

impl Router {
    /// A router without engines.
    pub fn new(config: RouterConfig) -> Self {
        Self {
            config,
            engines: Vec::new(),
            places: BTreeMap::new(),
            revisions: Vec::new(),
            layouts: Vec::new(),
            index: PrefixIndex::new(config.max_index_pairs),
            last: None,
            overlaps: Overlaps::default(),
        }
    }

    /// An engine is there. A later epoch of a known place takes the place of the earlier one; joining twice changes nothing.
    ///
    /// # Errors
    /// A later epoch is known, or the engine can hold nothing.
    pub fn join(
        &mut self,
        address: EngineAddress,
        revision: &Revision,
        capacity: Capacity,
        now: Micros,
    ) -> Result<EngineId, JoinError> {
        if capacity.num_blocks == 0 || capacity.block_size == 0 {
            return Err(JoinError::NoCapacity { address, capacity });
        }
        if let Some(known) = self.at_place(&address) {
            let (id, epoch) = (known.id, known.apart.address.epoch);
            match epoch.cmp(&address.epoch) {
                std::cmp::Ordering::Greater => {
                    return Err(JoinError::OldEpoch {
                        address,
                        known: epoch,
                    });
                }
                std::cmp::Ordering::Equal => return Ok(id),
                std::cmp::Ordering::Less => self.leave(id),
            }
        }
        let revision = self.number_of(revision);
        let index = self
            .engines
            .iter()
            .position(|slot| slot.engine.is_none())
            .unwrap_or(self.engines.len());
        if index == self.engines.len() {
            self.engines.push(Slot::default());
        }
        let slot = &mut self.engines[index];
        slot.generation = slot.generation.wrapping_add(1);
        let id = EngineId {
            index: index as u32,
            generation: slot.generation,
        };
        self.places
            .insert((address.pod_uid.clone(), address.dp_rank), id.index);
        slot.engine = Some(Engine::new(
            id,
            address,
            revision,
            capacity,
            self.index.attach(),
            now,
        ));
        Ok(id)
    }

    /// What the engines of a revision keep of a prompt, before the first of them joins; one group with full attention if nobody says.
    pub fn set_layout(&mut self, revision: &Revision, layout: CacheLayout) {
        let number = self.number_of(revision);
        self.layouts[number as usize] = layout;
    }

    /// An engine is gone. Tickets of it may still be given back.
    pub fn leave(&mut self, id: EngineId) {
        let Some(engine) = self.engine_mut(id) else {
            return;
        };
        let holders = [engine.holder, engine.apart.snapshot.map(|(holder, _)| holder)];
        let place = (engine.apart.address.pod_uid.clone(), engine.apart.address.dp_rank);
        self.places.remove(&place);
        self.engines[id.index as usize].engine = None;
        for holder in holders.into_iter().flatten() {
            self.index.retire(holder);
        }
    }

    /// The engine at an address, if this very epoch has joined.
    pub fn find(&self, address: &EngineAddress) -> Option<EngineId> {
        self.at_place(address)
            .filter(|engine| engine.apart.address == *address)
            .map(|engine| engine.id)
    }

    /// An engine is about to end and gets no new requests, or no longer is.
    pub fn set_draining(&mut self, id: EngineId, is_draining: bool) {
        if let Some(engine) = self.engine_mut(id) {
            engine.is_draining = is_draining;
        }
    }

    /// What an engine says of its load.
    pub fn report(&mut self, id: EngineId, report: LoadReport, now: Micros) {
        if let Some(engine) = self.engine_mut(id) {
            engine.take_report(report, now);
        }
    }

    /// The engine for a request. Its counters are raised at once, so that of a burst each request sees the ones before it.
    ///
    /// # Errors
    /// No engine can be used.
    pub fn choose(&mut self, request: &RouteRequest<'_>, now: Micros) -> Result<Choice, NoEngine> {
        let wants_overlap = matches!(
            self.config.policy,
            RoutingPolicy::PrefixAware | RoutingPolicy::Session
        );
        let mut overlaps = std::mem::take(&mut self.overlaps);
        let hashes = if wants_overlap { request.hashes } else { &[] };
        let number = self.revisions.iter().position(|known| known == request.revision);
        if let Some(layout) = number.and_then(|number| self.layouts.get(number)) {
            self.index.overlaps_in(layout, hashes, &mut overlaps);
        }
        let chosen = self.best(request, &overlaps, now);
        self.overlaps = overlaps;
        let (id, overlap) = chosen?;
        self.last = Some(id.index);
        let engine = self.engines[id.index as usize]
            .engine
            .as_mut()
            .ok_or(NoEngine::NoneKnown)?;
        let cached_tokens = overlap.saturating_mul(engine.capacity.block_size);
        let computed_tokens = u64::from(request.prompt_tokens.saturating_sub(cached_tokens));
        let num_sequences = request.num_sequences.max(1);
        let ticket = Ticket::new(id, computed_tokens, engine.own.unbegun_tokens, num_sequences, now);
        engine.admit(
            computed_tokens,
            request.prompt_tokens.div_ceil(engine.capacity.block_size),
            num_sequences,
        );
        Ok(Choice {
            engine: id,
            address: engine.apart.address.clone(),
            overlap_blocks: overlap,
            ticket,
        })
    }

    /// The request's first token has come.
    pub fn begun(&mut self, ticket: &mut Ticket, now: Micros) {
        let config = self.config.circuit;
        let Some(engine) = self.engine_mut(ticket.engine) else {
            return;
        };
        if let Some((latency, num_tokens)) = ticket.begin(now) {
            engine.own.num_unbegun = engine.own.num_unbegun.saturating_sub(1);
            engine.own.unbegun_tokens = engine.own.unbegun_tokens.saturating_sub(ticket.computed_tokens);
            engine.apart.pace.sample(latency, num_tokens);
            // A probe has proved what it should, however long its answer gets.
            engine.circuit.succeeded(&config, now);
        }
    }

    /// The request has ended.
    #[expect(clippy::needless_pass_by_value, reason = "a ticket is given back once")]
    pub fn finish(&mut self, ticket: Ticket, outcome: Outcome, now: Micros) {
        let config = self.config.circuit;
        let Some(engine) = self.engine_mut(ticket.engine) else {
            return;
        };
        engine.own.num_requests = engine.own.num_requests.saturating_sub(1);
        engine.own.num_sequences = engine.own.num_sequences.saturating_sub(ticket.num_sequences);
        if !ticket.has_begun() {
            engine.own.num_unbegun = engine.own.num_unbegun.saturating_sub(1);
            engine.own.unbegun_tokens = engine.own.unbegun_tokens.saturating_sub(ticket.computed_tokens);
        }
        match outcome {
            Outcome::Completed => engine.circuit.succeeded(&config, now),
            Outcome::Failed(failure) if failure.is_engines_fault() => engine.circuit.failed(&config, now),
            Outcome::Failed(_) | Outcome::ClientLeft => engine.circuit.said_nothing(),
        }
    }

    /// Housekeeping; call it some times a second. Ejects engines that are far slower than their peers, and cleans a part of the index.
    pub fn tick(&mut self, now: Micros) {
        super::outlier::eject(self, now);
        self.index.sweep(super::SHARDS_PER_TICK);
    }

    /// All engines, in the order in which they are chosen from.
    pub fn engines(&self, now: Micros) -> impl Iterator<Item = EngineView> + '_ {
        self.known().map(move |engine| EngineView {
            id: engine.id,
            address: engine.apart.address.clone(),
            revision: self.revisions[engine.revision as usize].clone(),
            is_draining: engine.is_draining,
            circuit: engine.circuit,
            num_own_requests: engine.own.num_requests,
            num_sequences: engine.num_sequences(now),
            num_indexed_blocks: engine.holder.map_or(0, |holder| self.index.num_blocks(holder)),
        })
    }

    /// Whether a request for the revision could be routed.
    pub fn is_usable(&self, revision: &Revision, now: Micros) -> bool {
        let number = self.revisions.iter().position(|known| known == revision);
        let is_usable = |engine: &Engine| !engine.is_draining && engine.circuit.admits(now);
        number.is_some_and(|number| {
            self.known()
                .any(|engine| engine.revision as usize == number && is_usable(engine))
        })
    }

    /// Whether an engine gets no requests: it's gone, about to end, or ejected.
    pub fn is_out_of_use(&self, id: EngineId, now: Micros) -> bool {
        let engine = self.known().find(|engine| engine.id == id);
        engine.is_none_or(|engine| engine.is_draining || !engine.circuit.admits(now))
    }

    /// The index, for its figures.
    pub fn index(&self) -> &PrefixIndex {
        &self.index
    }

    pub(super) fn engine_mut(&mut self, id: EngineId) -> Option<&mut Engine> {
        let slot = self.engines.get_mut(id.index as usize)?;
        slot.engine.as_mut().filter(|engine| engine.id == id)
    }

    pub(super) fn known(&self) -> impl Iterator<Item = &Engine> {
        self.engines.iter().filter_map(|slot| slot.engine.as_ref())
    }

    fn at_place(&self, address: &EngineAddress) -> Option<&Engine> {
        let index = self.places.get(&(address.pod_uid.clone(), address.dp_rank))?;
        self.engines[*index as usize].engine.as_ref()
    }

    fn number_of(&mut self, revision: &Revision) -> u32 {
        if let Some(known) = self.revisions.iter().position(|known| known == revision) {
            return known as u32;
        }
        // A number that no engine has any more serves the new revision.
        let is_unused = |number: &usize| self.known().all(|engine| engine.revision as usize != *number);
        let number = (0..self.revisions.len())
            .find(is_unused)
            .unwrap_or(self.revisions.len());
        if number == self.revisions.len() {
            self.revisions.push(revision.clone());
            self.layouts.push(CacheLayout::default());
        } else {
            self.revisions[number] = revision.clone();
            self.layouts[number] = CacheLayout::default();
        }
        number as u32
    }

    fn best(
        &self,
        request: &RouteRequest<'_>,
        overlaps: &Overlaps,
        now: Micros,
    ) -> Result<(EngineId, u32), NoEngine> {
        let revision = self.revisions.iter().position(|known| known == request.revision);
        let revision = revision.ok_or(NoEngine::NoneKnown)? as u32;
        let mut why_not = NoEngine::NoneKnown;
        let mut candidates = Vec::with_capacity(self.engines.len());
        for engine in self.known().filter(|engine| engine.revision == revision) {
            if engine.is_draining {
                why_not = why_not.max(NoEngine::AllDraining);
            } else if !engine.circuit.admits(now) {
                why_not = why_not.max(NoEngine::AllEjected);
            } else if request.excluded.contains(&engine.id) {
                why_not = NoEngine::AllTried;
            } else {
                let overlap = engine.holder.map_or(0, |holder| overlaps.get(holder));
                candidates.push(Candidate { engine, overlap });
            }
        }
        let question = Question {
            prompt_tokens: request.prompt_tokens,
            session: request.session,
            random: request.random,
            last: self.last,
            now,
        };
        let place = choose(self.config.policy, &candidates, question).ok_or(why_not)?;
        Ok((candidates[place].engine.id, candidates[place].overlap))
    }
}
