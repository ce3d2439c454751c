//! The server on a real socket: keep-alive, disconnects, slow clients, shutdown.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use kvasir_client::EngineClient;
use kvasir_edge::{Edge, EdgeConfig, EdgeError, Shutdown};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::support::*;

struct Server {
    address: SocketAddr,
    stop: CancellationToken,
    task: JoinHandle<Result<Shutdown, EdgeError>>,
}

async fn serve(engine: &Arc<FakeEngine>, config: EdgeConfig) -> Server {
    let engine: Arc<dyn EngineClient> = Arc::clone(engine) as Arc<dyn EngineClient>;
    let edge = Edge::new(config, engine).await.unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let stop = CancellationToken::new();
    let task = tokio::spawn(edge.serve(listener, stop.clone()));
    Server { address, stop, task }
}

impl Server {
    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// A connection with a request that isn't answered.
    async fn running(&self, engine: &FakeEngine) -> TcpStream {
        let number = engine.requests().len();
        let mut client = self.connect().await;
        let request = http_post("/v1/completions", &completion(json!({})));
        client.write_all(request.as_bytes()).await.unwrap();
        wait_for("the engine to have the request", || {
            engine.requests().len() > number
        })
        .await;
        client
    }

    async fn shutdown(self) -> Shutdown {
        self.stop.cancel();
        tokio::time::timeout(Duration::from_secs(30), self.task)
            .await
            .expect("it ends")
            .unwrap()
            .unwrap()
    }
}

fn http_post(path: &str, body: &serde_json::Value) -> String {
    let body = body.to_string();
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    )
}

const HEALTH: &str = "GET /health HTTP/1.1\r\nhost: x\r\n\r\n";
const READY: &str = "GET /ready HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";

/// Reads until the text contains `needle`.
async fn read_until(stream: &mut TcpStream, needle: &str) -> String {
    let mut text = Vec::new();
    let reading = async {
        let mut buffer = [0; 4096];
        while !String::from_utf8_lossy(&text).contains(needle) {
            let count = stream.read(&mut buffer).await.unwrap();
            assert!(
                count > 0,
                "closed before {needle:?}: {}",
                String::from_utf8_lossy(&text)
            );
            text.extend_from_slice(&buffer[..count]);
        }
    };
    assert!(
        tokio::time::timeout(Duration::from_secs(30), reading)
            .await
            .is_ok(),
        "waited for {needle:?}"
    );
    String::from_utf8_lossy(&text).into_owned()
}

/// Reads until the other side closes.
async fn read_to_end(stream: &mut TcpStream) -> String {
    let mut text = Vec::new();
    let reading = stream.read_to_end(&mut text);
    // A reset is an end too.
    drop(
        tokio::time::timeout(Duration::from_secs(30), reading)
            .await
            .expect("it closes"),
    );
    String::from_utf8_lossy(&text).into_owned()
}

#[tokio::test]
async fn connections_are_kept_alive_and_shutdown_is_clean() {
    let server = serve(&FakeEngine::new(Script::Say("hello", 1)), EdgeConfig::default()).await;
    let mut client = server.connect().await;
    for _ in 0..3 {
        client.write_all(HEALTH.as_bytes()).await.unwrap();
        assert!(
            read_until(&mut client, "\r\n\r\n")
                .await
                .starts_with("HTTP/1.1 200")
        );
    }
    client
        .write_all(http_post("/v1/completions", &completion(json!({"stream": true}))).as_bytes())
        .await
        .unwrap();
    assert!(
        read_until(&mut client, "[DONE]")
            .await
            .contains("text/event-stream")
    );
    assert_eq!(server.shutdown().await, Shutdown::Clean);
}

#[tokio::test]
async fn closing_the_socket_aborts_streams_and_whole_answers() {
    let engine = FakeEngine::new(Script::Hang);
    let server = serve(&engine, EdgeConfig::default()).await;
    for stream in [true, false] {
        let mut client = server.connect().await;
        let body = completion(json!({"stream": stream}));
        client
            .write_all(http_post("/v1/completions", &body).as_bytes())
            .await
            .unwrap();
        let live = Arc::clone(&engine.live);
        wait_for("the request to reach the engine", || {
            live.load(Ordering::SeqCst) == 1
        })
        .await;
        drop(client);
        engine.idle().await;
    }
    assert_eq!(server.shutdown().await, Shutdown::Clean);
}

