//! Counts log events for tests.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use tracing::{
    Event, Metadata, Subscriber,
    span::{Attributes, Id, Record},
    subscriber::with_default,
};

struct Counter(Arc<AtomicUsize>);

impl Subscriber for Counter {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// The number of events that `work` logs on this thread.
pub(super) fn logged(work: impl FnOnce()) -> usize {
    let events = Arc::<AtomicUsize>::default();
    with_default(Counter(Arc::clone(&events)), work);
    events.load(Ordering::Relaxed)
}
