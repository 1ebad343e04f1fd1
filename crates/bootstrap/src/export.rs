//! Exports spans by OTLP on threads of its own. A slow or unreachable collector costs spans, but nothing else.

use std::{
    fs, io,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use opentelemetry::{KeyValue, trace::TracerProvider as _};
use opentelemetry_otlp::{SpanExporter, WithTonicConfig};
use opentelemetry_sdk::{
    Resource,
    error::OTelSdkResult,
    trace::{
        BatchConfigBuilder, BatchSpanProcessor, Sampler, SdkTracerProvider, SpanData,
        SpanExporter as Export,
    },
};
use tokio::runtime::{Builder, Runtime};
use tonic::transport::Endpoint;
use tracing::{Metadata, level_filters::LevelFilter, subscriber::Interest};
use tracing_subscriber::{Layer, Registry, filter::dynamic_filter_fn, layer::Context};

use crate::{TracingSettings, log_layer::LogLayer};

/// Most spans that wait for export. Further spans are lost.
const WAITING: usize = 2048;
/// How long the first span waits for others before a batch is sent.
const DELAY: Duration = Duration::from_secs(1);
/// Time limit for connecting to a collector, and for its answer.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit for exporting the remaining spans when the program stops.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);

/// Exports spans until it is dropped, which exports the waiting ones.
#[derive(Debug)]
#[must_use = "nothing is exported once it is dropped"]
pub struct Exporting {
    provider: SdkTracerProvider,
    runtime: Option<Runtime>,
}

impl Drop for Exporting {
    fn drop(&mut self) {
        // Spans that are not exported within the limit are lost.
        let _ = self.provider.shutdown_with_timeout(SHUTDOWN_TIMEOUT);
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// The layer that creates spans, and their export. `None`: no collector is configured.
pub(crate) fn export(
    settings: &TracingSettings,
    program: &'static str,
) -> io::Result<Option<(LogLayer, Exporting)>> {
    let Some(endpoint) = &settings.otlp_endpoint else { return Ok(None) };
    // A runtime of its own, so that exports take no worker thread from attaches.
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let exporter = {
        let _within = runtime.enter();
        let channel = Endpoint::from_shared(endpoint.clone()).map_err(io::Error::other)?;
        let channel =
            channel.connect_timeout(EXPORT_TIMEOUT).timeout(EXPORT_TIMEOUT).connect_lazy();
        let exporter = SpanExporter::builder().with_tonic().with_channel(channel).build();
        Collector::new(endpoint, exporter.map_err(io::Error::other)?)
    };
    let batches =
        BatchConfigBuilder::default().with_max_queue_size(WAITING).with_scheduled_delay(DELAY);
    let batches = BatchSpanProcessor::builder(exporter).with_batch_config(batches.build()).build();
    let ratio = Sampler::TraceIdRatioBased(settings.sampling_ratio);
    // The ratio applies to traces of callers, too: a caller that samples everything must not force its ratio on this
    // program.
    let sampler = Sampler::parent_based(ratio.clone()).with_remote_parent_sampled(ratio);
    let provider = SdkTracerProvider::builder()
        .with_sampler(sampler)
        .with_resource(resource(program))
        .with_span_processor(batches)
        .build();
    let layer = layer(&provider);
    Ok(Some((layer, Exporting { provider, runtime: Some(runtime) })))
}

/// The attributes of this program in spans.
fn resource(program: &'static str) -> Resource {
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    Resource::builder()
        .with_service_name(program)
        .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
        .with_attribute(KeyValue::new("host.name", host.trim().to_owned()))
        .build()
}

/// Creates spans of entries, and of steps and calls within an entry.
fn layer(provider: &SdkTracerProvider) -> LogLayer {
    let is_span = |metadata: &Metadata<'_>| metadata.target() == traces::TARGET;
    let is_wanted = move |metadata: &Metadata<'_>, context: &Context<'_, Registry>| {
        is_span(metadata)
            && (metadata.name() == traces::ENTRY || context.lookup_current().is_some())
    };
    let interest = move |metadata: &'static Metadata<'static>| match is_span(metadata) {
        true => Interest::sometimes(),
        false => Interest::never(),
    };
    let filter = dynamic_filter_fn(is_wanted)
        .with_callsite_filter(interest)
        .with_max_level_hint(LevelFilter::INFO);
    let spans = tracing_opentelemetry::layer()
        .with_tracer(provider.tracer("dpu-offload"))
        .with_location(false)
        .with_threads(false)
        .with_target(false)
        .with_tracked_inactivity(false);
    Box::new(spans.with_filter(filter))
}

/// The collector. Logs when it becomes unreachable and when it is reachable again.
#[derive(Debug)]
struct Collector {
    endpoint: String,
    exporter: SpanExporter,
    is_away: AtomicBool,
}

impl Collector {
    fn new(endpoint: &str, exporter: SpanExporter) -> Self {
        Self { endpoint: endpoint.to_owned(), exporter, is_away: AtomicBool::new(false) }
    }
}

impl Export for Collector {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let exported = self.exporter.export(batch).await;
        let was_away = self.is_away.swap(exported.is_err(), Ordering::Relaxed);
        let endpoint = &self.endpoint;
        match &exported {
            Err(error) if !was_away => {
                tracing::warn!(endpoint, %error, "spans can't be exported and are lost");
            }
            Ok(()) if was_away => tracing::info!(endpoint, "spans are exported again"),
            _ => {}
        }
        exported
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}
