//! Spans of requests, sent to an OpenTelemetry collector over OTLP.
//!
//! One span for each prompt that reached an engine, within the client's trace if it named one (W3C Trace Context), and below it one for the
//! time in the queue, one for computing the prompt and one for the answer. Engines send none: what they report with each answer says when it
//! all happened, and so they need no way out of their closed network. Spans that can't be sent are dropped; no request waits for them.
//!
//! Names are those of OpenTelemetry's conventions for generative AI, and where these have none, vLLM's.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use kvasir_api::FinishReason;
use kvasir_client::types::Timeline;
use opentelemetry::trace::{
    Span, SpanBuilder, SpanContext, SpanId, SpanKind, Status, TraceContextExt, TraceFlags, TraceId,
    TraceState, Tracer, TracerProvider,
};
use opentelemetry::{Array, Context, KeyValue, StringValue, Value};
use opentelemetry_otlp::{ExporterBuildError, SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{Sampler, SdkTracer, SdkTracerProvider};

/// Longest wait for a collector to take a batch.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest wait for the last batch when the process ends.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(3);

/// No spans can be sent.
#[derive(Debug, thiserror::Error)]
#[error("can't send spans to {endpoint}: {source}")]
pub struct SpansError {
    /// Where they should go.
    pub endpoint: String,
    /// Why they can't.
    #[source]
    pub source: ExporterBuildError,
}

/// Sends spans. Clones send through the same connection.
#[derive(Clone)]
pub struct Spans {
    provider: SdkTracerProvider,
    tracer: Arc<SdkTracer>,
}

/// A prompt that reached an engine, when it is over.
#[derive(Clone, Debug)]
pub(crate) struct Request<'a> {
    pub(crate) id: &'a str,
    pub(crate) model: &'a str,
    /// The client's trace context; empty if it brought none.
    pub(crate) traceparent: &'a str,
    pub(crate) arrival: Instant,
    /// When its first sequence's first token arrived.
    pub(crate) first_token: Option<Instant>,
    pub(crate) end: Instant,
    pub(crate) prompt_tokens: u64,
    pub(crate) generation_tokens: u64,
    pub(crate) max_tokens: u64,
    /// How each sequence ended.
    pub(crate) reasons: Vec<FinishReason>,
    /// What the engine said of its first sequence.
    pub(crate) timeline: Option<&'a Timeline>,
}

impl Spans {
    /// Sends to the OTLP collector at `endpoint`, over gRPC (`http://HOST:4317`, or `https://` for TLS with the system's authorities). Of
    /// requests without a sampled trace of their own, `percent` in a hundred are recorded. Call it within a runtime; the collector needn't be
    /// there yet.
    ///
    /// # Errors
    /// The address isn't one.
    pub fn open(endpoint: &str, percent: u8) -> Result<Self, SpansError> {
        let exporter = SpanExporter::builder()
            .with_tonic()
            .with_endpoint(endpoint)
            .with_timeout(EXPORT_TIMEOUT)
            .build()
            .map_err(|source| SpansError {
                endpoint: endpoint.to_owned(),
                source,
            })?;
        let share = Sampler::TraceIdRatioBased(f64::from(percent) / 100.0);
        let version = KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
        Ok(Self::over(
            SdkTracerProvider::builder()
                .with_batch_exporter(exporter)
                .with_sampler(Sampler::ParentBased(Box::new(share)))
                .with_resource(
                    Resource::builder()
                        .with_service_name("kvasir")
                        .with_attribute(version)
                        .build(),
                )
                .build(),
        ))
    }

    fn over(provider: SdkTracerProvider) -> Self {
        let tracer = Arc::new(provider.tracer("kvasir"));
        Self { provider, tracer }
    }

    /// Sends what is left, for a while. Blocks: call it beside async threads.
    pub fn close(&self) {
        if let Err(error) = self.provider.shutdown_with_timeout(CLOSE_TIMEOUT) {
            tracing::warn!(%error, "the last spans could not be sent");
        }
    }

