//! One connection in the place of another, ahead of the end of the certificates that it was opened
//! with.

use std::time::{Duration, SystemTime};

use bootstrap::Chain;
use tokio::time::sleep;
use tonic::transport::Channel;

use crate::connector::Connector;

/// How often the clock is looked at, at least, for it may be set; and at most.
const LOOK_PERIOD: Duration = Duration::from_secs(60);
const SHORTEST_LOOK_PERIOD: Duration = Duration::from_millis(100);
/// What is not renewed by so much ahead of its end is not renewed ahead of it.
const LAST_MOMENTS: Duration = Duration::from_secs(1);

/// Pauses between attempts: the first, and the longest. They double in between.
const FIRST_PAUSE: Duration = Duration::from_secs(3);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// From when until when a connection may be used.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lifetime {
    opened: SystemTime,
    end: SystemTime,
}

impl Lifetime {
    /// From now on.
    pub(crate) fn until(end: SystemTime) -> Self {
        Self { opened: SystemTime::now(), end }
    }

    /// How long it takes until two thirds of it are over, so that a successor has time to come.
    fn until_waning(&self, now: SystemTime) -> Duration {
        let all = self.end.duration_since(self.opened).unwrap_or_default();
        (self.end - all / 3).duration_since(now).unwrap_or_default()
    }

    fn is_waning(&self, now: SystemTime) -> bool {
        let left = self.end.duration_since(now).unwrap_or_default();
        self.until_waning(now).is_zero() && left > LAST_MOMENTS
    }
}

impl Connector {
    /// Waits until the latest connection nears its end, and opens another one that lasts longer: a
    /// connection ends with its certificates, ours and the DPU's, though both may have been renewed
    /// by then. As long as the one that comes first has not been, there is no such connection.
    pub async fn renewed(&self) -> Channel {
        let mut pause = FIRST_PAUSE;
        loop {
            self.waning().await;
            match self.connect_for_longer().await {
                Some(channel) => return channel,
                None => sleep(pause).await,
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    async fn waning(&self) {
        loop {
            let (latest, now) = (*self.latest(), SystemTime::now());
            if latest.is_some_and(|latest| latest.is_waning(now)) {
                return;
            }
            let ahead = latest.map(|latest| latest.until_waning(now)).unwrap_or_default();
            sleep(ahead.clamp(SHORTEST_LOOK_PERIOD, LOOK_PERIOD)).await;
        }
    }

    /// Another connection. `None`: there is none, or none that lasts longer than the latest, which
    /// then stays in force.
    async fn connect_for_longer(&self) -> Option<Channel> {
        let in_force = *self.latest();
        let connected = self.connect().await;
        let end = |lifetime: Option<Lifetime>| lifetime.map(|lifetime| lifetime.end);
        match connected {
            Ok(channel) if end(*self.latest()) > end(in_force) => return Some(channel),
            Ok(_) => {
                *self.latest() = in_force;
                tracing::debug!("another connection would end with the same certificates");
            }
            Err(error) => tracing::warn!("the connection can't be renewed: {}", Chain(&error)),
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_is_renewed_in_the_last_third_of_its_time() {
        let opened = SystemTime::now();
        let after = |seconds| opened + Duration::from_secs(seconds);
        let lifetime = Lifetime { opened, end: after(30) };
        let waning = |seconds| lifetime.is_waning(after(seconds));
        assert_eq!([0, 19, 20, 28, 29, 31].map(waning), [false, false, true, true, false, false]);
        assert_eq!(lifetime.until_waning(after(5)), Duration::from_secs(15));
    }
}
