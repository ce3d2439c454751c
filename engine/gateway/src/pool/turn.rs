//! Waiting for one's turn.

use std::sync::Arc;

use kvasir_gateway_core::routing::Revision;
use kvasir_gateway_core::waiting::{Refusal, Waiter, WaiterId};
use tokio::sync::oneshot;

use super::Pool;
use super::core::Place;

/// The right to choose an engine now. Dropped, it goes back.
pub(crate) struct Turn {
    pool: Arc<Pool>,
}

pub(super) async fn wait(
    pool: &Arc<Pool>,
    waiter: &mut Waiter,
    revision: Option<&Revision>,
) -> Result<Turn, Refusal> {
    let now = pool.clock.now();
    let place = pool.lock().arrive(waiter, revision, now)?;
    let (id, turn, until, then) = match place {
        Place::Go => {
            return Ok(Turn {
                pool: Arc::clone(pool),
            });
        }
        Place::Wait {
            id,
            turn,
            until,
            then,
        } => (id, turn, until, then),
    };
    let mut place = InRoom { pool, id, turn };
    let deadline = tokio::time::sleep_until(pool.clock.instant(until));
    tokio::select! {
        biased;
        called = &mut place.turn => match called {
            Ok(()) => Ok(Turn { pool: Arc::clone(pool) }),
            Err(_) => Err(then),
        },
        () = deadline => Err(then),
    }
}

/// A place in the room. Dropped, it's given up: a client that leaves makes room for others.
struct InRoom<'a> {
    pool: &'a Arc<Pool>,
    id: WaiterId,
    turn: oneshot::Receiver<()>,
}

impl Drop for InRoom<'_> {
    fn drop(&mut self) {
        let mut core = self.pool.lock();
        core.leave_room(self.id);
        // Called at the very moment at which it left: the turn is the next one's. Whoever took its turn has emptied the channel.
        if self.turn.try_recv().is_ok() {
            core.gone();
            let now = self.pool.clock.now();
            core.usher(now);
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let now = self.pool.clock.now();
        let mut core = self.pool.lock();
        core.gone();
        core.usher(now);
    }
}
