//! Who an engine is for readers of its news, and where it publishes.

use std::time::{SystemTime, UNIX_EPOCH};

use kvasir_config::{EngineConfig, KvEvents, KvEventsConfig};
use kvasir_service::{EngineIdentity, ZmqConfig};

use super::Place;

/// The identity: the pod's, or one that was given, or a random one. What nobody chose is written into the configuration.
pub(super) fn identity(engine: &mut EngineConfig, place: &mut Place) -> EngineIdentity {
    let pod_uid = place.config.pod_uid.value.clone();
    if engine.instance_id.value.is_none() {
        if let Some(uid) = pod_uid {
            engine.instance_id.derive(Some(uid), "pod-uid");
        } else {
            let id = uuid::Uuid::new_v4().to_string();
            engine.instance_id.derive(Some(id), "random, new at each start");
        }
    }
    // A process that starts again under its name has another cache: whoever follows it must see that it's another epoch.
    let started = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let started = u64::try_from(started.as_millis()).unwrap_or(u64::MAX);
    EngineIdentity {
        instance_id: engine.instance_id.value.clone().unwrap_or_default(),
        epoch: place
            .config
            .epoch
            .get_or_derive(|| (started, "milliseconds of the start".to_owned())),
        ..EngineIdentity::default()
    }
}

/// The publisher of events in vLLM's format, if it is on.
pub(super) fn zmq(KvEvents(events): &KvEvents) -> Option<ZmqConfig> {
    let KvEventsConfig {
        endpoint,
        bind,
        replay_endpoint,
        buffer_steps,
        hwm,
        max_queue_size,
        topic,
        int_block_hashes,
    } = events.clone()?;
    Some(ZmqConfig {
        endpoint,
        bind,
        replay_endpoint,
        buffer_steps,
        hwm,
        max_queue_size,
        topic,
        int_block_hashes,
    })
}
