//! Engines that are far slower than their peers.
//!
//! The measure is the time to the first token divided by the tokens that had to be computed until then, so that long prompts and full queues
//! don't make an engine look slow. An engine whose smoothed measure is several times the median of its revision is ejected like one that
//! fails; its next request, when the time is over, is a probe. At most half of a revision's engines are ejected as slow, because the median
//! means nothing beyond that.

use super::circuit::{Circuit, OpenReason};
use super::engine::Pace;
use super::router::Router;
use crate::time::Micros;

/// Tokens that every request is taken to have beside its own: steps, network and scheduling take time even for a prompt of one token.
pub(super) const FIXED_TOKENS: u64 = 256;

/// Times the median.
const SLOW_FACTOR: u64 = 4;

/// Samples before an engine is judged.
const MIN_SAMPLES: u32 = 8;

/// Fewest engines to compare; of two nobody knows which is the slow one.
const MIN_PEERS: usize = 3;

/// Ejects what is too slow.
pub(super) fn eject(router: &mut Router, now: Micros) {
    let config = router.config.circuit;
    for revision in 0..router.revisions.len() as u32 {
        let (mut paces, mut num_open) = (Vec::new(), 0);
        for engine in router.known().filter(|engine| engine.revision == revision) {
            num_open += usize::from(matches!(engine.circuit, Circuit::Open { .. }));
            if engine.apart.pace.num_samples >= MIN_SAMPLES {
                paces.push(engine.apart.pace.nanos);
            }
        }
        if paces.len() < MIN_PEERS {
            continue;
        }
        let num_peers = paces.len();
        let (_, median, _) = paces.select_nth_unstable(num_peers / 2);
        let bound = median.saturating_mul(SLOW_FACTOR);
        for engine in router.engines.iter_mut().filter_map(|slot| slot.engine.as_mut()) {
            let is_judged = engine.revision == revision && engine.apart.pace.num_samples >= MIN_SAMPLES;
            let is_closed = matches!(engine.circuit, Circuit::Closed { .. });
            if is_judged && is_closed && engine.apart.pace.nanos > bound && (num_open + 1) * 2 <= num_peers {
                engine.circuit.open(&config, OpenReason::Slow, now);
                engine.apart.pace = Pace::default();
                num_open += 1;
            }
        }
    }
}
