//! Connections end when a certificate of their peer expires.

use std::{
    future::Future,
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::{Duration, SystemTime},
};

use rustls_pki_types::CertificateDer;
use tokio::time::{Instant, Sleep, sleep};

use crate::{
    certificate::{CertificateProblem, Facts, date, first_end},
    identity::Identity,
};

/// Longest interval between checks of the clock, which may be set while the connection is open.
pub(crate) const LOOK_PERIOD: Duration = Duration::from_secs(60);

/// How long a connection may be used.
#[derive(Debug)]
pub(crate) struct Term {
    peer: Identity,
    /// When the peer's own certificate expires.
    certificate_end: SystemTime,
    /// When the first certificate of the peer's chain expires.
    end: SystemTime,
    next_look: Pin<Box<Sleep>>,
    clock: fn() -> SystemTime,
}

impl Term {
    /// The term of a connection whose peer's `chain` was verified after `begun`.
    pub(crate) fn of(
        chain: Option<&[CertificateDer<'_>]>,
        begun: SystemTime,
    ) -> Result<Self, CertificateProblem> {
        let chain = chain.unwrap_or_default();
        let own = chain.first().ok_or(CertificateProblem::Missing)?;
        let (facts, end) = (Facts::read(own)?, first_end(chain, begun)?);
        let certificate_end = facts.validity.not_after;
        Ok(Self { certificate_end, ..Self::until(end, facts.identity()?, SystemTime::now) })
    }

    fn until(end: SystemTime, peer: Identity, clock: fn() -> SystemTime) -> Self {
        let next_look = Box::pin(sleep(Duration::ZERO));
        Self { peer, certificate_end: end, end, next_look, clock }
    }

    pub(crate) fn peer(&self) -> &Identity {
        &self.peer
    }

    pub(crate) fn certificate_end(&self) -> SystemTime {
        self.certificate_end
    }

    pub(crate) fn end(&self) -> SystemTime {
        self.end
    }

    /// Ready with the reason when the connection has ended.
    pub(crate) fn poll_over(&mut self, context: &mut Context<'_>) -> Poll<io::Error> {
        loop {
            ready!(self.next_look.as_mut().poll(context));
            let Ok(left) = self.end.duration_since((self.clock)()) else {
                return Poll::Ready(self.over());
            };
            // The timer follows the monotonic clock, which does not change when the system clock is set.
            self.next_look.as_mut().reset(Instant::now() + left.min(LOOK_PERIOD));
        }
    }

    fn over(&self) -> io::Error {
        let Self { peer, certificate_end, end, .. } = self;
        let which = if end == certificate_end { "the" } else { "an intermediate" };
        let reason = format!("{which} certificate of {peer} expired on {}", date(*end));
        tracing::warn!(%peer, reason, "connection closed");
        io::Error::new(io::ErrorKind::TimedOut, reason)
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, future::poll_fn};

    use tokio::time::timeout;

    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    thread_local! {
        static CLOCK: Cell<SystemTime> = const { Cell::new(SystemTime::UNIX_EPOCH) };
    }

    fn term() -> Term {
        let peer = "spiffe://test.local/host/node-1".parse().unwrap();
        Term::until(SystemTime::UNIX_EPOCH + HOUR, peer, || CLOCK.get())
    }

    #[tokio::test(start_paused = true)]
    async fn clock_jump_past_expiry_is_noticed() {
        let mut term = term();
        let mut within = async |limit| timeout(limit, poll_fn(|it| term.poll_over(it))).await;
        assert!(within(10 * LOOK_PERIOD).await.is_err(), "it has an hour yet");
        CLOCK.set(SystemTime::UNIX_EPOCH + 2 * HOUR);
        let over = within(LOOK_PERIOD).await.expect("nobody looked at the clock");
        assert!(over.to_string().ends_with("expired on 1970-01-01T01:00:00Z"), "{over}");
    }
}
