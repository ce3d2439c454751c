//! What only the gRPC server and client have: connections, sessions, health, listeners.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "test code outside of test functions, which the configuration's exceptions don't cover"
)]

mod support;

use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use kvasir_client::types::session_request::Kind as Command;
use kvasir_client::types::{
    AbortRequest, ErrorCode, GenerateRequest, GetLoadRequest, SessionRequest, StepOutputs,
};
use kvasir_client::{ConnectError, EngineClient, GrpcClient};
use kvasir_proto::engine::v1::engine_client::EngineClient as Stub;
use kvasir_service::grpc::{Listener, serve};
use kvasir_service::{Engine, ServiceError};
use support::raw::{Proxy, RawCodec, check_health};
use support::{
    Control, DEADLINE, Fixture, Kind, Options, code, collect, error_of, expected, next, prompt, request,
    setup, tokens_of,
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;
use tonic::{Code, Streaming};
use tonic_health::pb::health_check_response::ServingStatus;

/// A session without the client library.
struct RawSession {
    requests: mpsc::UnboundedSender<SessionRequest>,
    outputs: Streaming<StepOutputs>,
}

impl RawSession {
    async fn open(target: &str) -> Self {
        let mut stub = Stub::connect(target.to_owned()).await.unwrap();
        let (requests, receiver) = mpsc::unbounded_channel();
        let outputs = stub
            .session(UnboundedReceiverStream::new(receiver))
            .await
            .unwrap()
            .into_inner();
        Self { requests, outputs }
    }

    fn generate(&self, request: GenerateRequest) {
        self.requests
            .send(SessionRequest {
                kind: Some(Command::Generate(request)),
            })
            .unwrap();
    }

    async fn next(&mut self) -> StepOutputs {
        tokio::time::timeout(DEADLINE, self.outputs.message())
            .await
            .unwrap()
            .unwrap()
            .expect("the session ended")
    }
}

async fn fixture() -> Fixture {
    Fixture::new(Kind::Tcp).await
}

fn target(fixture: &Fixture) -> &str {
    &fixture.server.as_ref().unwrap().target
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_gets_one_message_per_step_for_all_of_its_requests() {
    let fixture = fixture().await;
    let mut session = RawSession::open(target(&fixture)).await;
    // All three begin together: the first step waits until the server has read them, which the refusal of the last one shows.
    fixture.control.hold();
    for id in ["a", "b", "c", "c"] {
        session.generate(GenerateRequest {
            n: 2,
            ..request(id, &prompt(4, 0), 30)
        });
    }
    let (mut messages, mut finished, mut widest, mut admitted) = (0, 0, 0, Vec::new());
    while finished < 6 {
        let message = session.next().await;
        for answer in &message.admissions {
            match answer.error {
                None => admitted.push(answer.request_id.clone()),
                Some(_) => fixture.control.open(),
            }
        }
        messages += u64::from(!message.outputs.is_empty());
        widest = widest.max(message.outputs.len());
        for output in &message.outputs {
            assert!(
                admitted.contains(&output.request_id),
                "an output came before its admission"
            );
            finished += usize::from(output.finish.is_some());
        }
    }
    assert_eq!(admitted, ["a", "b", "c"]);
    assert_eq!(widest, 6);
    assert_eq!(messages, fixture.load().await.num_steps);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_raw_session_is_checked_like_any_client() {
    let fixture = fixture().await;
    let mut session = RawSession::open(target(&fixture)).await;
    fixture.control.hold();
    session.generate(request("a", &prompt(4, 0), 3));
    assert!(session.next().await.admissions[0].error.is_none());
    session.generate(request("a", &prompt(4, 0), 3));
    session.generate(request(&"x".repeat(100_000), &prompt(4, 0), 3));
    session.requests.send(SessionRequest { kind: None }).unwrap();
    let unknown = AbortRequest {
        request_id: "nobody".to_owned(),
        index: None,
    };
    session
        .requests
        .send(SessionRequest {
            kind: Some(Command::Abort(unknown)),
        })
        .unwrap();
    let mut refusals = Vec::new();
    while refusals.len() < 2 {
        refusals.extend(session.next().await.admissions);
    }
    assert!(
        refusals
            .iter()
            .all(|refusal| refusal.error.as_ref().unwrap().param == "request_id")
    );
    assert!(refusals[1].request_id.len() <= 512);
    fixture.control.open();
    let mut tokens = Vec::new();
    while tokens.len() < 3 {
        tokens.extend(
            session
                .next()
                .await
                .outputs
                .into_iter()
                .flat_map(|output| output.token_ids),
        );
    }
    assert_eq!(tokens, expected(&prompt(4, 0), 7, 3));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_says_no_more_is_finished_and_then_ended() {
    let fixture = fixture().await;
    let mut session = RawSession::open(target(&fixture)).await;
    session.generate(request("a", &prompt(4, 0), 5));
    let RawSession { requests, outputs } = &mut session;
    drop(std::mem::replace(requests, mpsc::unbounded_channel().0));
    let messages: Vec<_> = tokio::time::timeout(DEADLINE, outputs.collect::<Vec<_>>())
        .await
        .unwrap();
    let tokens: Vec<_> = messages
        .into_iter()
        .flat_map(|message| message.unwrap().outputs)
        .flat_map(|output| output.token_ids)
        .collect();
    assert_eq!(tokens, expected(&prompt(4, 0), 7, 5));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_that_are_no_message_end_only_their_own_session() {
    let fixture = fixture().await;
    let stream = fixture.start(request("good", &prompt(4, 0), 1000)).await;
    for bytes in [
        // An id that isn't UTF-8, a length past the end, a bad wire type, an endless varint.
        vec![0x0a, 0x04, 0x0a, 0x02, 0xff, 0xfe],
        vec![0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f],
        vec![0x0f],
        vec![0xff; 64],
    ] {
        let channel = Channel::from_shared(target(&fixture).to_owned())
            .unwrap()
            .connect()
            .await
            .unwrap();
        let mut grpc = tonic::client::Grpc::new(channel);
        grpc.ready().await.unwrap();
        let path = http::uri::PathAndQuery::from_static("/kvasir.engine.v1.Engine/Session");
        let (sender, receiver) = mpsc::unbounded_channel();
        sender.send(bytes::Bytes::from(bytes.clone())).unwrap();
        let requests = tonic::Request::new(UnboundedReceiverStream::new(receiver));
        let mut outputs = grpc
            .streaming(requests, path, RawCodec)
            .await
            .unwrap()
            .into_inner();
        let refused = tokio::time::timeout(DEADLINE, outputs.message()).await.unwrap();
        assert!(refused.is_err(), "{bytes:?} gave {refused:?}");
        drop(sender);
    }
    assert_eq!(
        tokens_of(&collect(stream).await, 0),
        expected(&prompt(4, 0), 7, 1000)
    );
    fixture.assert_idle().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_over_the_limit_ends_only_its_own_session() {
    let fixture = fixture().await;
    let mut session = RawSession::open(target(&fixture)).await;
    session.generate(GenerateRequest {
        cache_salt: "x".repeat(17 << 20),
        ..request("big", &prompt(4, 0), 1)
    });
    let refused = tokio::time::timeout(DEADLINE, session.outputs.message())
        .await
        .unwrap()
        .unwrap_err();
    assert_eq!(refused.code(), Code::OutOfRange, "{refused:?}");
    assert_eq!(
        collect(fixture.start(request("good", &prompt(4, 0), 3)).await)
            .await
            .len(),
        3
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_never_reads_loses_its_requests_and_nobody_else() {
    let mut options = Options::default();
    options.limits.output_buffer = 64;
    let fixture = Fixture::with(Kind::Tcp, options).await;
    let session = RawSession::open(target(&fixture)).await;
    let sampling = kvasir_client::types::SamplingParams {
        logprobs: Some(20),
        ..request("", &[], 1).sampling.unwrap()
    };
    session.generate(GenerateRequest {
        n: 32,
        sampling: Some(sampling),
        ..request("deaf", &prompt(4, 0), 90_000)
    });
    fixture.load_until("the request", |load| load.num_steps > 0).await;
    fixture.assert_idle().await;
    assert!(fixture.load().await.num_steps < 90_000, "it ran to its end");
    assert_eq!(
        collect(fixture.start(request("good", &prompt(4, 0), 3)).await)
            .await
            .len(),
        3
    );
    drop(session);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_connection_aborts_its_requests_and_the_client_connects_again() {
    let fixture = fixture().await;
    let proxy = Proxy::start(target(&fixture)).await;
    let client = GrpcClient::connect(&proxy.target()).await.unwrap();
    // Two steps, so that the request is running and can neither end nor outrun its reader.
    fixture.control.hold();
    let mut stream = client
        .generate(request("a", &prompt(4, 0), 90_000))
        .await
        .unwrap();
    fixture.control.allow(2);
    next(&mut stream).await;

    proxy.cut().await;
    assert_eq!(error_of(&collect(stream).await, 0).code(), ErrorCode::Unavailable);
    fixture.control.open();
    fixture.assert_idle().await;
    assert!(
        fixture.control.entered() < 90_000,
        "it ran to its end, though nobody reads it"
    );
    assert!(!client.is_connected());
    let Err(refused) = client.generate(request("b", &prompt(4, 0), 3)).await else {
        panic!("it was admitted")
    };
    assert_eq!(refused.code(), ErrorCode::Unavailable);
    assert!(refused.message.contains(&proxy.target()), "{}", refused.message);

    proxy.mend();
    tokio::time::timeout(DEADLINE, client.connected()).await.unwrap();
    let outputs = collect(client.generate(request("a", &prompt(4, 0), 3)).await.unwrap()).await;
    assert_eq!(tokens_of(&outputs, 0), expected(&prompt(4, 0), 7, 3));
}

/// An engine on a socket whose weights have this digest, and what stops it.
async fn engine_with_weights(
    path: &std::path::Path,
    digest: u8,
) -> (CancellationToken, tokio::task::JoinHandle<()>) {
    let mut parts = setup(&Arc::new(Control::default()), &Options::default());
    parts.model.weights_digest = format!("{digest:064x}");
    let engine = Engine::start(parts).unwrap();
    let server = Listener::Unix(path.to_owned()).bind().await.unwrap();
    let stop = CancellationToken::new();
    let stopped = stop.clone();
    let task = tokio::spawn(async move { server.serve(&engine, stopped).await.unwrap() });
    (stop, task)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_that_came_back_with_another_model_is_not_used() {
    let folder = tempfile::TempDir::new().unwrap();
    let path = folder.path().join("engine.sock");
    let (stop, task) = engine_with_weights(&path, 1).await;
    let client = GrpcClient::connect(&format!("unix:{}", path.display()))
        .await
        .unwrap();
    stop.cancel();
    task.await.unwrap();
    client.disconnected().await;

    let (stop, task) = engine_with_weights(&path, 2).await;
    let another = async {
        loop {
            let Err(refused) = client.generate(request("a", &prompt(4, 0), 3)).await else {
                panic!("the other model was asked")
            };
            if refused.message.contains("another model") {
                return refused;
            }
            tokio::task::yield_now().await;
        }
    };
    let refused = tokio::time::timeout(DEADLINE, another).await.unwrap();
    assert_eq!(refused.code(), ErrorCode::Unavailable);
    assert_eq!(client.load().await.unwrap_err().code(), ErrorCode::Unavailable);
    stop.cancel();
    task.await.unwrap();

    let (_stop, _task) = engine_with_weights(&path, 1).await;
    tokio::time::timeout(DEADLINE, client.connected()).await.unwrap();
    let outputs = collect(client.generate(request("b", &prompt(4, 0), 3)).await.unwrap()).await;
    assert_eq!(tokens_of(&outputs, 0), expected(&prompt(4, 0), 7, 3));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_client_aborts_its_requests() {
    let fixture = fixture().await;
    let client = GrpcClient::connect(target(&fixture)).await.unwrap();
    let mut stream = client
        .generate(request("a", &prompt(4, 0), 90_000))
        .await
        .unwrap();
    next(&mut stream).await;
    // The stream keeps the session, also without the client.
    drop(client);
    next(&mut stream).await;
    drop(stream);
    fixture.assert_idle().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn health_follows_readiness_and_draining() {
    let fixture = fixture().await;
    for service in ["", "kvasir.engine.v1.Engine"] {
        assert_eq!(
            check_health(target(&fixture), service).await,
            Ok(ServingStatus::Serving)
        );
    }
    assert_eq!(check_health(target(&fixture), "other").await, Err(Code::NotFound));
    fixture.client.drain(Duration::ZERO).await.unwrap();
    let poll = async {
        for service in ["", "kvasir.engine.v1.Engine"] {
            while check_health(target(&fixture), service).await != Ok(ServingStatus::NotServing) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    };
    tokio::time::timeout(DEADLINE, poll).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_sessions_than_the_limit_are_refused() {
    let mut options = Options::default();
    options.limits.max_sessions = 2;
    let fixture = Fixture::with(Kind::Tcp, options).await;
    let second = GrpcClient::connect(target(&fixture)).await.unwrap();
    let refused = GrpcClient::connect(target(&fixture)).await;
    assert!(
        matches!(&refused, Err(ConnectError::Unreachable { reason, .. }) if reason.contains("2 sessions")),
        "{refused:?}"
    );
    drop(second);
    let poll = async {
        while GrpcClient::connect(target(&fixture)).await.is_err() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(DEADLINE, poll).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_server_ends_its_sessions_and_returns() {
    let mut fixture = fixture().await;
    let stream = fixture.start(request("a", &prompt(4, 0), 90_000)).await;
    let server = fixture.server.take().unwrap();
    server.stop.cancel();
    tokio::time::timeout(DEADLINE, server.task)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(error_of(&collect(stream).await, 0).code(), ErrorCode::Unavailable);
    fixture.assert_idle().await;
}

#[tokio::test]
async fn an_absent_engine_is_reported_with_its_target() {
    let refused = GrpcClient::connect("unix:/nonexistent/engine.sock")
        .await
        .unwrap_err();
    assert!(
        refused.to_string().contains("unix:/nonexistent/engine.sock"),
        "{refused}"
    );
    assert!(matches!(refused, ConnectError::Unreachable { .. }));
}

#[tokio::test]
async fn addresses_that_others_can_reach_are_refused_on_both_sides() {
    let fixture = Fixture::new(Kind::Local).await;
    for address in ["0.0.0.0:0", "[::]:0", "192.0.2.1:0"] {
        let refused = serve(
            &fixture.engine,
            Listener::Tcp(address.parse().unwrap()),
            CancellationToken::new(),
        )
        .await;
        assert!(
            matches!(&refused, Err(error @ ServiceError::NotLoopback(_)) if error.to_string().contains("mutual TLS")),
            "{refused:?}"
        );
    }
    let refused = GrpcClient::connect("http://192.0.2.1:50051").await;
    assert!(
        matches!(&refused, Err(ConnectError::Target(error)) if error.to_string().contains("mutual TLS")),
        "{refused:?}"
    );
}

#[tokio::test]
async fn a_socket_is_its_owners_only_and_goes_with_its_server() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("engine.sock");
    let server = Listener::Unix(path.clone()).bind().await.unwrap();
    assert_eq!(
        std::fs::metadata(&path).unwrap().permissions().mode() & 0o777,
        0o600
    );
    assert_eq!(server.target(), format!("unix:{}", path.display()));
    // One that somebody listens on isn't taken over.
    assert!(matches!(
        Listener::Unix(path.clone()).bind().await,
        Err(ServiceError::BindUnix { .. })
    ));
    assert!(path.exists());
    drop(server);
    assert!(!path.exists());
}

#[tokio::test]
async fn a_socket_that_was_left_behind_is_replaced_and_a_file_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("engine.sock");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    drop(Listener::Unix(path.clone()).bind().await.unwrap());
    std::fs::write(&path, "precious").unwrap();
    assert!(matches!(
        Listener::Unix(path.clone()).bind().await,
        Err(ServiceError::BindUnix { .. })
    ));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stuck_engine_still_answers_load_and_refuses_duplicates() {
    let fixture = fixture().await;
    fixture.control.hold();
    let _stream = fixture.start(request("a", &prompt(4, 0), 10)).await;
    fixture.control.wait_entered(1);
    let mut stub = Stub::connect(target(&fixture).to_owned()).await.unwrap();
    let load = stub.get_load(GetLoadRequest {}).await.unwrap().into_inner();
    assert_eq!(load.num_running + load.num_waiting, 1);
    assert_eq!(
        code(fixture.client.generate(request("a", &prompt(4, 0), 1)).await),
        ErrorCode::InvalidRequest
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_clients_share_an_engine_and_no_ids() {
    let fixture = fixture().await;
    let other: Arc<dyn EngineClient> = Arc::new(GrpcClient::connect(target(&fixture)).await.unwrap());
    let mine = fixture.start(request("a", &prompt(4, 1), 500)).await;
    let theirs = other.generate(request("a", &prompt(4, 2), 500)).await.unwrap();
    other.abort("nobody", None);
    assert_eq!(
        tokens_of(&collect(mine).await, 0),
        expected(&prompt(4, 1), 7, 500)
    );
    assert_eq!(
        tokens_of(&collect(theirs).await, 0),
        expected(&prompt(4, 2), 7, 500)
    );
}
