//! The `Watch` stream of events.

use std::{collections::VecDeque, sync::Arc};

use futures::stream::{self, BoxStream, StreamExt};
use offload_proto::{Failure, Reason, v1};
use tokio::sync::{
    OwnedSemaphorePermit,
    broadcast::{self, error::RecvError},
};
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::{convert::read, convert::show};
use crate::{
    events::{Event, EventFilter},
    shared::Shared,
};

/// Starts a stream of events. A watcher that does not keep up loses its stream; it never delays the service.
///
/// # Errors
/// [`Reason::Overloaded`] or [`Reason::InvalidRequest`].
pub(super) fn watch(
    shared: &Shared,
    request: v1::WatchRequest,
) -> Result<BoxStream<'static, Result<v1::Event, Status>>, Failure> {
    let filter = read::event_filter(request.filter)?;
    let after = request.after.as_ref().map(read::event_cursor).transpose()?;
    let permit = shared.operator_limits.watchers.clone().try_acquire_owned().map_err(|_| {
        Failure::new(Reason::Overloaded, "as many operators watch as limits.watchers allows")
    })?;
    let events = shared.engine.events();
    let (backlog, feed) = match after {
        Some(cursor) => events.watch_after(&cursor),
        None => (Vec::new(), events.watch()),
    };
    let (dpu, stopping) = (shared.dpu(), shared.stopping.clone());
    let watcher = Watcher { dpu, filter, backlog: backlog.into(), feed, stopping, _permit: permit };
    Ok(stream::unfold(Some(watcher), next_event).boxed())
}

struct Watcher {
    dpu: String,
    filter: EventFilter,
    /// Events before the call, sent first.
    backlog: VecDeque<Arc<Event>>,
    feed: broadcast::Receiver<Arc<Event>>,
    stopping: CancellationToken,
    _permit: OwnedSemaphorePermit,
}

impl Watcher {
    async fn next(&mut self) -> Result<Arc<Event>, RecvError> {
        loop {
            let event = match self.backlog.pop_front() {
                Some(event) => event,
                None => self.feed.recv().await?,
            };
            if self.filter.matches(&event) {
                return Ok(event);
            }
        }
    }
}

/// The next event, or the error that ends the stream.
async fn next_event(
    watcher: Option<Watcher>,
) -> Option<(Result<v1::Event, Status>, Option<Watcher>)> {
    let mut watcher = watcher?;
    let stopping = watcher.stopping.clone();
    let next = stopping.run_until_cancelled(watcher.next()).await?;
    match next {
        Ok(event) => Some((Ok(show::event(&watcher.dpu, &event)), Some(watcher))),
        Err(RecvError::Lagged(missed)) => Some((Err(lagged(missed)), None)),
        Err(RecvError::Closed) => None,
    }
}

fn lagged(missed: u64) -> Status {
    let message = format!("the watcher did not keep up and missed {missed} events: watch again");
    Failure::new(Reason::Overloaded, message).into()
}
