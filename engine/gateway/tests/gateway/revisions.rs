//! Two revisions of the model at once.

use serde_json::json;

use crate::support::*;

fn engine(instance: &'static str, revision: &'static str, weights: u8) -> EngineOptions {
    EngineOptions {
        instance,
        revision,
        weights,
        ..EngineOptions::default()
    }
}

/// An old revision and a new one, and a gateway whose file says this of them and that has found both.
async fn pair(engines: [EngineOptions; 2], revisions: &str) -> (TestEngine, TestEngine, TestGateway) {
    let [old, new] = engines;
    let (old, new) = (TestEngine::start(old).await, TestEngine::start(new).await);
    let options = GatewayOptions {
        more: revisions.to_owned(),
        ..GatewayOptions::default()
    };
    let gateway = TestGateway::start(&[old.address, new.address], options).await;
    (old, new, gateway.with_engines(2).await)
}

fn both() -> [EngineOptions; 2] {
    [engine("a", "old", 1), engine("b", "new", 5)]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn revisions_share_requests_by_weight_each_with_its_own_text_and_hashes() {
    let (old, new, gateway) = pair(
        both(),
        "revisions: [{name: old, weight: 3}, {name: new, weight: 1}]",
    )
    .await;
    let chat = json!({"messages": [{"role": "user", "content": "hello hello"}], "max_tokens": 2, "ignore_eos": true});
    let mut lengths = Vec::new();
    for _ in 0..40 {
        let answer = Answer::of(gateway.request("a", "/v1/chat/completions", &chat)).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        lengths.push(answer.json()["usage"]["prompt_tokens"].as_u64().unwrap());
    }
    // The templates differ by four characters.
    let of_old = lengths.iter().filter(|length| **length == 12).count();
    let of_new = lengths.iter().filter(|length| **length == 16).count();
    assert_eq!((of_old, of_new), (30, 10));
    // Each one's second and later prompts were found by its own hashes.
    eventually("overlap in both", async || {
        gateway.metric("kvasir_gateway_routed_overlap_blocks_total").await > 0.0
    })
    .await;
    assert!(old.engine.client().load().await.unwrap().prefix_cache_hits > 0);
    assert!(new.engine.client().load().await.unwrap().prefix_cache_hits > 0);
    // Weights change without a restart.
    gateway.write_config("revisions: [{name: old, weight: 0}, {name: new, weight: 1}]");
    eventually("the new weights", async || {
        gateway
            .metric("kvasir_gateway_config_reloads_total{result=\"applied\"}")
            .await
            == 1.0
    })
    .await;
    for _ in 0..5 {
        let answer = Answer::of(gateway.request("a", "/v1/chat/completions", &chat)).await;
        assert_eq!(answer.json()["usage"]["prompt_tokens"], 16);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_with_other_assets_than_its_revision_is_refused() {
    let good = TestEngine::start(engine("a", "one", 1)).await;
    let other = TestEngine::start(engine("b", "one", 2)).await;
    let options = GatewayOptions {
        more: "revisions: [{name: one, weight: 1}]".to_owned(),
        ..GatewayOptions::default()
    };
    let gateway = TestGateway::start(&[good.address, other.address], options).await;
    eventually("the mismatch", async || {
        gateway.metric("kvasir_gateway_engine_mismatches_total").await >= 1.0
    })
    .await;
    let gateway = gateway.with_engines(1).await;
    let lengths: Vec<u64> = {
        let chat = json!({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1});
        let mut lengths = Vec::new();
        for _ in 0..6 {
            let answer = Answer::of(gateway.request("a", "/v1/chat/completions", &chat)).await;
            lengths.push(answer.json()["usage"]["prompt_tokens"].as_u64().unwrap());
        }
        lengths
    };
    assert!(lengths.iter().all(|length| *length == lengths[0]), "{lengths:?}");
}

/// As an engine does that is told to drain: it takes nothing new, and what runs there goes on.
pub(crate) fn drain(engine: &TestEngine) -> tokio_util::task::AbortOnDropHandle<u32> {
    let engine = std::sync::Arc::clone(&engine.engine);
    let draining = async move { engine.drain(std::time::Duration::from_secs(30)).await };
    tokio_util::task::AbortOnDropHandle::new(tokio::spawn(draining))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_revision_that_no_configuration_names_takes_over_with_its_own_text() {
    let (old, _new, gateway) = pair(both(), "").await;
    let chat = json!({"messages": [{"role": "user", "content": "hello hello"}], "max_tokens": 2, "ignore_eos": true});
    let length = async || {
        let answer = Answer::of(gateway.request("a", "/v1/chat/completions", &chat)).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        answer.json()["usage"]["prompt_tokens"].as_u64().unwrap()
    };
    let mut of_new = 0;
    for _ in 0..10 {
        of_new += usize::from(length().await == 16);
    }
    assert_eq!(of_new, 5, "both have as many engines");
    let _draining = drain(&old);
    for _ in 0..10 {
        length().await;
    }
    eventually("the old one to be left", async || length().await == 16).await;
    for _ in 0..5 {
        assert_eq!(length().await, 16);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unlisted_revision_gets_nothing_until_the_listed_one_has_gone() {
    let (old, new, gateway) = pair(both(), "revisions: [{name: old, weight: 100}]").await;
    let chat = json!({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1, "ignore_eos": true});
    for _ in 0..10 {
        let answer = Answer::of(gateway.request("a", "/v1/chat/completions", &chat)).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
    }
    let idle = new.engine.client().load().await.unwrap();
    assert_eq!(idle.prefix_cache_queries, 0, "nothing has come to it");
    let _draining = drain(&old);
    for _ in 0..10 {
        let answer = Answer::of(gateway.request("a", "/v1/chat/completions", &chat)).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
    }
    eventually("requests at the other one", async || {
        Answer::of(gateway.request("a", "/v1/chat/completions", &chat)).await;
        new.engine.client().load().await.unwrap().prefix_cache_queries > 0
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_that_wait_for_a_revision_that_leaves_are_read_again_for_the_next_one() {
    let small = |instance, revision, weights| EngineOptions {
        max_num_seqs: 1,
        ..engine(instance, revision, weights)
    };
    let engines = [small("a", "old", 1), small("b", "new", 5)];
    let (old, _new, gateway) = pair(engines, "revisions: [{name: old, weight: 100}]").await;
    let chat = json!({"messages": [{"role": "user", "content": "hello hello"}], "max_tokens": 2, "ignore_eos": true});
    let long = json!({"prompt": "hi", "max_tokens": 3, "ignore_eos": true, "stream": true});
    old.control.hold();
    old.control.allow(1);
    let running = gateway.stream("a", long).await.begun().await;
    let waiting = (0..4).map(|_| Answer::of(gateway.request("a", "/v1/chat/completions", &chat)));
    let mut leaver = None;
    let leaving = async {
        eventually("requests that wait", async || {
            gateway.metric("kvasir_gateway_waiting_requests").await == 4.0
        })
        .await;
        leaver = Some(drain(&old));
        eventually("the drain to be seen", async || {
            gateway.metric("kvasir_gateway_engines{state=\"draining\"}").await == 1.0
        })
        .await;
    };
    let (answers, ()) = futures::join!(futures::future::join_all(waiting), leaving);
    for answer in answers {
        assert_eq!(answer.status, 200, "{}", answer.text);
        assert_eq!(
            answer.json()["usage"]["prompt_tokens"],
            16,
            "by the new one's template"
        );
    }
    assert!(leaver.is_some());
    old.control.open();
    assert_eq!(running.rest().await.last().unwrap(), "[DONE]");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gateways_call_the_model_alike_whichever_revision_they_saw_first() {
    let named = |instance, revision, weights, model| EngineOptions {
        model,
        ..engine(instance, revision, weights)
    };
    let (old, new) = (named("a", "r2", 1, "tiny-v1"), named("b", "r1", 5, "tiny-v2"));
    let nowhere = || {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap()
    };
    let places = [nowhere(), nowhere()];
    let start = async |first: usize| {
        let options = GatewayOptions {
            more: "revisions: [{name: r1, weight: 1}, {name: r2, weight: 1}]".to_owned(),
            ..GatewayOptions::default()
        };
        let mut engines = [Some(old.clone()), Some(new.clone())];
        // Two rounds: each gateway has engines of its own, which come one after the other.
        let gateway = TestGateway::start(&places, options).await;
        let mut running = Vec::new();
        let mut gateway = Some(gateway);
        for (number, place) in [first, 1 - first].into_iter().enumerate() {
            let options = EngineOptions {
                listen: places[place],
                ..engines[place].take().unwrap()
            };
            running.push(TestEngine::start(options).await);
            gateway = Some(gateway.take().unwrap().with_engines(number + 1).await);
        }
        (gateway.unwrap(), running)
    };
    let mut seen = Vec::new();
    for first in [0, 1] {
        let (gateway, running) = start(first).await;
        let models = gateway.client.get(format!("{}/v1/models", gateway.url));
        let models = Answer::of(models.bearer_auth(&gateway.keys["a"])).await.json();
        let ids = models["data"]
            .as_array()
            .unwrap()
            .iter()
            .map(|model| model["id"].clone());
        let ids: Vec<serde_json::Value> = ids.collect();
        assert_eq!(ids, ["tiny-v1", "tiny-v2"]);
        for name in ["tiny-v1", "tiny-v2"] {
            let mut asked = body("hi", 1);
            asked["model"] = name.into();
            let answer = gateway.complete("a", asked).await;
            assert_eq!(answer.status, 200, "{}", answer.text);
            seen.push(answer.json()["model"].clone());
        }
        // A revision that takes no requests has no say.
        gateway.write_config("revisions: [{name: r1, weight: 1}, {name: r2, weight: 0}]");
        eventually("the new weights", async || {
            let mut asked = body("hi", 1);
            asked["model"] = "tiny-v1".into();
            gateway.complete("a", asked).await.status == 404
        })
        .await;
        for engine in running {
            engine.kill().await;
        }
    }
    assert_eq!(seen, ["tiny-v1"; 4]);
}
