//! Connections end with their peer's certificate.

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
    certificate::{CertificateProblem, Facts, date},
    identity::Identity,
};

/// How often the clock is looked at, for it may be set.
const LOOK_PERIOD: Duration = Duration::from_secs(60);

/// Until when a connection may be used.
#[derive(Debug)]
pub(crate) struct Term {
    peer: Identity,
    /// The last moment of the peer's certificate.
    end: SystemTime,
    next_look: Pin<Box<Sleep>>,
}

impl Term {
    /// That of a connection whose peer has shown this certificate.
    pub(crate) fn of(certificate: &CertificateDer<'_>) -> Result<Self, CertificateProblem> {
        let facts = Facts::read(certificate)?;
        let next_look = Box::pin(sleep(Duration::ZERO));
        Ok(Self { peer: facts.identity()?, end: facts.validity.not_after, next_look })
    }

    /// Whose certificate it is.
    pub(crate) fn peer(&self) -> &Identity {
        &self.peer
    }

    /// The last moment of its certificate.
    pub(crate) fn end(&self) -> SystemTime {
        self.end
    }

    /// Ready when the connection is over, with the reason.
    pub(crate) fn poll_over(&mut self, context: &mut Context<'_>) -> Poll<io::Error> {
        loop {
            ready!(self.next_look.as_mut().poll(context));
            let Ok(left) = self.end.duration_since(SystemTime::now()) else {
                return Poll::Ready(self.over());
            };
            self.next_look.as_mut().reset(Instant::now() + left.min(LOOK_PERIOD));
        }
    }

    fn over(&self) -> io::Error {
        let Self { peer, end, .. } = self;
        let reason = format!("the certificate of {peer} expired on {}", date(*end));
        tracing::warn!("a connection is closed: {reason}");
        io::Error::new(io::ErrorKind::TimedOut, reason)
    }
}
