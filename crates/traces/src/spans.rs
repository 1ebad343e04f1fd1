//! Spans. Each function is one place for `tracing`, so that where none is made all of it costs a look at a cached word.

use std::fmt::Display;

use tracing::{Span, field::Empty, info_span};

/// The target of all spans, which no module's name begins with: no log has them.
pub const TARGET: &str = "offload-span";
/// The name, for `tracing`, of those that may begin a trace.
pub const ENTRY: &str = "entry";

/// A span of what another program has asked for: it goes on with the caller's trace, or begins one.
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

/// A span of a part of what is done for the current one.
#[must_use]
pub fn step(name: &str) -> Span {
    info_span!(target: TARGET, "step", otel.name = name)
}

/// Likewise of taking back what a step of that name does.
#[must_use]
pub fn undo(name: &str) -> Span {
    info_span!(target: TARGET, "undo", otel.name = name, undone = true)
}

/// A span of waiting for another program, on behalf of the current one.
#[must_use]
pub fn call(name: &str) -> Span {
    info_span!(target: TARGET, "call", otel.name = name, otel.kind = "client")
}

/// A span of what goes on behind the answer of the current one, which does not wait for it: a child would have its
/// parent last as long.
pub(crate) fn afterwards() -> Span {
    info_span!(target: TARGET, parent: None, "afterwards")
}

/// What the current [`entry`] is about has failed.
pub fn fail(why: &dyn Display) {
    let span = Span::current();
    span.record("otel.status_code", "ERROR");
    span.record("otel.status_description", tracing::field::display(why));
}

/// The same work as a part of what is the current span now, on whichever thread it will be done.
pub fn in_span<T>(work: impl FnOnce() -> T) -> impl FnOnce() -> T {
    let span = Span::current();
    move || span.in_scope(work)
}
