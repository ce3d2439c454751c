//! Models that come, change and go while the gateway runs.

use std::time::Duration;

use super::*;
use crate::revisions::drain;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_model_comes_and_goes_while_streams_run() {
    let small = TestEngine::start(engine("s", "small-file", 1)).await;
    let large = TestEngine::start(engine("l", "large-file", 2)).await;
    let alone = "servedModelNames: [small]";
    let gateway = TestGateway::start(&[small.address], options(alone)).await;
    let gateway = gateway.with_engines(1).await;
    let _pace = (small.pace(), large.pace());
    assert_eq!(
        gateway.complete("a", named("large", body("hi", 1))).await.status,
        404
    );
    let of_small = gateway.stream("a", body("hi", 1900)).await.begun().await;
    gateway.write_config(&with_large(large.address, ""));
    large_is_usable(&gateway).await;
    let of_large = gateway
        .stream("a", named("large", body("hi", 1900)))
        .await
        .begun()
        .await;
    gateway.write_config(alone);
    eventually("the model's end", async || {
        get(&gateway, "a", "/v1/models/large").await.status == 404
    })
    .await;
    let answer = gateway.complete("a", named("large", body("hi", 1))).await;
    assert_eq!(answer.status, 404, "{}", answer.text);
    let list = get(&gateway, "a", "/v1/models").await.json();
    assert_eq!(list["data"].as_array().unwrap().len(), 1);
    assert!(!gateway.metrics().await.contains("\"large\""));
    // What runs there ends as it would have, long after the look at which its pool was given up.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    small.control.open();
    large.control.open();
    for stream in [of_small, of_large] {
        let events = stream.rest().await;
        assert_eq!(events.last().unwrap(), "[DONE]");
        assert!(events.iter().all(|event| !event.contains("error")), "{events:?}");
        assert!(events.len() > 100);
    }
    // It comes back, with new queues and figures.
    gateway.write_config(&with_large(large.address, ""));
    large_is_usable(&gateway).await;
    assert_eq!(
        gateway.complete("a", named("large", body("hi", 1))).await.status,
        200
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_wait_in_their_own_models_room_and_are_answered_or_sent_away_when_that_changes() {
    let small = TestEngine::start(engine("s", "small-file", 1)).await;
    let (_kept, nowhere) = taken();
    let parked = ", waiting: {holdSeconds: 3600, capacity: 2}";
    let gateway = TestGateway::start(&[small.address], options(&with_large(nowhere, parked))).await;
    let gateway = gateway.with_engines(1).await;
    let num_waiting = async |number: f64| {
        eventually("requests that wait", async || {
            of_large(&gateway, "waiting_requests", "").await == number
        })
        .await;
    };
    let ask = || gateway.complete("a", named("large", body("hi", 2)));
    let told = async {
        num_waiting(1.0).await;
        // The first model's requests don't wait for it, nor does one that nobody serves.
        assert_eq!(gateway.complete("a", body("hi", 1)).await.status, 200);
        assert_eq!(
            gateway
                .complete("a", named("neither", body("hi", 1)))
                .await
                .status,
            404
        );
        assert_eq!(gateway.metric("kvasir_gateway_waiting_requests").await, 0.0);
        // Its engines are found elsewhere: who waits is answered there.
        let large = TestEngine::start(engine("l", "large-file", 2)).await;
        gateway.write_config(&with_large(large.address, parked));
        large
    };
    let (answer, large) = futures::join!(ask(), told);
    assert_eq!(
        (answer.status, &answer.json()["model"]),
        (200, &json!("large")),
        "{}",
        answer.text
    );
    // Once more without engines, and then without the model.
    let _draining = drain(&large);
    gateway.write_config(&with_large(nowhere, parked));
    let gone = async {
        num_waiting(1.0).await;
        gateway.write_config("servedModelNames: [small]");
    };
    let (answer, ()) = futures::join!(ask(), gone);
    assert_eq!(answer.status, 404, "{}", answer.text);
    assert!(answer.text.contains("large"), "{}", answer.text);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_may_change_without_new_queues_does() {
    let (_small, large, gateway) = both().await;
    let before = of_large(&gateway, "routed_requests_total", "").await;
    assert_eq!(
        gateway.complete("a", named("large", body("hi", 1))).await.status,
        200
    );
    let changed = with_large(large.address, ", waiting: {maxWaitSeconds: 7}").replace("huge", "vast");
    gateway.write_config(&changed);
    eventually("the other name", async || {
        gateway.complete("a", named("vast", body("hi", 1))).await.status == 200
    })
    .await;
    assert_eq!(
        gateway.complete("a", named("huge", body("hi", 1))).await.status,
        404
    );
    assert_eq!(
        of_large(&gateway, "routed_requests_total", "").await,
        before + 2.0
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_model_whose_routing_changes_is_answered_all_the_while() {
    let (_small, large, gateway) = both().await;
    let ask = async || gateway.complete("a", named("large", body("hi", 1))).await.status;
    for _ in 0..5 {
        assert_eq!(ask().await, 200);
    }
    let (mut routed, mut asked) = (5.0, 5.0);
    gateway.write_config(&with_large(large.address, ", routing: {policy: LeastRequests}"));
    // New queues count from 0.
    while routed == asked {
        assert_eq!(ask().await, 200);
        asked += 1.0;
        routed = of_large(&gateway, "routed_requests_total", "").await;
    }
    large_is_usable(&gateway).await;
    assert_eq!(ask().await, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_with_a_name_twice_or_too_many_models_changes_nothing() {
    let (_small, large, gateway) = both().await;
    let refused = "kvasir_gateway_config_reloads_total{result=\"refused\"}";
    let many = (0..65).map(|number| {
        let place = 40_000 + number;
        format!(
            "{{servedModelNames: [m{number}], engines: {{static: [{{address: \"127.0.0.1:{place}\"}}]}}}}"
        )
    });
    let many = many.collect::<Vec<String>>().join(", ");
    let versions = [
        with_large(large.address, "").replace("huge", "small"),
        with_large(large.address, "").replace("huge", "large"),
        with_large(large.address, "").replace("servedModelNames: [small]", "servedModelNames: []"),
        format!("servedModelNames: [small]\nmodels: [{many}]"),
    ];
    for (number, version) in (1..).zip(&versions) {
        gateway.write_config(version);
        eventually("the refusal", async || {
            gateway.metric(refused).await == f64::from(number)
        })
        .await;
        for model in ["small", "large", "huge"] {
            assert_eq!(
                gateway.complete("a", named(model, body("hi", 1))).await.status,
                200
            );
        }
    }
}
