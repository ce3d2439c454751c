//! The live requests of a connection and where their outputs go. No I/O.
//!
//! On the wire each request has an id of its own, the caller's id and a serial number: late outputs of a request that was
//! dropped can't reach a new one under the same id (the class of vllm#10583 and vllm#15041).

use std::collections::{BTreeMap, BTreeSet};

use tokio::sync::oneshot;

use crate::buffer::{Delivery, OutputSender};
use crate::error::{invalid, refusal};
use crate::types::{Error, ErrorCode, SequenceOutput, StepOutputs};

/// Tells a waiting caller whether its request was admitted.
pub(super) type AdmissionSender = oneshot::Sender<Result<(), Error>>;

/// The table.
#[derive(Debug, Default)]
pub(super) struct Routes {
    next_serial: u64,
    by_serial: BTreeMap<u64, Route>,
    serials: BTreeMap<String, u64>,
}

#[derive(Debug)]
struct Route {
    request_id: String,
    outputs: OutputSender,
    admission: Option<AdmissionSender>,
    /// Aborts that were sent: of one sequence, or of all.
    aborted: BTreeSet<Option<u32>>,
}

impl Routes {
    /// Reserves a serial number for a caller's id.
    ///
    /// # Errors
    /// If the id is live already, or `max_live` requests are.
    pub(super) fn reserve(&mut self, request_id: &str, max_live: usize) -> Result<u64, Error> {
        if self.serials.contains_key(request_id) {
            return Err(invalid(
                "request_id",
                format!("request id {request_id:?} is in use by a running request"),
            ));
        }
        if self.serials.len() >= max_live {
            let message = format!("{max_live} requests are running on this connection, which is its limit");
            return Err(refusal(ErrorCode::QueueFull, message));
        }
        let serial = self.next_serial;
        self.next_serial += 1;
        self.serials.insert(request_id.to_owned(), serial);
        Ok(serial)
    }

    /// Completes a reservation.
    pub(super) fn insert(
        &mut self,
        serial: u64,
        request_id: &str,
        outputs: OutputSender,
        admission: AdmissionSender,
    ) {
        let route = Route {
            request_id: request_id.to_owned(),
            outputs,
            admission: Some(admission),
            aborted: BTreeSet::new(),
        };
        self.by_serial.insert(serial, route);
    }

    /// Forgets a request, whether it was reserved or inserted. Says whether it was known.
    pub(super) fn remove(&mut self, serial: u64, request_id: &str) -> bool {
        if self.serials.get(request_id) == Some(&serial) {
            self.serials.remove(request_id);
        }
        self.by_serial.remove(&serial).is_some()
    }

    /// Marks a live sequence, or all of a live request, as aborted. Gives the wire id if an abort has to be sent: once.
    pub(super) fn abort(&mut self, request_id: &str, index: Option<u32>) -> Option<String> {
        let serial = *self.serials.get(request_id)?;
        let route = self.by_serial.get_mut(&serial)?;
        let known = index.is_none_or(|index| route.outputs.is_open(index));
        (known && route.aborted.insert(index)).then(|| wire_id(request_id, serial))
    }

    /// Passes a message on. Returns the requests that have to be aborted because their reader is too slow.
    pub(super) fn route(&mut self, message: StepOutputs) -> Vec<String> {
        let mut too_slow = Vec::new();
        for admission in message.admissions {
            if let Some(serial) = serial_of(&admission.request_id) {
                self.answer(serial, admission.error);
            }
        }
        for output in message.outputs {
            self.pass_on(output, &mut too_slow);
        }
        too_slow
    }

    /// Ends every request with this error.
    pub(super) fn fail_all(&mut self, error: &Error) {
        self.serials.clear();
        for (_, mut route) in std::mem::take(&mut self.by_serial) {
            match route.admission.take() {
                // A caller that no longer waits has dropped the request.
                Some(admission) => drop(admission.send(Err(error.clone()))),
                None => route.outputs.fail(error),
            }
        }
    }

    fn answer(&mut self, serial: u64, error: Option<Error>) {
        let Some(route) = self.by_serial.get_mut(&serial) else {
            return;
        };
        let Some(admission) = route.admission.take() else {
            return;
        };
        let refused = error.is_some();
        if refused {
            let id = std::mem::take(&mut route.request_id);
            self.remove(serial, &id);
        }
        drop(admission.send(error.map_or(Ok(()), Err)));
    }

    fn pass_on(&mut self, output: SequenceOutput, too_slow: &mut Vec<String>) {
        let Some(serial) = serial_of(&output.request_id) else {
            return;
        };
        let Some(route) = self.by_serial.get_mut(&serial) else {
            return;
        };
        let wire_id = output.request_id.clone();
        // The id is free again before the reader can see the last finish.
        if output.finish.is_some() && route.outputs.num_open() == 1 {
            let id = route.request_id.clone();
            self.serials.remove(&id);
        }
        match route.outputs.send(output) {
            Delivery::Taken => {}
            Delivery::Done | Delivery::Closed => self.forget(serial),
            Delivery::Full => {
                route.outputs.fail(&refusal(
                    ErrorCode::SlowClient,
                    "the client read this stream too slowly and its buffer is full",
                ));
                self.forget(serial);
                too_slow.push(wire_id);
            }
        }
    }

    fn forget(&mut self, serial: u64) {
        if let Some(route) = self.by_serial.remove(&serial)
            && self.serials.get(&route.request_id) == Some(&serial)
        {
            self.serials.remove(&route.request_id);
        }
    }
}

/// The id of a request on the wire.
pub(super) fn wire_id(request_id: &str, serial: u64) -> String {
    format!("{request_id}#{serial}")
}

fn serial_of(wire_id: &str) -> Option<u64> {
    wire_id.rsplit_once('#')?.1.parse().ok()
}

#[cfg(test)]
#[path = "routes_tests.rs"]
mod tests;
