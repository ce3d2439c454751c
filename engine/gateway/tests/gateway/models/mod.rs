//! One gateway in front of the engines of several models.

mod answers;
mod certificates;
mod changes;
mod hostile;

use std::net::SocketAddr;

use serde_json::{Value, json};
use tokio::net::TcpSocket;

use crate::support::*;

fn engine(instance: &'static str, model: &'static str, weights: u8) -> EngineOptions {
    EngineOptions {
        instance,
        model,
        weights,
        ..EngineOptions::default()
    }
}

/// The lines of the file that serve `large`, also called `huge`, beside `small`.
fn with_large(engine: SocketAddr, more: &str) -> String {
    format!(
        "servedModelNames: [small]\nmodels: [{{servedModelNames: [large, huge], engines: {{static: [{{address: \"{engine}\"}}]}}{more}}}]"
    )
}

/// A tenant for all models, one for the large one and one for none.
fn options(more: &str) -> GatewayOptions {
    GatewayOptions {
        tenants: vec![
            ("a", "models: \"*\", scopes: [inference, operations]".to_owned()),
            ("b", "models: [large]".to_owned()),
            ("c", "models: []".to_owned()),
        ],
        more: more.to_owned(),
    }
}

/// A figure of the large model's engines and queue.
async fn of_large(gateway: &TestGateway, name: &str, more: &str) -> f64 {
    let series = format!("kvasir_gateway_{name}{{model_name=\"large\"{more}}}");
    gateway.metric(&series).await
}

async fn large_is_usable(gateway: &TestGateway) {
    eventually("a usable engine of the large model", async || {
        of_large(gateway, "engines", ",state=\"usable\"").await == 1.0
    })
    .await;
}

/// Two engines, and a gateway that can use both.
async fn both() -> (TestEngine, TestEngine, TestGateway) {
    let small = TestEngine::start(engine("s", "small-file", 1)).await;
    let large = TestEngine::start(engine("l", "large-file", 2)).await;
    let gateway = TestGateway::start(&[small.address], options(&with_large(large.address, ""))).await;
    let gateway = gateway.with_engines(1).await;
    large_is_usable(&gateway).await;
    (small, large, gateway)
}

/// An address at which nothing answers, also not an engine of another test, for as long as the socket is held.
fn taken() -> (TcpSocket, SocketAddr) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = socket.local_addr().unwrap();
    (socket, address)
}

fn named(model: &str, mut body: Value) -> Value {
    body["model"] = json!(model);
    body
}

async fn get(gateway: &TestGateway, tenant: &str, path: &str) -> Answer {
    let request = gateway.client.get(format!("{}{path}", gateway.url));
    Answer::of(request.bearer_auth(&gateway.keys[tenant])).await
}
