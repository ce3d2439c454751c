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
