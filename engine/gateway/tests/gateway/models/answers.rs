//! Who answers, with which text, cards, share and figures.

use super::*;
use crate::revisions::drain;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_model_is_answered_by_its_own_engine() {
    let (_small, _large, gateway) = both().await;
    let mut fingerprints = Vec::new();
    for (model, shown, engine) in [
        (Some("small"), "small", "s/0/0"),
        (Some("large"), "large", "l/0/0"),
        (Some("huge"), "large", "l/0/0"),
        (None, "small", "s/0/0"),
        (Some(""), "small", "s/0/0"),
    ] {
        let mut asked = body("hi", 2);
        asked["model"] = json!(model);
        let id = format!("of-{}", model.unwrap_or("none"));
        let request = gateway
            .request("a", "/v1/completions", &asked)
            .header("x-request-id", &id);
        let answer = Answer::of(request).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        assert_eq!(answer.json()["model"], shown);
        fingerprints.push(answer.json()["system_fingerprint"].clone());
        let line = gateway.audited(&id).await;
        assert_eq!(line["engines"], json!([engine]), "{model:?}");
        assert_eq!(
            line["model"],
            json!(model.filter(|name| !name.is_empty()).unwrap_or("small"))
        );
    }
    assert_ne!(fingerprints[0], fingerprints[1], "the weights differ");
    assert_eq!(fingerprints[1], fingerprints[2]);
    let events = gateway
        .stream("a", named("large", body("hi", 2)))
        .await
        .rest()
        .await;
    assert!(events[0].contains("\"model\":\"large\""), "{}", events[0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn text_and_cards_are_those_of_the_model_that_is_named() {
    let (_small, _large, gateway) = both().await;
    let chat = json!({"messages": [{"role": "user", "content": "hi"}]});
    let tokens = async |model: &str| {
        let answer = Answer::of(gateway.request("a", "/tokenize", &named(model, chat.clone()))).await;
        answer.json()["tokens"].clone()
    };
    let (small, large) = (tokens("small").await, tokens("large").await);
    assert_eq!(
        small.as_array().unwrap().len() + 1,
        large.as_array().unwrap().len()
    );
    let back = named("huge", json!({"tokens": large}));
    let answer = Answer::of(gateway.request("a", "/detokenize", &back)).await;
    assert_eq!(answer.json()["prompt"], "!!hi");
    let list = get(&gateway, "a", "/v1/models").await.json();
    let cards: Vec<(&str, &str)> = list["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|card| (card["id"].as_str().unwrap(), card["root"].as_str().unwrap()))
        .collect();
    let expected = [
        ("small", "small-file"),
        ("large", "large-file"),
        ("huge", "large-file"),
    ];
    assert_eq!(cards, expected);
    let card = get(&gateway, "a", "/v1/models/huge").await.json();
    assert_eq!(
        (&card["id"], &card["root"]),
        (&json!("huge"), &json!("large-file"))
    );
    let info = get(&gateway, "a", "/server_info").await.json();
    assert_eq!(info["model"]["name"], "small-file");
    assert_eq!(info["served_model_names"], json!(["small"]));
    assert_eq!(info["models"][1]["model"]["name"], "large-file");
    assert_eq!(info["models"][1]["served_model_names"], json!(["large", "huge"]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_of_one_model_sees_only_that_one() {
    let (_small, _large, gateway) = both().await;
    let ids = async |tenant: &str| {
        let list = get(&gateway, tenant, "/v1/models").await.json();
        let cards = list["data"].as_array().unwrap().clone();
        cards.iter().map(|card| card["id"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(ids("b").await, ["large"]);
    assert!(ids("c").await.is_empty());
    // What it means without a name is the first one that it sees.
    let answer = gateway.complete("b", body("hi", 1)).await;
    assert_eq!(answer.json()["model"], "large");
    let hidden = gateway.request("b", "/v1/completions", &named("small", body("hi", 1)));
    let hidden = Answer::of(hidden.header("x-request-id", "hidden")).await;
    let unknown = gateway.complete("b", named("neither", body("hi", 1))).await;
    assert_eq!((hidden.status, unknown.status), (404, 404));
    assert_eq!(hidden.text.replace("small", "neither"), unknown.text);
    assert_eq!(gateway.audited("hidden").await["reason"], "forbidden_model");
    assert_eq!(gateway.complete("c", body("hi", 1)).await.status, 404);
    assert_eq!(get(&gateway, "b", "/v1/models/small").await.status, 404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn figures_tell_models_apart_and_those_of_the_first_are_as_ever() {
    let (_small, _large, gateway) = both().await;
    for (model, count) in [("small", 1), ("large", 2)] {
        for _ in 0..count {
            assert_eq!(
                gateway.complete("a", named(model, body("hi", 3))).await.status,
                200
            );
        }
    }
    assert_eq!(gateway.metric("kvasir_gateway_routed_requests_total").await, 1.0);
    assert_eq!(of_large(&gateway, "routed_requests_total", "").await, 2.0);
    for (model, tokens) in [("small", 3.0), ("large", 6.0)] {
        let series = format!("vllm:generation_tokens_total{{model_name=\"{model}\"}}");
        assert_eq!(gateway.metric(&series).await, tokens, "{model}");
    }
    let text = gateway.metrics().await;
    let mut described: Vec<&str> = text.lines().filter(|line| line.starts_with("# HELP ")).collect();
    let number = described.len();
    described.sort_unstable();
    described.dedup();
    assert_eq!(described.len(), number, "a family is described twice");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn weights_of_revisions_are_those_of_the_model() {
    let small = TestEngine::start(engine("s", "small-file", 1)).await;
    let revision = |instance, revision| EngineOptions {
        revision,
        ..engine(instance, "large-file", 2)
    };
    let old = TestEngine::start(revision("o", "old")).await;
    let new = TestEngine::start(revision("n", "new")).await;
    let more = format!(
        "servedModelNames: [small]\nrevisions: [{{name: old, weight: 1}}, {{name: new, weight: 0}}]\n\
         models: [{{servedModelNames: [large], revisions: [{{name: old, weight: 0}}, {{name: new, weight: 1}}], \
         engines: {{static: [{{address: \"{}\"}}, {{address: \"{}\"}}]}}}}]",
        old.address, new.address
    );
    let gateway = TestGateway::start(&[small.address], options(&more)).await;
    let gateway = gateway.with_engines(1).await;
    eventually("both engines", async || {
        of_large(&gateway, "engines", ",state=\"usable\"").await == 2.0
    })
    .await;
    for (model, engine) in [("large", "n/0/0"), ("small", "s/0/0")] {
        for number in 0..3 {
            let id = format!("{model}-{number}");
            let asked = gateway.request("a", "/v1/completions", &named(model, body("hi", 1)));
            let answer = Answer::of(asked.header("x-request-id", &id)).await;
            assert_eq!(answer.status, 200, "{}", answer.text);
            assert_eq!(gateway.audited(&id).await["engines"], json!([engine]));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_is_ready_when_one_of_its_models_is() {
    let large = TestEngine::start(engine("l", "large-file", 2)).await;
    let (_kept, nowhere) = taken();
    let gateway = TestGateway::start(&[nowhere], options(&with_large(large.address, ""))).await;
    large_is_usable(&gateway).await;
    eventually("readiness", async || gateway.is_ready().await).await;
    assert_eq!(
        gateway.complete("a", named("large", body("hi", 1))).await.status,
        200
    );
    assert_eq!(
        gateway.complete("a", named("small", body("hi", 1))).await.status,
        503
    );
    let _draining = drain(&large);
    eventually("no readiness", async || !gateway.is_ready().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_the_beginning_of_a_prompt_counts_where_the_file_says_so() {
    let small = TestEngine::start(engine("s", "small-file", 1)).await;
    let large = TestEngine::start(engine("l", "large-file", 2)).await;
    let more = with_large(large.address, ", routing: {prefixChars: 15}");
    let gateway = TestGateway::start(&[small.address], options(&more))
        .await
        .with_engines(1)
        .await;
    large_is_usable(&gateway).await;
    // Fifteen characters of two bytes each, which are tokens here: seven blocks and a half.
    let prompt = "é".repeat(40);
    let ask = async |model: &str| gateway.complete("a", named(model, body(&prompt, 1))).await;
    for model in ["small", "large"] {
        assert_eq!(ask(model).await.status, 200);
    }
    eventually("news of blocks", async || {
        let blocks = gateway.metric("kvasir_gateway_index_blocks").await;
        blocks >= 20.0 && of_large(&gateway, "index_blocks", "").await == blocks
    })
    .await;
    for model in ["small", "large"] {
        // What the engine has doesn't depend on what the choice looks at.
        assert_eq!(ask(model).await.cached_tokens(), 76);
    }
    let overlap = "routed_overlap_blocks_total";
    assert_eq!(gateway.metric(&format!("kvasir_gateway_{overlap}")).await, 20.0);
    assert_eq!(of_large(&gateway, overlap, "").await, 7.0);
}