    /// Records a prompt.
    pub(crate) fn record(&self, request: &Request<'_>) {
        // Instants have no date: one look at both clocks gives all of them one.
        let (now, today) = (Instant::now(), SystemTime::now());
        let at = |then: Instant| today - now.saturating_duration_since(then);
        let outside = parent(request.traceparent);
        let mut span = self.tracer.build_with_context(
            SpanBuilder::from_name("llm_request")
                .with_kind(SpanKind::Server)
                .with_start_time(at(request.arrival))
                .with_attributes(attributes(request)),
            &outside,
        );
        let failed = [FinishReason::Error, FinishReason::Abort];
        if let Some(reason) = request.reasons.iter().find(|reason| failed.contains(reason)) {
            span.set_status(Status::error(reason.as_str()));
        }
        let inside = Context::new().with_remote_span_context(span.span_context().clone());
        for (name, from, to) in phases(request) {
            let builder = SpanBuilder::from_name(name)
                .with_kind(SpanKind::Internal)
                .with_start_time(at(from));
            self.tracer
                .build_with_context(builder, &inside)
                .end_with_timestamp(at(to));
        }
        span.end_with_timestamp(at(request.end));
    }
}

impl fmt::Debug for Spans {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Spans").finish_non_exhaustive()
    }
}

fn attributes(request: &Request<'_>) -> Vec<KeyValue> {
    let number = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let seconds = |of: Duration| of.as_secs_f64();
    let reasons: Vec<StringValue> = request
        .reasons
        .iter()
        .map(|reason| reason.as_str().into())
        .collect();
    let mut all = vec![
        KeyValue::new("gen_ai.operation.name", "text_completion"),
        KeyValue::new("gen_ai.response.model", request.model.to_owned()),
        KeyValue::new("gen_ai.request.id", request.id.to_owned()),
        KeyValue::new("gen_ai.request.max_tokens", number(request.max_tokens)),
        KeyValue::new("gen_ai.request.n", number(request.reasons.len() as u64)),
        KeyValue::new("gen_ai.usage.input_tokens", number(request.prompt_tokens)),
        KeyValue::new("gen_ai.usage.output_tokens", number(request.generation_tokens)),
        KeyValue::new(
            "gen_ai.response.finish_reasons",
            Value::Array(Array::String(reasons)),
        ),
        KeyValue::new(
            "gen_ai.latency.e2e",
            seconds(request.end.saturating_duration_since(request.arrival)),
        ),
    ];
    all.extend(request.first_token.map(|first| {
        let waited = first.saturating_duration_since(request.arrival);
        KeyValue::new("gen_ai.latency.time_to_first_token", seconds(waited))
    }));
    all.extend(request.timeline.map(|timeline| {
        let cached = request
            .prompt_tokens
            .saturating_sub(timeline.computed_prompt_tokens.into());
        KeyValue::new("gen_ai.usage.cache_read.input_tokens", number(cached))
    }));
    all
}

/// What the engine's time stamps say, by this process' clock: they count from when the engine had the request, and the first token's is known
/// by both.
fn phases(request: &Request<'_>) -> Vec<(&'static str, Instant, Instant)> {
    let Some((timeline, first_token)) = request.timeline.zip(request.first_token) else {
        return Vec::new();
    };
    let (Some(scheduled), Some(first), Some(last)) = (
        timeline.scheduled_us,
        timeline.first_token_us,
        timeline.last_token_us,
    ) else {
        return Vec::new();
    };
    let received = first_token
        .checked_sub(Duration::from_micros(first))
        .map_or(request.arrival, |received| received.max(request.arrival));
    let at = |us: u64| {
        let at = received.checked_add(Duration::from_micros(us));
        at.unwrap_or(request.end).min(request.end)
    };
    vec![
        ("queue", received, at(scheduled)),
        ("prefill", at(scheduled), at(first)),
        ("decode", at(first), at(last)),
    ]
}

/// The context that a `traceparent` of version 00 stands for; one of its own for anything else.
fn parent(traceparent: &str) -> Context {
    let parts: Vec<&str> = traceparent.split('-').collect();
    let &[_, trace, span, flags] = parts.as_slice() else {
        return Context::new();
    };
    let read = (
        TraceId::from_hex(trace),
        SpanId::from_hex(span),
        u8::from_str_radix(flags, 16),
    );
    let (Ok(trace), Ok(span), Ok(flags)) = read else {
        return Context::new();
    };
    let flags = TraceFlags::new(flags) & TraceFlags::SAMPLED;
    let context = SpanContext::new(trace, span, flags, true, TraceState::default());
    if context.is_valid() {
        Context::new().with_remote_span_context(context)
    } else {
        Context::new()
    }
}

