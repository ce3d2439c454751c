use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::time::Micros;

mod choices;
mod circuits;
mod events;
mod index;
mod laws;
mod layout;
mod prefix;
mod simulation;

const CAPACITY: Capacity = Capacity {
    num_blocks: 1000,
    block_size: 16,
};

fn at(millis: u64) -> Micros {
    Micros(millis * 1000)
}

fn address(pod: usize, epoch: u64) -> EngineAddress {
    EngineAddress {
        pod_uid: Arc::from(format!("pod-{pod}")),
        epoch,
        dp_rank: 0,
    }
}

fn revision(name: &str) -> Revision {
    Revision(Arc::from(name))
}

/// A router with engines of revision `r`.
fn router(policy: RoutingPolicy, num_engines: usize) -> (Router, Vec<EngineId>) {
    let mut router = Router::new(RouterConfig {
        policy,
        ..RouterConfig::default()
    });
    let engines = (0..num_engines)
        .map(|pod| {
            router
                .join(address(pod, 1), &revision("r"), CAPACITY, at(0))
                .unwrap()
        })
        .collect();
    (router, engines)
}

/// A request for revision `r`, changed by `change`.
fn choose_with<'a>(
    router: &mut Router,
    now: Micros,
    change: impl FnOnce(&mut RouteRequest<'a>),
    revision: &'a Revision,
) -> Result<Choice, NoEngine> {
    let mut request = RouteRequest {
        revision,
        prompt_tokens: 160,
        num_sequences: 1,
        hashes: &[],
        session: None,
        excluded: &[],
        random: 0,
    };
    change(&mut request);
    router.choose(&request, now)
}

fn choose(router: &mut Router, now: Micros) -> Result<Choice, NoEngine> {
    let revision = revision("r");
    choose_with(router, now, |_| {}, &revision)
}

/// The hashes of a prompt's blocks, as a chain would give them.
fn chain(seed: u64, num_blocks: u64) -> Vec<u64> {
    (0..num_blocks)
        .map(|block| address::mix(seed << 20 | block))
        .collect()
}
