//! How much a tenant may have: charged before, settled after, told in headers.

use serde_json::json;

use crate::support::*;

fn limited(limits: &str) -> GatewayOptions {
    GatewayOptions {
        tenants: vec![
            ("a", format!("models: \"*\", limits: {{{limits}}}")),
            ("b", "models: \"*\"".to_owned()),
        ],
        ..GatewayOptions::default()
    }
}

async fn gateway(limits: &str) -> (TestEngine, TestGateway) {
    let engine = TestEngine::start(EngineOptions::default()).await;
    let gateway = TestGateway::start(&[engine.address], limited(limits)).await;
    (engine, gateway.with_engines(1).await)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_beyond_the_limit_get_429_and_a_time_and_others_do_not_notice() {
    let (_engine, gateway) = gateway("requestsPerMinute: 3").await;
    for left in ["2", "1", "0"] {
        let answer = gateway.complete("a", body("hello", 2)).await;
        assert_eq!(answer.status, 200);
        assert_eq!(answer.header("x-ratelimit-limit-requests"), "3");
        assert_eq!(answer.header("x-ratelimit-remaining-requests"), left);
    }
    let refused = gateway.complete("a", body("hello", 2)).await;
    assert_eq!(refused.status, 429, "{}", refused.text);
    assert!(refused.header("retry-after").parse::<u64>().unwrap() >= 1);
    assert_eq!(refused.header("x-ratelimit-limit-requests"), "3");
    assert_eq!(refused.header("x-ratelimit-remaining-requests"), "0");
    assert_eq!(refused.json()["error"]["type"], "RateLimitError");
    assert_eq!(gateway.complete("b", body("hello", 2)).await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_estimate_is_charged_and_the_result_settled_to_the_token() {
    let (_engine, gateway) = gateway("tokensPerMinute: 1000").await;
    // 8 tokens in and 30 out; while it runs as many are reserved.
    let answer = gateway.complete("a", body("12345678", 30)).await;
    assert_eq!(answer.header("x-ratelimit-remaining-tokens"), "962");
    let mut short = body("12345678", 900);
    short["min_tokens"] = json!(0);
    short["stop_token_ids"] = json!((0..100).collect::<Vec<u32>>());
    let answer = gateway.complete("a", short).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    let used = answer.json()["usage"]["total_tokens"].as_u64().unwrap();
    let answer = gateway.complete("a", body("1", 1)).await;
    let left: u64 = answer.header("x-ratelimit-remaining-tokens").parse().unwrap();
    assert_eq!(left, 1000 - 38 - used - 2);
    let whole = gateway.complete("a", body("1", 1001)).await;
    assert_eq!(whole.status, 429);
    assert_eq!(
        whole.header("retry-after"),
        "",
        "no wait helps a request that is larger than the limit"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_leaves_pays_for_what_was_made() {
    let (engine, gateway) = gateway("tokensPerMinute: 5000").await;
    let asked = body("12345678", 1000);
    engine.control.hold();
    engine.control.allow(4);
    let events = gateway.stream("a", asked).await.begun().await;
    drop(events);
    let client = engine.engine.client();
    eventually("the end of the request", async || {
        // The engine hears of it between two steps.
        engine.control.allow(1);
        client.load().await.unwrap().num_running == 0
    })
    .await;
    engine.control.open();
    let settled = async || {
        gateway
            .metric("kvasir_gateway_tokens_total{tenant=\"a\",kind=\"output\"}")
            .await
    };
    eventually("the settlement", async || settled().await > 0.0).await;
    let made = settled().await as u64;
    assert!(made < 100, "{made}");
    let answer = gateway.complete("a", body("1", 1)).await;
    let left: u64 = answer.header("x-ratelimit-remaining-tokens").parse().unwrap();
    assert_eq!(left, 5000 - 8 - made - 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_prompts_of_one_call_are_charged_together_or_not_at_all() {
    let (_engine, gateway) = gateway("requestsPerMinute: 5").await;
    let prompts = |number: usize| {
        let mut asked = body("", 2);
        asked["prompt"] = json!(vec!["hello"; number]);
        asked
    };
    let answer = gateway.complete("a", prompts(3)).await;
    assert_eq!(
        answer.json()["choices"].as_array().unwrap().len(),
        3,
        "{}",
        answer.text
    );
    let refused = gateway.complete("a", prompts(3)).await;
    assert_eq!(refused.status, 429);
    // What others use and all that this call wants, not what it had charged until it was refused.
    let text = "3 of 5 requests per minute are used and 3 more are wanted";
    assert!(refused.text.contains(text), "{}", refused.text);
    assert_eq!(refused.header("x-ratelimit-remaining-requests"), "2");
    let answer = gateway.complete("a", body("hello", 2)).await;
    assert_eq!(answer.header("x-ratelimit-remaining-requests"), "1");
    let never = gateway.complete("a", prompts(6)).await;
    assert_eq!(
        (never.status, &never.json()["error"]["param"]),
        (400, &json!("prompt"))
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_leaves_before_its_first_token_pays_for_its_prompt() {
    let (engine, gateway) = gateway("tokensPerMinute: 5000").await;
    engine.control.hold();
    let client = engine.engine.client();
    {
        let asked = body("12345678", 1000);
        let waiting = gateway.complete("a", asked);
        let at_engine = eventually("the engine to have it", async || {
            let load = client.load().await.unwrap();
            load.num_running + load.num_waiting > 0
        });
        tokio::select! {
            answer = waiting => panic!("{answer:?}"),
            () = at_engine => {}
        }
    }
    let input = "kvasir_gateway_tokens_total{tenant=\"a\",kind=\"input\"}";
    eventually("the settlement", async || gateway.metric(input).await > 0.0).await;
    assert_eq!(gateway.metric(input).await, 8.0);
    engine.control.open();
    let answer = gateway.complete("a", body("1", 1)).await;
    assert_eq!(
        answer.header("x-ratelimit-remaining-tokens"),
        (5000 - 8 - 2).to_string()
    );
}

/// What an engine has made is paid for, also what lies between it and a client that doesn't read: here the second prompt keeps the call from
/// its answer, while the first one's tokens come.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_that_nobody_read_are_paid_for() {
    let engine = TestEngine::start(EngineOptions {
        max_num_seqs: 1,
        ..EngineOptions::default()
    })
    .await;
    let gateway = TestGateway::start(&[engine.address], limited("tokensPerMinute: 100000"))
        .await
        .with_engines(1)
        .await;
    let output = "kvasir_gateway_tokens_total{tenant=\"a\",kind=\"output\"}";
    let client = engine.engine.client();
    let mut asked = body("", 500);
    asked["prompt"] = json!(["first", "second"]);
    // How much has come when the client leaves depends on the machine: several tokens come soon enough sooner or later.
    eventually("more than one token at the end of a call", async || {
        let before = gateway.metric(output).await;
        let entered = engine.control.entered();
        engine.control.hold();
        engine.control.allow(10);
        {
            let waiting = gateway.complete("a", asked.clone());
            let running = eventually("some tokens", async || engine.control.entered() >= entered + 10);
            tokio::select! {
                answer = waiting => panic!("{answer:?}"),
                () = running => {}
            }
        }
        eventually("the settlement", async || {
            engine.control.allow(1);
            gateway.metric(output).await > before && client.load().await.unwrap().num_running == 0
        })
        .await;
        gateway.metric(output).await > before + 1.0
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_at_one_time_are_limited_and_free_again_at_their_end() {
    let (engine, gateway) = gateway("concurrency: 1").await;
    let _pace = engine.pace();
    let first = gateway.stream("a", body("hello", 1500)).await.begun().await;
    let refused = gateway.complete("a", body("hello", 2)).await;
    assert_eq!((refused.status, refused.header("retry-after")), (429, "1"));
    engine.control.open();
    assert_eq!(first.rest().await.last().unwrap(), "[DONE]");
    assert_eq!(gateway.complete("a", body("hello", 2)).await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn output_is_bounded_by_the_tenant_and_priority_can_only_be_lowered() {
    let engine = TestEngine::start(EngineOptions::default()).await;
    let options = GatewayOptions {
        tenants: vec![("a", "models: \"*\", maxTokens: 5, priority: 3".to_owned())],
        ..GatewayOptions::default()
    };
    let gateway = TestGateway::start(&[engine.address], options)
        .await
        .with_engines(1)
        .await;
    let refused = gateway.complete("a", body("hello", 6)).await;
    assert_eq!(
        (refused.status, &refused.json()["error"]["param"]),
        (400, &json!("max_tokens"))
    );
    let mut open =
        json!({"messages": [{"role": "user", "content": "hi"}], "ignore_eos": true, "priority": -9});
    let answer = Answer::of(gateway.request("a", "/v1/chat/completions", &open)).await;
    assert_eq!(answer.json()["usage"]["completion_tokens"], 5, "{}", answer.text);
    open["max_tokens"] = json!(4);
    let answer = Answer::of(gateway.request("a", "/v1/chat/completions", &open)).await;
    assert_eq!(answer.json()["usage"]["completion_tokens"], 4);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn counting_tokens_is_a_request_that_costs_no_tokens() {
    let (_engine, gateway) = gateway("requestsPerMinute: 2, tokensPerMinute: 10").await;
    let asked = [
        ("/tokenize", json!({"prompt": "a text of more than ten tokens"})),
        ("/detokenize", json!({"tokens": [104, 105]})),
    ];
    for ((path, body), left) in asked.iter().zip(["1", "0"]) {
        let answer = Answer::of(gateway.request("a", path, body)).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        assert_eq!(answer.header("x-ratelimit-remaining-requests"), left, "{path}");
        assert_eq!(answer.header("x-ratelimit-remaining-tokens"), "10", "{path}");
    }
    for (path, body) in &asked {
        assert_eq!(
            Answer::of(gateway.request("a", path, body)).await.status,
            429,
            "{path}"
        );
    }
}
