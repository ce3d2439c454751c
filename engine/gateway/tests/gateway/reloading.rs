//! New versions of the configuration while requests run.

use kvasir_gateway::new_key;
use kvasir_gateway_core::names::TenantName;

use crate::support::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_rotate_without_a_restart_and_without_cutting_a_stream() {
    let engine = TestEngine::start(EngineOptions::default()).await;
    let mut gateway = TestGateway::start(&[engine.address], GatewayOptions::default())
        .await
        .with_engines(1)
        .await;
    engine.control.hold();
    engine.control.allow(2);
    let running = gateway.stream("a", body("hi", 30)).await.begun().await;
    let new = new_key(TenantName::new("a").unwrap(), None);
    std::fs::write(gateway.folder.path().join("keys.yaml"), new.key_file()).unwrap();
    let old = gateway.keys.insert("a", new.text().to_owned()).unwrap();
    engine.control.open();
    eventually("the new key", async || {
        gateway.complete("a", body("hi", 1)).await.status == 200
    })
    .await;
    let url = format!("{}/v1/completions", gateway.url);
    let with_old = gateway.client.post(url).bearer_auth(old).json(&body("hi", 1));
    assert_eq!(Answer::of(with_old).await.status, 401);
    assert_eq!(running.rest().await.last().unwrap(), "[DONE]");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bad_version_is_refused_and_counted_and_the_old_one_stays() {
    let engine = TestEngine::start(EngineOptions::default()).await;
    let gateway = TestGateway::start(&[engine.address], GatewayOptions::default())
        .await
        .with_engines(1)
        .await;
    gateway.write_config("noSuchField: 1");
    let refused = "kvasir_gateway_config_reloads_total{result=\"refused\"}";
    eventually("the refusal", async || gateway.metric(refused).await == 1.0).await;
    assert_eq!(
        gateway
            .metric("kvasir_gateway_config_last_reload_successful")
            .await,
        0.0
    );
    assert_eq!(gateway.complete("a", body("hi", 1)).await.status, 200);
    gateway.write_config("waiting: {maxWaitSeconds: 5}");
    eventually("a good one", async || {
        gateway
            .metric("kvasir_gateway_config_last_reload_successful")
            .await
            == 1.0
    })
    .await;
    assert_eq!(gateway.metric(refused).await, 1.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_reload_cannot_change_is_named_until_it_is_as_at_the_start() {
    let engine = TestEngine::start(EngineOptions::default()).await;
    let gateway = TestGateway::start(&[engine.address], GatewayOptions::default())
        .await
        .with_engines(1)
        .await;
    let url = gateway.folder.path().join("redis-url");
    std::fs::write(&url, "redis://127.0.0.1:1/").unwrap();
    let store = format!("limits: {{store: {{redisUrlFile: {}}}}}", url.display());
    gateway.write_config(&store);
    let needed = "kvasir_gateway_config_restart_needed{setting=\"limits.store\"}";
    eventually("the store's name", async || gateway.metric(needed).await == 1.0).await;
    assert_eq!(gateway.complete("a", body("hi", 1)).await.status, 200);
    gateway.write_config("routing: {maxAttempts: 7}");
    let routing = "kvasir_gateway_config_restart_needed{setting=\"routing\"}";
    eventually("the routing's name", async || {
        gateway.metric(routing).await == 1.0
    })
    .await;
    assert_eq!(gateway.metric(needed).await, 0.0);
}
