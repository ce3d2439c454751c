//! Publishing KV events to tools made for vLLM.

use serde_json::{Map, Value as Json, json};

use crate::error::ConfigError;
use crate::value::Value;

/// The JSON of `--kv-events-config`: the fields and defaults of vLLM 0.32, but for the endpoint, which is on loopback unless it is given,
/// and two fields of ours.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct KvEventsConfig {
    /// Where batches are published.
    pub endpoint: String,
    /// Ours: whether the endpoint is listened on or connected to; `None` is vLLM's rule, but a default endpoint is listened on.
    pub bind: Option<bool>,
    /// Where replays are asked for.
    pub replay_endpoint: Option<String>,
    /// Batches kept for replays.
    pub buffer_steps: usize,
    /// Batches that wait for one subscriber.
    pub hwm: usize,
    /// Batches that wait to be published.
    pub max_queue_size: usize,
    /// The topic that subscribers filter by.
    pub topic: String,
    /// Ours: whether hashes are 64-bit numbers, vLLM's default, or 32 bytes.
    pub int_block_hashes: bool,
}

/// `None` when switched off inside the JSON.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct KvEvents(pub Option<KvEventsConfig>);

impl KvEvents {
    /// Checks that events may be published at all. A gateway's tenants share engines, and whoever reads the events would read the prompts of all
    /// of them: a gateway reads hashes over gRPC instead.
    ///
    /// # Errors
    /// If they are switched on and the engine belongs to a gateway.
    pub fn check_mode(&self, behind_gateway: bool) -> Result<(), ConfigError> {
        if behind_gateway && self.0.is_some() {
            return Err(ConfigError::Conflict(
                "kv-events-config publishes the tokens of every prompt, which an engine behind a gateway must not do: remove it; \
                 the gateway reads hashes over gRPC"
                    .to_owned(),
            ));
        }
        Ok(())
    }
}

impl Value for KvEvents {
    fn parse(text: &str) -> Result<Self, String> {
        let json: Json = serde_json::from_str(text).map_err(|error| {
            format!("expected a JSON object such as {{\"enable_kv_cache_events\": true}}: {error}")
        })?;
        let Json::Object(mut fields) = json else {
            return Err("expected a JSON object such as {\"enable_kv_cache_events\": true}".to_owned());
        };
        let is_on = take(
            &mut fields,
            "enable_kv_cache_events",
            Json::as_bool,
            "true or false",
        )?
        .unwrap_or(false);
        let publisher = take_text(&mut fields, "publisher")?;
        let endpoint = take_text(&mut fields, "endpoint")?;
        let bind = take(&mut fields, "bind", Json::as_bool, "true or false")?;
        let config = KvEventsConfig {
            bind: bind.or(endpoint.is_none().then_some(true)),
            endpoint: endpoint.unwrap_or_else(|| "tcp://127.0.0.1:5557".to_owned()),
            replay_endpoint: take_text(&mut fields, "replay_endpoint")?,
            buffer_steps: take_count(&mut fields, "buffer_steps")?.unwrap_or(10_000),
            hwm: take_count(&mut fields, "hwm")?.unwrap_or(100_000),
            max_queue_size: take_count(&mut fields, "max_queue_size")?.unwrap_or(100_000),
            topic: take_text(&mut fields, "topic")?.unwrap_or_default(),
            int_block_hashes: take(&mut fields, "int_block_hashes", Json::as_bool, "true or false")?
                .unwrap_or(true),
        };
        if let Some(unknown) = fields.keys().next() {
            return Err(format!("there is no field {unknown:?}"));
        }
        match publisher.as_deref() {
            Some("null") => Ok(Self(None)),
            None | Some("zmq") => Ok(Self(is_on.then_some(config))),
            Some(other) => Err(format!("publisher is {other:?}; it can be \"zmq\" or \"null\"")),
        }
    }

    fn to_json(&self) -> Json {
        let Some(config) = &self.0 else { return Json::Null };
        json!({
            "enable_kv_cache_events": true,
            "publisher": "zmq",
            "endpoint": config.endpoint,
            "bind": config.bind,
            "replay_endpoint": config.replay_endpoint,
            "buffer_steps": config.buffer_steps,
            "hwm": config.hwm,
            "max_queue_size": config.max_queue_size,
            "topic": config.topic,
            "int_block_hashes": config.int_block_hashes,
        })
    }
}

