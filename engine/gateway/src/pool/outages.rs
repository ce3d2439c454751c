//! What the log says of engines that fail: a line when one is left alone and when it's used again, and few for many failed requests. No I/O
//! but the log.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use kvasir_client::Recurring;
use kvasir_gateway_core::routing::{Circuit, EngineFailure, EngineId, EngineView, OpenReason};
use kvasir_gateway_core::time::Micros;

/// Engines and reasons of failures that are remembered. Forgetting costs a line too many, no more.
const MAX_TROUBLES: usize = 1024;

/// Engines whose circuits aren't closed, as far as the log knows.
#[derive(Debug, Default)]
pub(super) struct Outages {
    /// How often each was opened in a row.
    known: BTreeMap<EngineId, u32>,
}

/// Something worth a line.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum News {
    /// An engine gets no requests for a while.
    Opened {
        engine: String,
        reason: OpenReason,
        remaining: Duration,
    },
    /// It has answered again.
    Closed { engine: String },
}

/// Failures of requests that had begun, by engine and reason.
#[derive(Debug, Default)]
pub(super) struct Troubles {
    by_engine: BTreeMap<(String, EngineFailure), Recurring>,
}

impl Outages {
    /// Looks at all engines, and says what has changed since the last look.
    pub(super) fn look(&mut self, engines: impl Iterator<Item = EngineView>, now: Micros) -> Vec<News> {
        let (mut known, mut news) = (BTreeMap::new(), Vec::new());
        for engine in engines {
            let before = self.known.get(&engine.id);
            match engine.circuit {
                Circuit::Open {
                    until,
                    openings,
                    reason,
                } => {
                    if before != Some(&openings) {
                        news.push(News::Opened {
                            engine: engine.address.to_string(),
                            reason,
                            remaining: until.since(now),
                        });
                    }
                    known.insert(engine.id, openings);
                }
                Circuit::HalfOpen { .. } => {
                    // A probe is on its way: its end says more.
                    known.extend(before.map(|openings| (engine.id, *openings)));
                }
                Circuit::Closed { .. } => {
                    if before.is_some() {
                        let engine = engine.address.to_string();
                        news.push(News::Closed { engine });
                    }
                }
            }
        }
        // Of an engine that has left its link tells.
        self.known = known;
        news
    }
}

impl News {
    pub(super) fn log(&self) {
        match self {
            Self::Opened {
                engine,
                reason,
                remaining,
            } => {
                let why = match reason {
                    OpenReason::Failures => "it failed its requests",
                    OpenReason::Slow => "its first tokens take far longer than its peers'",
                };
                let seconds = remaining.as_secs_f64().ceil();
                tracing::warn!(
                    engine,
                    why,
                    seconds,
                    "an engine is ejected: it gets no requests for a while"
                );
            }
            Self::Closed { engine } => tracing::info!(engine, "an ejected engine is used again"),
        }
    }
}

impl Troubles {
    /// A request that had begun has failed: whether that is worth a line.
    pub(super) fn is_news(&mut self, engine: &str, failure: EngineFailure, now: Instant) -> bool {
        let place = (engine.to_owned(), failure);
        if self.by_engine.len() >= MAX_TROUBLES && !self.by_engine.contains_key(&place) {
            self.by_engine.clear();
        }
        let trouble = self.by_engine.entry(place).or_default();
        trouble.is_news(failure.code(), now)
    }
}

#[cfg(test)]
mod tests {
    use kvasir_gateway_core::routing::{
        Capacity, EngineAddress, Outcome, Revision, RouteRequest, Router, RouterConfig,
    };

    use super::*;

    const REVISION: &str = "r";

    fn at(seconds: u64) -> Micros {
        Micros(seconds * 1_000_000)
    }

    fn router() -> (Router, EngineId) {
        let mut router = Router::new(RouterConfig::default());
        let address = EngineAddress {
            pod_uid: "a".into(),
            epoch: 0,
            dp_rank: 0,
        };
        let capacity = Capacity {
            num_blocks: 100,
            block_size: 16,
        };
        let id = router.join(address, &Revision(REVISION.into()), capacity, at(0));
        (router, id.unwrap())
    }

    fn request(router: &mut Router, outcome: Outcome, now: Micros) {
        let request = RouteRequest {
            revision: &Revision(REVISION.into()),
            prompt_tokens: 16,
            num_sequences: 1,
            hashes: &[],
            session: None,
            excluded: &[],
            random: 0,
        };
        let choice = router.choose(&request, now).unwrap();
        router.finish(choice.ticket, outcome, now);
    }

    const FAILED: Outcome = Outcome::Failed(EngineFailure::Internal);

    fn opened(seconds: u64) -> Vec<News> {
        vec![News::Opened {
            engine: "a/0/0".to_owned(),
            reason: OpenReason::Failures,
            remaining: Duration::from_secs(seconds),
        }]
    }

    #[test]
    fn an_engine_that_is_ejected_ejected_again_and_used_again_is_one_line_each() {
        let (mut router, _) = router();
        let mut outages = Outages::default();
        let mut look = |router: &Router, now| outages.look(router.engines(now), now);
        assert_eq!(look(&router, at(0)), []);
        for _ in 0..3 {
            request(&mut router, FAILED, at(1));
        }
        assert_eq!(look(&router, at(1)), opened(5));
        assert_eq!(look(&router, at(2)), []);
        // Its probe fails, and a later one doesn't.
        request(&mut router, FAILED, at(6));
        assert_eq!(look(&router, at(6)), opened(10));
        assert_eq!(look(&router, at(15)), []);
        request(&mut router, Outcome::Completed, at(16));
        let engine = "a/0/0".to_owned();
        assert_eq!(look(&router, at(16)), [News::Closed { engine }]);
        assert_eq!(look(&router, at(17)), []);
    }

    #[test]
    fn an_engine_that_leaves_while_it_is_ejected_is_not_said_to_be_used_again() {
        let (mut router, id) = router();
        let mut outages = Outages::default();
        for _ in 0..3 {
            request(&mut router, FAILED, at(1));
        }
        assert_eq!(outages.look(router.engines(at(1)), at(1)), opened(5));
        router.leave(id);
        assert_eq!(outages.look(router.engines(at(2)), at(2)), []);
        assert!(outages.known.is_empty());
    }

    #[test]
    fn a_storm_of_failures_is_one_line_for_each_engine_and_reason_and_one_later() {
        use EngineFailure::{ConnectionLost, Internal};
        let (mut troubles, start) = (Troubles::default(), Instant::now());
        let mut num_lines = 0;
        for millis in 0..10_000 {
            let now = start + Duration::from_millis(millis);
            for (engine, failure) in [("a", Internal), ("b", Internal), ("a", ConnectionLost)] {
                num_lines += u32::from(troubles.is_news(engine, failure, now));
            }
        }
        assert_eq!(num_lines, 3);
        let later = start + Duration::from_mins(6);
        assert!(troubles.is_news("a", Internal, later));
    }

    #[test]
    fn engines_that_come_and_go_for_ever_are_forgotten() {
        let mut troubles = Troubles::default();
        for number in 0..3 * MAX_TROUBLES {
            assert!(troubles.is_news(&number.to_string(), EngineFailure::Internal, Instant::now()));
        }
        assert!(troubles.by_engine.len() <= MAX_TROUBLES);
    }
}