#[tokio::test]
async fn draining_fails_readiness_refuses_new_work_and_lets_streams_end() {
    let engine = FakeEngine::new(Script::Hang);
    let config = EdgeConfig {
        request_timeout: Some(Duration::from_secs(1)),
        ..EdgeConfig::default()
    };
    let server = serve(&engine, config).await;
    let mut running = server.connect().await;
    let body = completion(json!({"stream": true}));
    running
        .write_all(http_post("/v1/completions", &body).as_bytes())
        .await
        .unwrap();
    read_until(&mut running, "\"text\":\"h\"").await;
    server.stop.cancel();
    wait_for("the drain to begin", || server.stop.is_cancelled()).await;
    let mut late = server.connect().await;
    // The first answer may still come from before the drain.
    loop {
        let mut probe = server.connect().await;
        probe.write_all(READY.as_bytes()).await.unwrap();
        if read_to_end(&mut probe).await.starts_with("HTTP/1.1 503") {
            break;
        }
    }
    late.write_all(http_post("/v1/completions", &completion(json!({}))).as_bytes())
        .await
        .unwrap();
    let refused = read_until(&mut late, "}}").await;
    assert!(refused.starts_with("HTTP/1.1 503"), "{refused}");
    assert!(refused.contains("retry-after: 1"), "{refused}");
    assert!(read_until(&mut running, "[DONE]").await.contains("TimeoutError"));
    assert_eq!(server.shutdown().await, Shutdown::Clean);
}

#[tokio::test]
async fn streams_that_outlast_the_shutdown_timeout_end_with_an_error() {
    let engine = FakeEngine::new(Script::Hang);
    let config = EdgeConfig {
        shutdown_timeout: Duration::from_millis(50),
        ..EdgeConfig::default()
    };
    let server = serve(&engine, config).await;
    let mut running = server.connect().await;
    let body = completion(json!({"stream": true}));
    running
        .write_all(http_post("/v1/completions", &body).as_bytes())
        .await
        .unwrap();
    read_until(&mut running, "\"text\":\"h\"").await;
    let mut waiting = server.connect().await;
    waiting
        .write_all(http_post("/v1/completions", &completion(json!({}))).as_bytes())
        .await
        .unwrap();
    wait_for("both requests to run", || {
        let generates = |event: &&Event| matches!(event, Event::Generate(_));
        engine.events().iter().filter(generates).count() == 2
    })
    .await;
    assert_eq!(server.shutdown().await, Shutdown::Forced { remaining: 2 });
    engine.idle().await;
    let rest = read_to_end(&mut running).await;
    assert!(
        rest.contains("data: {\"error\":{\"message\":\"the server shut down before"),
        "{rest}"
    );
    assert!(rest.contains("data: [DONE]"), "{rest}");
    let answer = read_to_end(&mut waiting).await;
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
}

#[tokio::test]
async fn dropping_the_server_ends_everything() {
    let engine = FakeEngine::new(Script::Hang);
    let server = serve(&engine, EdgeConfig::default()).await;
    let mut running = server.connect().await;
    let body = completion(json!({"stream": true}));
    running
        .write_all(http_post("/v1/completions", &body).as_bytes())
        .await
        .unwrap();
    read_until(&mut running, "\"text\":\"h\"").await;
    server.task.abort();
    engine.idle().await;
}

#[tokio::test]
async fn clients_that_send_no_complete_request_are_closed() {
    let config = EdgeConfig {
        header_read_timeout: Duration::from_millis(50),
        ..EdgeConfig::default()
    };
    let server = serve(&FakeEngine::new(Script::Hang), config).await;
    // Nothing at all, the start of either protocol, and headers that never end.
    for start in [
        "",
        "P",
        "PRI * HTTP/2.0\r\n",
        "GET /health HTTP/1.1\r\nhost: x\r\nx: ",
    ] {
        let mut client = server.connect().await;
        client.write_all(start.as_bytes()).await.unwrap();
        let answer = read_to_end(&mut client).await;
        assert!(!answer.contains("200 OK"), "{start:?}: {answer}");
    }
    let mut client = server.connect().await;
    client.write_all(HEALTH.as_bytes()).await.unwrap();
    assert!(
        read_until(&mut client, "\r\n\r\n")
            .await
            .starts_with("HTTP/1.1 200")
    );
}

#[tokio::test]
async fn broken_and_oversized_requests_do_no_harm() {
    let config = EdgeConfig {
        max_body_bytes: 1000,
        ..EdgeConfig::default()
    };
    let server = serve(&FakeEngine::new(Script::Hang), config).await;
    let many_headers = "h: x\r\n".repeat(200);
    for (request, status) in [
        ("\0\0\0\0\r\n\r\n".to_owned(), "HTTP/1.1 400"),
        ("GET / HTTP/9.9\r\n\r\n".to_owned(), "HTTP/1.1 400"),
        (
            format!("GET /health HTTP/1.1\r\nhost: x\r\n{many_headers}\r\n"),
            "HTTP/1.1 431",
        ),
        (
            format!(
                "GET /health HTTP/1.1\r\nhost: x\r\nx: {}\r\n\r\n",
                "y".repeat(100_000)
            ),
            "HTTP/1.1 431",
        ),
        (
            http_post("/v1/completions", &json!({"prompt": "x".repeat(2000)})),
            "HTTP/1.1 413",
        ),
    ] {
        let mut client = server.connect().await;
        // The server may answer and close before everything is sent.
        drop(client.write_all(request.as_bytes()).await);
        let answer = read_until(&mut client, "\r\n").await;
        assert!(answer.starts_with(status), "{answer}");
    }
    let mut client = server.connect().await;
    client.write_all(HEALTH.as_bytes()).await.unwrap();
    assert!(
        read_until(&mut client, "\r\n\r\n")
            .await
            .starts_with("HTTP/1.1 200")
    );
}

