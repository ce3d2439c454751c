//! Bodies that name a model in every wrong way.

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_models_are_refused_before_anything_waits() {
    let (_kept, nowhere) = taken();
    let parked = ", waiting: {holdSeconds: 3600}";
    let more = with_large(nowhere, parked) + "\nwaiting: {holdSeconds: 3600}";
    let gateway = TestGateway::start(&[nowhere], options(&more)).await;
    let ask = async |path: &str, text: String| {
        let request = gateway.client.post(format!("{}{path}", gateway.url));
        Answer::of(request.bearer_auth(&gateway.keys["a"]).json_text(text)).await
    };
    let long = "x".repeat(1 << 20);
    let deep = format!(
        "{{\"model\": \"large\", \"x\": {}{}}}",
        "[".repeat(1000),
        "]".repeat(1000)
    );
    for path in [
        "/v1/completions",
        "/v1/chat/completions",
        "/tokenize",
        "/detokenize",
    ] {
        for (text, status, said) in [
            (
                format!("{{\"model\": \"{long}\"}}"),
                400,
                "model is longer than 512 bytes",
            ),
            ("{\"model\": 5}".to_owned(), 400, "model: invalid type"),
            ("{\"model\": [\"large\"]}".to_owned(), 400, "model: invalid type"),
            (
                "{\"model\": {\"large\": 1}}".to_owned(),
                400,
                "model: invalid type",
            ),
            ("{\"model\": \"large\\ud800\"}".to_owned(), 400, "model"),
            (
                "{\"model\": \"large\", \"model\": \"neither\"}".to_owned(),
                404,
                "`neither`",
            ),
            ("{\"model\": \"Large\"}".to_owned(), 404, "`Large`"),
            ("{\"model\": \"large \"}".to_owned(), 404, "`large `"),
            (
                "{\"model\": \"large\"".to_owned(),
                400,
                "the request body is invalid",
            ),
            (deep.clone(), 400, "nests deeper than 96"),
            ("[\"large\"]".to_owned(), 400, "the request body is invalid"),
        ] {
            let answer = ask(path, text).await;
            assert_eq!(answer.status, status, "{path}: {}", answer.text);
            assert!(answer.text.contains(said), "{path}: {said}: {}", answer.text);
            assert!(answer.text.len() < 2000);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_equal_members_the_last_one_says_which_model_it_is() {
    let (_small, _large, gateway) = both().await;
    for (first, last) in [("small", "large"), ("large", "small"), ("neither", "large")] {
        let text = format!(
            "{{\"model\": \"{first}\", \"prompt\": \"hi\", \"max_tokens\": 1, \"model\": \"{last}\"}}"
        );
        let request = gateway.client.post(format!("{}/v1/completions", gateway.url));
        let answer = Answer::of(request.bearer_auth(&gateway.keys["a"]).json_text(text)).await;
        assert_eq!(answer.json()["model"], last, "{}", answer.text);
    }
}
