//! A model whose engines are behind mutual TLS.

use bytes::Bytes;
use http::Request;
use http_body_util::Full;

use super::*;
use crate::secure::{ENGINE, GATEWAY, Pki, RIGHT, SecureEngine, SecureGateway};

const LARGE: &str = "engine.large.svc";

/// The large model behind mutual TLS, beside a first one of another service.
fn secure_large(pki: &Pki, engine: SocketAddr, expected: &str) -> String {
    let path = |kind: &str| pki.path(GATEWAY, kind).display().to_string();
    let tls = format!(
        "{{authorities: {}, certificate: {}, key: {}, names: [\"dns:{expected}\"]}}",
        pki.authorities().display(),
        path("pem"),
        path("key"),
    );
    format!(
        "auth: {{anonymous: {{serveEverybodyAs: a}}}}\ntenants: [{{name: a, models: '*'}}]\nservedModelNames: [small]\n\
         models: [{{servedModelNames: [large], engines: {{static: [{{address: \"{engine}\"}}], tls: {tls}}}}}]\n"
    )
}

async fn secure_status(pki: &Pki, gateway: &SecureGateway, model: &str) -> u16 {
    let asked = named(model, body("hi", 1)).to_string();
    let request = Request::post("/v1/completions")
        .header("host", "chat.example")
        .header("content-type", "application/json")
        .body(Full::from(Bytes::from(asked)))
        .unwrap();
    gateway.ask(&pki.client(None), request).await.unwrap().0
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_of_one_model_with_the_names_of_anothers_is_refused() {
    let pki = Pki::new();
    pki.issue(LARGE, LARGE);
    let small = SecureEngine::start(&pki).await;
    for (shown, is_right) in [(ENGINE, false), (LARGE, true)] {
        let large = SecureEngine::start_as(&pki, shown, &engine("l", "large-file", 2)).await;
        let more = secure_large(&pki, large.address, LARGE);
        let gateway = SecureGateway::start(&pki, small.address, &RIGHT, &more)
            .await
            .with_engine()
            .await;
        let series = if is_right {
            "kvasir_gateway_engines{model_name=\"large\",state=\"usable\"}"
        } else {
            "kvasir_gateway_engine_connection_failures_total{model_name=\"large\"}"
        };
        eventually(series, async || gateway.metric(series).await >= 1.0).await;
        assert_eq!(secure_status(&pki, &gateway, "small").await, 200);
        assert_eq!(
            secure_status(&pki, &gateway, "large").await,
            if is_right { 200 } else { 503 }
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_model_whose_certificates_are_not_there_yet_keeps_no_other_from_being_served_and_comes_later() {
    let pki = Pki::new();
    pki.issue(LARGE, LARGE);
    let small = SecureEngine::start(&pki).await;
    let large = SecureEngine::start_as(&pki, LARGE, &engine("l", "large-file", 2)).await;
    let later = pki.path("later", "pem");
    let more = secure_large(&pki, large.address, LARGE).replace(
        &format!("certificate: {}", pki.path(GATEWAY, "pem").display()),
        &format!("certificate: {}", later.display()),
    );
    let gateway = SecureGateway::start(&pki, small.address, &RIGHT, &more)
        .await
        .with_engine()
        .await;
    let is_good = "kvasir_gateway_config_last_reload_successful";
    eventually("the trouble's figure", async || {
        gateway.metric(is_good).await == 0.0
    })
    .await;
    assert_eq!(secure_status(&pki, &gateway, "small").await, 200);
    assert_eq!(secure_status(&pki, &gateway, "large").await, 503);
    std::fs::copy(pki.path(GATEWAY, "pem"), later).unwrap();
    eventually("the large model", async || {
        secure_status(&pki, &gateway, "large").await == 200
    })
    .await;
    assert_eq!(gateway.metric(is_good).await, 1.0);
    let end = "kvasir_gateway_certificate_not_after_seconds{model_name=\"large\",certificate=\"engines\"}";
    eventually("its certificate's end", async || gateway.metric(end).await > 1e9).await;
}
