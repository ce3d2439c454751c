//! Spans, as a collector receives them.

use std::sync::{Arc, Mutex};

use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::trace::v1::Span;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};

use crate::support::*;

/// Keeps what it is sent.
#[derive(Clone, Default)]
struct Collector(Arc<Mutex<Vec<Span>>>);

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let of_scopes = request.into_inner().resource_spans.into_iter();
        let spans = of_scopes
            .flat_map(|resource| resource.scope_spans)
            .flat_map(|scope| scope.spans);
        self.0.lock().unwrap().extend(spans);
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collector_has_every_requests_span_in_its_clients_trace_when_the_gateway_has_ended() {
    let collector = Collector::default();
    let incoming = TcpIncoming::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = incoming.local_addr().unwrap();
    let server = tonic::transport::Server::builder().add_service(TraceServiceServer::new(collector.clone()));
    let _serving = tokio::spawn(server.serve_with_incoming(incoming));
    let engine = TestEngine::start(EngineOptions::default()).await;
    let options = GatewayOptions {
        more: format!("tracing: {{endpoint: \"http://{address}\"}}"),
        ..GatewayOptions::default()
    };
    let mut gateway = TestGateway::start(&[engine.address], options)
        .await
        .with_engines(1)
        .await;
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let request = gateway.request("a", "/v1/completions", &body("1", 3));
    let request = request.header("traceparent", format!("00-{trace}-00f067aa0ba902b7-01"));
    assert_eq!(Answer::of(request).await.status, 200);
    gateway.stop();
    gateway.ended().await;
    let spans = collector.0.lock().unwrap().clone();
    let mut names: Vec<&str> = spans.iter().map(|span| span.name.as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["decode", "llm_request", "prefill", "queue"]);
    let id = u128::from_str_radix(trace, 16).unwrap().to_be_bytes();
    assert!(spans.iter().all(|span| span.trace_id == id));
}