/// Takes a field; null is as if it weren't there.
fn take<T>(
    fields: &mut Map<String, Json>,
    name: &str,
    read: impl Fn(&Json) -> Option<T>,
    expected: &str,
) -> Result<Option<T>, String> {
    match fields.remove(name) {
        None | Some(Json::Null) => Ok(None),
        Some(value) => match read(&value) {
            Some(read) => Ok(Some(read)),
            None => Err(format!("{name} is {value}; expected {expected}")),
        },
    }
}

fn take_text(fields: &mut Map<String, Json>, name: &str) -> Result<Option<String>, String> {
    take(fields, name, |value| value.as_str().map(str::to_owned), "a text")
}

fn take_count(fields: &mut Map<String, Json>, name: &str) -> Result<Option<usize>, String> {
    // More would be no bound.
    let read = |value: &Json| {
        value
            .as_u64()
            .filter(|&count| count <= 10_000_000)
            .and_then(|count| count.try_into().ok())
    };
    take(fields, name, read, "a whole number from 0 to 10000000")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> KvEvents {
        KvEvents::parse(text).unwrap()
    }

    #[test]
    fn events_are_off_unless_switched_on() {
        for text in [
            "{}",
            r#"{"endpoint": "tcp://*:1"}"#,
            r#"{"enable_kv_cache_events": true, "publisher": "null"}"#,
            r#"{"enable_kv_cache_events": false, "publisher": "zmq"}"#,
        ] {
            assert_eq!(parsed(text), KvEvents(None), "{text}");
        }
    }

    #[test]
    fn defaults_are_vllms_but_for_the_endpoint() {
        let KvEvents(Some(config)) = parsed(r#"{"enable_kv_cache_events": true, "replay_endpoint": null}"#)
        else {
            panic!("off");
        };
        assert_eq!(
            (&*config.endpoint, config.bind),
            ("tcp://127.0.0.1:5557", Some(true))
        );
        assert_eq!(
            (config.buffer_steps, config.hwm, config.max_queue_size),
            (10_000, 100_000, 100_000)
        );
        assert_eq!((&*config.topic, config.int_block_hashes), ("", true));
    }

    #[test]
    fn a_given_endpoint_is_bound_by_vllms_rule_unless_said_otherwise() {
        let bind = |text: &str| parsed(text).0.unwrap().bind;
        assert_eq!(
            bind(r#"{"enable_kv_cache_events": true, "endpoint": "tcp://*:1"}"#),
            None
        );
        assert_eq!(
            bind(r#"{"enable_kv_cache_events": true, "endpoint": "tcp://a:1", "bind": true}"#),
            Some(true)
        );
    }

    #[test]
    fn what_is_shown_can_be_given_again() {
        let config = parsed(r#"{"enable_kv_cache_events": true, "topic": "kv", "hwm": 5}"#);
        assert_eq!(parsed(&config.to_json().to_string()), config);
    }

    #[test]
    fn mistakes_are_named() {
        for (text, named) in [
            ("nonsense", "JSON object"),
            ("[]", "JSON object"),
            (r#"{"enable": true}"#, "\"enable\""),
            (r#"{"enable_kv_cache_events": "yes"}"#, "true or false"),
            (r#"{"publisher": "kafka"}"#, "kafka"),
            (r#"{"hwm": -1}"#, "hwm is -1"),
            (r#"{"buffer_steps": 10000001}"#, "10000000"),
        ] {
            let error = KvEvents::parse(text).unwrap_err();
            assert!(error.contains(named), "{text}: {error}");
        }
    }

    #[test]
    fn an_engine_behind_a_gateway_publishes_nothing() {
        let on = parsed(r#"{"enable_kv_cache_events": true}"#);
        assert!(on.check_mode(true).is_err());
        assert!(on.check_mode(false).is_ok());
        assert!(KvEvents(None).check_mode(true).is_ok());
    }
}
