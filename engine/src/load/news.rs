//! Who an engine is for readers of its news, and where it publishes.

use kvasir_config::{EngineConfig, KvEvents, KvEventsConfig};
use kvasir_service::{EngineIdentity, ZmqConfig};

/// The identity; without a name it gets a random one, which is written into the configuration.
pub(super) fn identity(engine: &mut EngineConfig) -> EngineIdentity {
    if engine.instance_id.value.is_none() {
        let id = uuid::Uuid::new_v4().to_string();
        engine.instance_id.derive(Some(id), "random, new at each start");
    }
    EngineIdentity {
        instance_id: engine.instance_id.value.clone().unwrap_or_default(),
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
