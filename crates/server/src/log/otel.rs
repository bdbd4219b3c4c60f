//! Exports spans of requests by OTLP over gRPC.

use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::{SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tracing::field::Empty;
use tracing::level_filters::LevelFilter;
use tracing::{Span, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::registry::LookupSpan;

use super::LogError;
use crate::request_id::RequestId;

/// Only spans of this target are exported, and they do not appear in the log.
const TARGET: &str = "otel::request";

#[derive(Debug)]
pub(super) struct Exporter {
    provider: SdkTracerProvider,
}

impl Exporter {
    pub(super) fn new(endpoint: &str) -> Result<Self, LogError> {
        let exporter = SpanExporter::builder().with_tonic().with_endpoint(endpoint).build();
        let exporter =
            exporter.map_err(|error| LogError::Otel { endpoint: endpoint.to_owned(), why: error.to_string() })?;
        let resource = Resource::builder().with_service_name("ruvllm").build();
        let provider = SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource).build();
        Ok(Self { provider })
    }

    pub(super) fn layer<S>(&self) -> impl Layer<S> + use<S>
    where
        S: Subscriber + for<'a> LookupSpan<'a>,
    {
        let filter = Targets::new().with_target(TARGET, LevelFilter::INFO);
        tracing_opentelemetry::layer().with_tracer(self.provider.tracer("ruvllm")).with_filter(filter)
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        if let Err(error) = self.provider.shutdown() {
            eprintln!("the last spans could not be exported: {error}");
        }
    }
}

/// Lasts until the response has ended.
pub(crate) fn request_span(id: &RequestId, method: &str, path: &str) -> Span {
    tracing::info_span!(
        target: TARGET,
        "request",
        otel.kind = "server",
        otel.name = format!("{method} {path}"),
        http.request.method = method,
        url.path = path,
        http.request.id = id.as_str(),
        http.response.status_code = Empty,
        enduser.id = Empty,
        gen_ai.request.model = Empty,
        gen_ai.usage.tokens = Empty,
    )
}

pub(crate) fn end_request_span(
    span: &Span,
    status: u16,
    caller: Option<&str>,
    model: Option<&str>,
    tokens: Option<u64>,
) {
    span.record("http.response.status_code", status);
    span.record("enduser.id", caller);
    span.record("gen_ai.request.model", model);
    span.record("gen_ai.usage.tokens", tokens);
}
