//! The live requests of one client or session, by the id that it gave them.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use kvasir_client::types::{Error, ErrorCode};
use kvasir_client::{invalid, refusal};

/// A request, unique for the life of an engine: clients choose ids, and two clients may choose the same.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) struct RequestKey(pub(crate) u64);

/// The table. An id is taken until the request's last finish is about to be sent, or its reader left.
#[derive(Debug)]
pub(crate) struct Names {
    max_live: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    live: BTreeMap<String, RequestKey>,
    closed: bool,
}

impl Names {
    pub(crate) fn new(max_live: usize) -> Self {
        Self {
            max_live,
            state: Mutex::default(),
        }
    }

    /// Takes an id.
    ///
    /// # Errors
    /// If it is taken, too many are, or the session has ended.
    pub(crate) fn claim(&self, id: &str, key: RequestKey) -> Result<(), Error> {
        let mut state = self.lock();
        if state.closed {
            return Err(refusal(ErrorCode::Unavailable, "the session has ended"));
        }
        if state.live.contains_key(id) {
            return Err(invalid(
                "request_id",
                format!("request id {id:?} is in use by a running request"),
            ));
        }
        if state.live.len() >= self.max_live {
            let message = format!(
                "{} requests of this client are running, which is its limit",
                self.max_live
            );
            return Err(refusal(ErrorCode::QueueFull, message));
        }
        state.live.insert(id.to_owned(), key);
        Ok(())
    }

    /// Frees an id if this request holds it. Says whether it did.
    pub(crate) fn release(&self, id: &str, key: RequestKey) -> bool {
        let mut state = self.lock();
        let held = state.live.get(id) == Some(&key);
        if held {
            state.live.remove(id);
        }
        held
    }

    pub(crate) fn key(&self, id: &str) -> Option<RequestKey> {
        self.lock().live.get(id).copied()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lock().live.is_empty()
    }

    /// Ends the session: no id can be taken any more. Gives the requests that have to be aborted.
    pub(crate) fn close(&self) -> Vec<RequestKey> {
        let mut state = self.lock();
        state.closed = true;
        state.live.values().copied().collect()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.lock().closed
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Every change under the lock is complete before anything that could panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_taken_until_its_holder_releases_it() {
        let names = Names::new(4);
        names.claim("a", RequestKey(1)).unwrap();
        assert_eq!(names.claim("a", RequestKey(2)).unwrap_err().param, "request_id");
        assert!(!names.release("a", RequestKey(2)));
        assert_eq!(names.key("a"), Some(RequestKey(1)));
        assert!(names.release("a", RequestKey(1)));
        assert!(!names.release("a", RequestKey(1)));
        names.claim("a", RequestKey(2)).unwrap();
    }

    #[test]
    fn the_limit_is_reported_as_a_full_queue() {
        let names = Names::new(1);
        names.claim("a", RequestKey(1)).unwrap();
        assert_eq!(
            names.claim("b", RequestKey(2)).unwrap_err().code(),
            ErrorCode::QueueFull
        );
    }

    #[test]
    fn a_closed_table_names_its_requests_and_takes_no_more() {
        let names = Names::new(4);
        names.claim("a", RequestKey(1)).unwrap();
        names.claim("b", RequestKey(2)).unwrap();
        assert_eq!(names.close(), [RequestKey(1), RequestKey(2)]);
        assert_eq!(
            names.claim("c", RequestKey(3)).unwrap_err().code(),
            ErrorCode::Unavailable
        );
    }
}