#[cfg(test)]
mod tests {
    use opentelemetry_sdk::trace::{InMemorySpanExporter, SpanData};

    use super::*;

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

    /// The spans of a request that ended a second ago: 2 s in all, 100 ms on the way to the engine, 300 ms in its queue, 600 ms of prefill.
    fn recorded(traceparent: &str, reason: FinishReason) -> Vec<SpanData> {
        let exporter = InMemorySpanExporter::default();
        let spans = Spans::over(
            SdkTracerProvider::builder()
                .with_simple_exporter(exporter.clone())
                .with_sampler(Sampler::ParentBased(Box::new(Sampler::AlwaysOn)))
                .build(),
        );
        let arrival = Instant::now().checked_sub(Duration::from_secs(3)).unwrap();
        let timeline = Timeline {
            scheduled_us: Some(300_000),
            first_token_us: Some(900_000),
            last_token_us: Some(1_900_000),
            computed_prompt_tokens: 3,
            ..Timeline::default()
        };
        spans.record(&Request {
            id: "cmpl-1",
            model: "tiny",
            traceparent,
            arrival,
            first_token: Some(arrival + Duration::from_secs(1)),
            end: arrival + Duration::from_secs(2),
            prompt_tokens: 10,
            generation_tokens: 7,
            max_tokens: 16,
            reasons: vec![reason],
            timeline: Some(&timeline),
        });
        exporter.get_finished_spans().unwrap()
    }

    #[test]
    fn a_request_has_a_span_in_the_clients_trace_and_one_below_it_for_each_phase() {
        let spans = recorded(&format!("00-{TRACE}-00f067aa0ba902b7-01"), FinishReason::Stop);
        let names: Vec<&str> = spans.iter().map(|span| span.name.as_ref()).collect();
        assert_eq!(names, ["queue", "prefill", "decode", "llm_request"]);
        let request = &spans[3];
        assert_eq!(request.span_context.trace_id().to_string(), TRACE);
        assert_eq!(request.parent_span_id.to_string(), "00f067aa0ba902b7");
        assert_eq!(request.status, Status::Unset);
        let whole = request.end_time.duration_since(request.start_time).unwrap();
        // All times are from one look at the clocks, to the resolution of the system's.
        for (span, milliseconds) in spans.iter().zip([300, 600, 1000]) {
            assert_eq!(span.parent_span_id, request.span_context.span_id());
            assert!(span.start_time >= request.start_time && span.end_time <= request.end_time);
            let took = span.end_time.duration_since(span.start_time).unwrap();
            assert!(
                took <= whole && took.as_millis().abs_diff(milliseconds) <= 1,
                "{took:?}"
            );
        }
        let value = |key: &str| {
            let found = request.attributes.iter().find(|of| of.key.as_str() == key);
            found.unwrap().value.to_string()
        };
        assert_eq!(value("gen_ai.usage.output_tokens"), "7");
        assert_eq!(value("gen_ai.usage.cache_read.input_tokens"), "7");
        assert_eq!(value("gen_ai.response.finish_reasons"), "[\"stop\"]");
    }

    #[test]
    fn who_wants_no_spans_of_a_trace_gets_none() {
        let spans = recorded(&format!("00-{TRACE}-00f067aa0ba902b7-00"), FinishReason::Stop);
        assert!(spans.is_empty(), "{spans:?}");
    }

    #[test]
    fn without_a_usable_context_a_request_begins_a_trace() {
        let zeros = format!("00-{}-{}-01", "0".repeat(32), "0".repeat(16));
        for text in ["", "00-x-y-z", zeros.as_str()] {
            let spans = recorded(text, FinishReason::Abort);
            let request = &spans[3];
            assert_eq!(request.parent_span_id, SpanId::INVALID, "{text}");
            assert_eq!(request.status, Status::error("abort"));
        }
    }
}
