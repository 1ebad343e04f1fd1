//! Spans. Each function is one callsite of `tracing`, so that a disabled span costs one check of a cached word.

use std::fmt::Display;

use tracing::{Span, field::Empty, info_span};

/// The target of all spans. No module's name begins with it, so that log filters never match.
pub const TARGET: &str = "offload-span";
/// The callsite name of spans that may begin a trace.
pub const ENTRY: &str = "entry";

/// A span of a call from another program. It continues the caller's trace or begins one.
#[must_use]
pub fn entry(name: &str) -> Span {
    info_span!(
        target: TARGET,
        ENTRY,
        otel.name = name,
        otel.kind = "server",
        otel.status_code = Empty,
        otel.status_description = Empty,
        attachment = Empty
    )
}

/// A span of a part of the current work.
#[must_use]
pub fn step(name: &str) -> Span {
    info_span!(target: TARGET, "step", otel.name = name)
}

/// A span of the undo of the step `name`.
#[must_use]
pub fn undo(name: &str) -> Span {
    info_span!(target: TARGET, "undo", otel.name = name, undone = true)
}

/// A span of a call to another program on behalf of the current work.
#[must_use]
pub fn call(name: &str) -> Span {
    info_span!(target: TARGET, "call", otel.name = name, otel.kind = "client")
}

/// A span of work after the current span's answer. It has no parent, because a parent would last as long as its child.
pub(crate) fn afterwards() -> Span {
    info_span!(target: TARGET, parent: None, "afterwards")
}

/// Marks the current [`entry`] as failed.
pub fn fail(why: &dyn Display) {
    let span = Span::current();
    span.record("otel.status_code", "ERROR");
    span.record("otel.status_description", tracing::field::display(why));
}

/// Wraps `work` to run in the current span on any thread.
pub fn in_span<T>(work: impl FnOnce() -> T) -> impl FnOnce() -> T {
    let span = Span::current();
    move || span.in_scope(work)
}
