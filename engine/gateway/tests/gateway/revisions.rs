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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn revisions_share_requests_by_weight_each_with_its_own_text_and_hashes() {
    let old = TestEngine::start(engine("a", "old", 1)).await;
    let new = TestEngine::start(engine("b", "new", 5)).await;
    let options = GatewayOptions {
        more: "revisions: [{name: old, weight: 3}, {name: new, weight: 1}]".to_owned(),
        ..GatewayOptions::default()
    };
    let gateway = TestGateway::start(&[old.address, new.address], options)
        .await
        .with_engines(2)
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
fn drain(engine: &TestEngine) -> tokio_util::task::AbortOnDropHandle<u32> {
    let engine = std::sync::Arc::clone(&engine.engine);
    let draining = async move { engine.drain(std::time::Duration::from_secs(30)).await };
    tokio_util::task::AbortOnDropHandle::new(tokio::spawn(draining))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_revision_that_no_configuration_names_takes_over_with_its_own_text() {
    let old = TestEngine::start(engine("a", "old", 1)).await;
    let new = TestEngine::start(engine("b", "new", 5)).await;
    let gateway = TestGateway::start(&[old.address, new.address], GatewayOptions::default())
        .await
        .with_engines(2)
        .await;
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
    let old = TestEngine::start(engine("a", "old", 1)).await;
    let new = TestEngine::start(engine("b", "new", 5)).await;
    let options = GatewayOptions {
        more: "revisions: [{name: old, weight: 100}]".to_owned(),
        ..GatewayOptions::default()
    };
    let gateway = TestGateway::start(&[old.address, new.address], options)
        .await
        .with_engines(2)
        .await;
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
    let old = TestEngine::start(small("a", "old", 1)).await;
    let new = TestEngine::start(small("b", "new", 5)).await;
    let options = GatewayOptions {
        more: "revisions: [{name: old, weight: 100}]".to_owned(),
        ..GatewayOptions::default()
    };
    let gateway = TestGateway::start(&[old.address, new.address], options)
        .await
        .with_engines(2)
        .await;
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
