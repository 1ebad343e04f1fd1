//! Passes trace context between programs.

use tokio::task_local;
use tracing::{Instrument, Span};

use crate::{TraceParent, spans};

task_local! {
    /// The context that arrived with the task's work, for tasks without a span.
    static CAME: Option<TraceParent>;
}

/// Runs `work` in `span`, with `parent` as the parent if there is one.
pub async fn follow<W: Future>(span: Span, parent: Option<TraceParent>, work: W) -> W::Output {
    if let Some(parent) = parent {
        adopt(&span, parent);
    }
    CAME.scope(parent, work.instrument(span)).await
}

/// Runs `work` after the answer of the current span. It belongs to the trace, but not to the time that the caller
/// waits.
pub fn afterwards<W: Future>(work: W) -> impl Future<Output = W::Output> {
    let span = spans::afterwards();
    let parent = current();
    follow(span, parent, work)
}

/// The context to pass to another program: the current span, otherwise the context that arrived. `None`: there is no
/// trace.
#[must_use]
pub fn current() -> Option<TraceParent> {
    current_span().or_else(|| CAME.try_with(|came| *came).ok().flatten())
}

#[cfg(feature = "otlp")]
fn adopt(span: &Span, parent: TraceParent) {
    use opentelemetry::{
        Context,
        trace::{SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState},
    };
    use tracing_opentelemetry::OpenTelemetrySpanExt;

    let flags = TraceFlags::default().with_sampled(parent.is_sampled);
    let (trace, id) = (TraceId::from(parent.trace_id), SpanId::from(parent.span_id));
    let parent = SpanContext::new(trace, id, flags, true, TraceState::default());
    // Fails if no span was created. Then there is nothing to set.
    let _ = span.set_parent(Context::new().with_remote_span_context(parent));
}

#[cfg(not(feature = "otlp"))]
fn adopt(_span: &Span, _parent: TraceParent) {}

#[cfg(feature = "otlp")]
fn current_span() -> Option<TraceParent> {
    use opentelemetry::trace::TraceContextExt;
    use tracing_opentelemetry::OpenTelemetrySpanExt;

    let span = Span::current();
    if span.is_none() {
        return None;
    }
    let context = span.context();
    let context = context.span().span_context().clone();
    context.is_valid().then(|| TraceParent {
        trace_id: u128::from_be_bytes(context.trace_id().to_bytes()),
        span_id: u64::from_be_bytes(context.span_id().to_bytes()),
        is_sampled: context.is_sampled(),
    })
}

#[cfg(not(feature = "otlp"))]
fn current_span() -> Option<TraceParent> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry;

    #[tokio::test]
    async fn context_passes_through_without_spans() {
        let parent = TraceParent { trace_id: 1, span_id: 2, is_sampled: true };
        assert_eq!(follow(entry("ADD"), Some(parent), async { current() }).await, Some(parent));
        assert_eq!(follow(entry("ADD"), None, async { current() }).await, None);
        assert_eq!(current(), None);
    }

    #[tokio::test]
    async fn background_work_keeps_trace_context() {
        let parent = TraceParent { trace_id: 1, span_id: 2, is_sampled: true };
        let mut behind = None;
        let answer = async { behind = Some(afterwards(async { current() })) };
        follow(entry("DEL"), Some(parent), answer).await;
        assert_eq!(behind.unwrap().await, Some(parent));
    }
}