#[tokio::test]
async fn more_connections_than_allowed_wait_for_their_turn() {
    let engine = FakeEngine::new(Script::Hang);
    let config = EdgeConfig {
        max_connections: 2,
        ..EdgeConfig::default()
    };
    let server = serve(&engine, config).await;
    let (first, second) = (server.running(&engine).await, server.running(&engine).await);
    let mut third = server.connect().await;
    third.write_all(HEALTH.as_bytes()).await.unwrap();
    drop((first, second));
    assert!(
        read_until(&mut third, "\r\n\r\n")
            .await
            .starts_with("HTTP/1.1 200")
    );
}

#[tokio::test]
async fn connections_that_ask_nothing_keep_nobody_out() {
    let engine = FakeEngine::new(Script::Hang);
    let config = EdgeConfig {
        max_connections: 3,
        ..EdgeConfig::default()
    };
    let server = serve(&engine, config).await;
    let _running = server.running(&engine).await;
    let (mut silent, mut answered) = (server.connect().await, server.connect().await);
    answered.write_all(HEALTH.as_bytes()).await.unwrap();
    read_until(&mut answered, "\r\n\r\n").await;
    let mut newcomers = Vec::new();
    for _ in 0..2 {
        let mut newcomer = server.connect().await;
        newcomer.write_all(HEALTH.as_bytes()).await.unwrap();
        assert!(
            read_until(&mut newcomer, "\r\n\r\n")
                .await
                .starts_with("HTTP/1.1 200")
        );
        newcomers.push(newcomer);
    }
    assert_eq!(read_to_end(&mut silent).await, "");
    read_to_end(&mut answered).await;
    let is_dropped = |event: &Event| matches!(event, Event::Dropped(_));
    assert!(
        !engine.events().iter().any(is_dropped),
        "who waits for an answer stays"
    );
}

#[tokio::test]
async fn bodies_that_two_servers_may_cut_differently_end_their_connection() {
    let server = serve(&FakeEngine::new(Script::Say("a", 1)), EdgeConfig::default()).await;
    let body = completion(json!({"max_tokens": 1})).to_string();
    let chunked = format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len());
    let lengths = ["", "content-length: 5\r\n"];
    for (coding, length, status) in [
        ("chunked", lengths[0], "200"),
        ("chunked", lengths[1], "200"),
        ("gzip, chunked", lengths[0], "400"),
    ] {
        let mut client = server.connect().await;
        let request = format!(
            "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n{length}transfer-encoding: {coding}\r\n\r\n\
             {chunked}{HEALTH}"
        );
        client.write_all(request.as_bytes()).await.unwrap();
        let answers = read_to_end(&mut client).await;
        assert!(answers.starts_with(&format!("HTTP/1.1 {status}")), "{answers}");
        assert_eq!(
            answers.matches("HTTP/1.1 ").count(),
            1,
            "what was hidden behind it is not read: {answers}"
        );
    }
}

#[tokio::test]
async fn client_that_never_reads_its_stream_is_cut_off() {
    // More than the buffers of hyper and the sockets take: the client's is small, the server's grows to a few megabytes.
    let num_tokens = 16 << 20;
    let text: &'static str = Box::leak("x".repeat(num_tokens).into_boxed_str());
    let engine = FakeEngine::with_context(Script::Say(text, 1 << 17), num_tokens as u32 + 100);
    let config = EdgeConfig {
        write_timeout: Duration::from_millis(100),
        ..EdgeConfig::default()
    };
    let server = serve(&engine, config).await;
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let mut client = socket.connect(server.address).await.unwrap();
    client
        .write_all(
            http_post(
                "/v1/completions",
                &completion(json!({"stream": true, "max_tokens": num_tokens})),
            )
            .as_bytes(),
        )
        .await
        .unwrap();
    wait_for("the request to be dropped", || {
        engine
            .events()
            .iter()
            .any(|event| matches!(event, Event::Dropped(_)))
    })
    .await;
    let seen = read_to_end(&mut client).await;
    assert!(!seen.contains("[DONE]"), "it was read to its end");
    assert_eq!(server.shutdown().await, Shutdown::Clean);
}
