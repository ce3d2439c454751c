//! What one replica knows of one tenant, and what the store must still hear of it.

use std::collections::BTreeMap;

use super::ledger::{Call, Ended, Handover, Told, Totals};
use super::window::{NUM_SLOTS, Slot, Window};
use super::{Amounts, Instance, RequestId};

/// Running requests that one handover names, and ends that one settlement tells: a script stops the whole store while it runs.
const MAX_PER_CALL: usize = 500;
/// Ends that are kept for a store that is away.
const MAX_ENDED: usize = 65_536;

#[derive(Debug, Default)]
pub(super) struct Account {
    /// The last minute: running requests at their estimates, settled ones at what they came to.
    pub(super) window: Window,
    /// The settled part of it.
    settled: Window,
    /// The part of the settled that the store hasn't heard of, nor of the requests that it was.
    unheard: Window,
    open: BTreeMap<RequestId, Open>,
    /// Settled requests that the store holds, or may hold, at their estimates.
    ended: BTreeMap<RequestId, End>,
    /// The store's account that has heard of the rest. Without one nothing was heard: `unheard` is `settled`, and all that runs is own.
    instance: Option<Instance>,
    /// On its way to the store, or there with the answer lost. It's told again under its name, and counts once.
    handing: Option<Handing>,
    pub(super) totals: Totals,
}

#[derive(Clone, Copy, Debug)]
struct Open {
    slot: Slot,
    amounts: Amounts,
    heard: Heard,
}

/// Whether the store has heard of a running request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Heard {
    No,
    /// It's part of the handover that is on its way.
    Underway,
    Yes,
}

#[derive(Clone, Copy, Debug)]
struct End {
    actual: Amounts,
    at: Slot,
    /// Whether it's part of `settled`. It isn't if the store may have admitted it and this replica never heard so: then any account of the
    /// store may have it.
    is_settled: bool,
}

#[derive(Clone, Debug)]
struct Handing {
    id: RequestId,
    expected: Option<Instance>,
    settled: Vec<(Slot, Amounts)>,
    open: Vec<(RequestId, Slot, Amounts)>,
}

impl Account {
    pub(super) fn advance(&mut self, now: Slot) {
        self.window.advance(now);
        // One clock for all, so that a slot of one is a slot of the other.
        self.settled.advance(self.window.newest());
        self.unheard.advance(self.window.newest());
    }

    /// The store's account, if it must be the same one; `None` where any will do, because there is nothing that it should have heard.
    pub(super) fn known(&mut self) -> Option<Instance> {
        if self.is_blank() {
            self.instance = None;
        }
        self.instance.clone()
    }

    fn is_blank(&self) -> bool {
        let nothing = Amounts::default();
        self.open.is_empty()
            && self.ended.is_empty()
            && self.handing.is_none()
            && self.window.sum() == nothing
            && self.unheard.sum() == nothing
    }

    /// Whether the store must hear of something before it can decide.
    pub(super) fn has_unheard(&self) -> bool {
        let is_unheard = |open: &Open| open.heard != Heard::Yes;
        self.handing.is_some()
            || self.unheard.sum() != Amounts::default()
            || self.open.values().any(is_unheard)
    }

    /// Whether the store must hear anything.
    pub(super) fn has_calls(&self) -> bool {
        !self.ended.is_empty() || self.has_unheard()
    }

    /// Books a request into the newest slot, of which the store hasn't heard.
    pub(super) fn admit(&mut self, id: RequestId, amounts: Amounts) {
        self.book(id, amounts, Heard::No);
    }

    /// Books a request that an account of the store admitted, and answers its id.
    pub(super) fn admit_by(
        &mut self,
        id: RequestId,
        fresh: RequestId,
        amounts: Amounts,
        by: &Instance,
    ) -> RequestId {
        if self.instance.is_none() && !self.has_unheard() {
            self.instance = Some(by.clone());
        }
        if self.instance.as_ref() == Some(by) {
            self.book(id.clone(), amounts, Heard::Yes);
            return id;
        }
        // Which of the accounts is the present one isn't known: it's taken back from the one and handed over to the other.
        self.doubt(id);
        self.book(fresh.clone(), amounts, Heard::No);
        fresh
    }

    fn book(&mut self, id: RequestId, amounts: Amounts, heard: Heard) {
        let slot = self.window.newest();
        self.window.add(slot, amounts);
        self.totals.reserved = self.totals.reserved.zip(amounts, u64::saturating_add);
        self.totals.num_running += 1;
        let open = Open { slot, amounts, heard };
        self.open.insert(id, open);
    }

    /// The store may have admitted a request under this name, and must take it back.
    pub(super) fn doubt(&mut self, id: RequestId) {
        let end = End {
            actual: Amounts::default(),
            at: self.window.newest(),
            is_settled: false,
        };
        self.ended.insert(id, end);
    }

    pub(super) fn settle(&mut self, id: &RequestId, actual: Amounts) {
        let Some(Open { slot, amounts, heard }) = self.open.remove(id) else {
            return;
        };
        self.window.take(slot, amounts);
        self.window.add(slot, actual);
        self.settled.add(slot, actual);
        if heard == Heard::No {
            self.unheard.add(slot, actual);
        } else {
            let end = End {
                actual,
                at: self.window.newest(),
                is_settled: true,
            };
            self.ended.insert(id.clone(), end);
        }
        let totals = &mut self.totals;
        totals.reserved = totals.reserved.zip(amounts, u64::saturating_sub);
        totals.settled = totals.settled.zip(actual, u64::saturating_add);
        totals.num_running = totals.num_running.saturating_sub(1);
    }

    /// The store's account is another one than `known`: what that one had heard, this one hasn't.
    pub(super) fn forget_instance(&mut self, known: Option<&Instance>) {
        if self.instance.as_ref() != known {
            return;
        }
        self.instance = None;
        self.handing = None;
        self.unheard = self.settled.clone();
        for open in self.open.values_mut() {
            open.heard = Heard::No;
        }
        self.ended.retain(|_, end| !end.is_settled);
    }

    /// Forgets ends that can't matter any more, and says how many: their amounts are out of the window, and their leases have run out.
    pub(super) fn forget_old_ends(&mut self) -> usize {
        let (newest, before) = (self.window.newest(), self.ended.len());
        self.ended
            .retain(|_, end| newest.0.saturating_sub(end.at.0) < NUM_SLOTS as u64);
        while self.ended.len() > MAX_ENDED {
            self.ended.pop_first();
        }
        before - self.ended.len()
    }

    /// What the store must hear next. `id` is for a handover.
    pub(super) fn next_call(&mut self, id: impl FnOnce() -> RequestId) -> Option<Call> {
        let needs_instance = self.instance.is_none() && !self.ended.is_empty();
        if self.handing.is_none() && (self.has_unheard() || needs_instance) {
            self.handing = Some(self.gather(id()));
        }
        let newest = self.window.newest();
        let age = |slot: Slot| newest.0.saturating_sub(slot.0);
        if let Some(handing) = &self.handing {
            let settled = handing.settled.iter();
            let open = handing.open.iter();
            return Some(Call::HandOver(Handover {
                id: handing.id.clone(),
                expected: handing.expected.clone(),
                settled: settled.map(|(slot, amounts)| (age(*slot), *amounts)).collect(),
                open: open
                    .map(|(id, slot, amounts)| (id.clone(), age(*slot), *amounts))
                    .collect(),
            }));
        }
        let instance = self.instance.clone()?;
        let ended = self.ended.iter().take(MAX_PER_CALL).map(|(id, end)| Ended {
            id: id.clone(),
            actual: end.actual,
        });
        let ended: Vec<Ended> = ended.collect();
        (!ended.is_empty()).then_some(Call::Settle { instance, ended })
    }

    fn gather(&mut self, id: RequestId) -> Handing {
        let settled = std::mem::take(&mut self.unheard);
        self.unheard.advance(self.window.newest());
        let mut open = Vec::new();
        let unheard = self.open.iter_mut().filter(|(_, open)| open.heard == Heard::No);
        for (id, request) in unheard.take(MAX_PER_CALL) {
            request.heard = Heard::Underway;
            open.push((id.clone(), request.slot, request.amounts));
        }
        Handing {
            id,
            expected: self.instance.clone(),
            settled: settled.filled().collect(),
            open,
        }
    }

    /// The store has answered a call.
    pub(super) fn told(&mut self, call: &Call, told: &Told) {
        match (call, told) {
            (Call::HandOver(handover), Told::Done(instance)) => self.handed(&handover.id, instance),
            (Call::Settle { instance, ended }, Told::Done(_)) if self.instance.as_ref() == Some(instance) => {
                for Ended { id, .. } in ended {
                    self.ended.remove(id);
                }
            }
            // Of an account that isn't asked any more.
            (Call::Settle { .. }, Told::Done(_)) => {}
            (Call::HandOver(handover), Told::Elsewhere) => self.forget_instance(handover.expected.as_ref()),
            (Call::Settle { instance, .. }, Told::Elsewhere) => self.forget_instance(Some(instance)),
        }
    }

    fn handed(&mut self, id: &RequestId, instance: &Instance) {
        if self.handing.as_ref().is_none_or(|handing| handing.id != *id) {
            return;
        }
        let expected = self.handing.take().and_then(|handing| handing.expected);
        if self.instance != expected && self.instance.as_ref() != Some(instance) {
            // A charge met another account meanwhile. Which of them is the present one, the next handover finds out.
            let known = self.instance.clone();
            return self.forget_instance(known.as_ref());
        }
        self.instance = Some(instance.clone());
        for open in self.open.values_mut() {
            if open.heard == Heard::Underway {
                open.heard = Heard::Yes;
            }
        }
    }

    /// The store's account and the running requests that it knows, whose leases must be renewed; `None` if there is nothing to ask for.
    pub(super) fn leases(&mut self) -> Option<(Instance, Vec<RequestId>)> {
        let instance = self.known()?;
        let heard = self.open.iter().filter(|(_, open)| open.heard == Heard::Yes);
        Some((instance, heard.map(|(id, _)| id.clone()).collect()))
    }
}
