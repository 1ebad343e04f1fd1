//! One connection in the place of another, ahead of the end of the certificates that it was opened
//! with.

use std::time::{Duration, SystemTime};

use bootstrap::Chain;
use tokio::time::{Instant, sleep};
use tonic::transport::Channel;

use crate::{
    connector::Connector, credentials::Credentials, lifetime::Lifetime, term::LOOK_PERIOD,
};

/// How often the clock is looked at, at most.
const SHORTEST_LOOK_PERIOD: Duration = Duration::from_millis(100);

/// Pauses between attempts: a tenth of what is left, within these.
const SHORTEST_PAUSE: Duration = Duration::from_secs(3);
const LONGEST_PAUSE: Duration = Duration::from_secs(3600);

impl Connector {
    /// Waits until the latest connection nears its end, and opens another one that lasts longer: a
    /// connection ends with its certificates, ours and the DPU's, though both may have been renewed
    /// by then. As long as the one that ends first has not been, there is no such connection.
    pub async fn renewed(&self) -> Channel {
        loop {
            self.waning().await;
            let shown = self.credentials.current();
            match self.connect_for_longer().await {
                Some(channel) => return channel,
                None => self.pause(&shown).await,
            }
        }
    }

    /// Until our certificate is another one than was `shown`, or the DPU's may be.
    async fn pause(&self, shown: &Credentials) {
        let left = self.latest().map(|latest| latest.left(SystemTime::now()));
        let pause = left.unwrap_or_default() / 10;
        let over = Instant::now() + pause.clamp(SHORTEST_PAUSE, LONGEST_PAUSE);
        while self.credentials.current().is(shown) && Instant::now() < over {
            sleep((over - Instant::now()).min(LOOK_PERIOD)).await;
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
            Ok(_) => tracing::debug!("another connection would end with the same certificates"),
            Err(error) => tracing::warn!("the connection can't be renewed: {}", Chain(&error)),
        }
        // An attempt that succeeded has noted its own connection, which is dropped here.
        *self.latest() = in_force;
        None
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures::FutureExt;
    use tokio::{io::AsyncWriteExt, net::TcpListener, time::timeout};
    use tokio_rustls::TlsAcceptor;

    use super::*;
    use crate::{
        LiveCredentials, Role, TlsSettings,
        authority::{Authority, Validity},
        verifier::Outdated,
    };

    const HOUR: Duration = Duration::from_secs(3600);
    const BOUND: Duration = Duration::from_secs(20);

    /// The certificates of a host and of its DPU, which are valid for an hour.
    struct Pki {
        folder: tempfile::TempDir,
        authority: Authority,
    }

    impl Pki {
        fn new() -> Self {
            let authority = Authority::create("test.local", Validity::from_now(HOUR)).unwrap();
            let folder = tempfile::tempdir().unwrap();
            authority.save(folder.path()).unwrap();
            Self { folder, authority }
        }

        fn live(&self, role: Role, name: &str) -> LiveCredentials {
            let issued = self.authority.issue(role, name, Validity::from_now(HOUR)).unwrap();
            let (certificate, key) = issued.save(self.folder.path(), name).unwrap();
            let (ca, trust_domain) = (self.folder.path().join("ca.crt"), "test.local".into());
            let settings = TlsSettings { ca, certificate, key, trust_domain };
            LiveCredentials::load(&settings, &[role]).unwrap()
        }

        /// With a connection that ends in `left`.
        fn connector(&self, listener: &TcpListener, left: Duration) -> Connector {
            let address = listener.local_addr().unwrap().to_string();
            let live = self.live(Role::Host, "node-1");
            let connector = Connector::new(live, &address, "dpu-1", BOUND).unwrap();
            *connector.latest() = Some(Lifetime::until(SystemTime::now() + left));
            connector
        }
    }

    const DAY: Duration = Duration::from_secs(86_400);

    /// How long the connector waits after an attempt that was in vain, with so much left.
    async fn paused(left: Duration) -> Duration {
        let connector = Pki::new().connector(&listen().await, left);
        let begun = Instant::now();
        connector.pause(&connector.credentials.current()).await;
        begun.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn failed_renewal_is_retried_after_a_tenth() {
        let lefts = [30 * DAY, HOUR, Duration::from_secs(5)];
        let pauses = [HOUR, HOUR / 10, SHORTEST_PAUSE];
        for (left, expected) in lefts.into_iter().zip(pauses) {
            let pause = paused(left).await;
            // The clock of certificates is not that of the pause.
            assert!(pause <= expected && pause + BOUND > expected, "{left:?}: {pause:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn replaced_own_certificate_is_noticed() {
        let pki = Pki::new();
        let connector = pki.connector(&listen().await, 30 * DAY);
        let shown = connector.credentials.current();
        let _replaced = pki.live(Role::Host, "node-1");
        let begun = Instant::now();
        let replace = async {
            sleep(LOOK_PERIOD * 3 / 2).await;
            connector.credentials.reload().await;
        };
        tokio::join!(connector.pause(&shown), replace);
        assert_eq!(begun.elapsed().as_secs(), 2 * LOOK_PERIOD.as_secs());
    }

    /// They time out at once: the clock runs ahead whenever there is nothing else to do.
    #[tokio::test(start_paused = true)]
    async fn unrenewed_dpu_certificate_limits_dialling() {
        let (pki, listener) = (Pki::new(), listen().await);
        let connector = pki.connector(&listener, DAY);
        let now = SystemTime::now();
        *connector.latest() = Some(Lifetime { opened: now - 60 * DAY, end: now + 30 * DAY });
        assert!(timeout(DAY, connector.renewed()).await.is_err());
        let mut dialled = 0;
        while listener.accept().now_or_never().is_some() {
            dialled += 1;
        }
        assert!((20..=25).contains(&dialled), "{dialled}");
    }

    async fn listen() -> TcpListener {
        TcpListener::bind("127.0.0.1:0").await.unwrap()
    }

    /// A server whose connections break off with the first thing it says.
    async fn break_off(listener: TcpListener, live: LiveCredentials) {
        const SETTINGS: &[u8] = b"\0\0\0\x04\0\0\0\0\0";
        let config = live.current().server_config(Outdated::default()).unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        let mut stream = TlsAcceptor::from(Arc::new(config)).accept(stream).await.unwrap();
        stream.get_ref().0.set_zero_linger().unwrap();
        stream.write_all(SETTINGS).await.unwrap();
    }

    #[tokio::test]
    async fn failed_http2_keeps_current_connection() {
        let (pki, listener) = (Pki::new(), listen().await);
        let connector = pki.connector(&listener, HOUR / 2);
        let in_force = connector.latest().unwrap().end;
        let server = break_off(listener, pki.live(Role::Dpu, "dpu-1"));
        let (renewed, ()) = tokio::join!(connector.connect_for_longer(), server);
        assert!(renewed.is_none());
        assert_eq!(connector.latest().unwrap().end, in_force);
    }

    #[test]
    fn connection_is_renewed_in_last_third() {
        let opened = SystemTime::now();
        let after = |seconds| opened + Duration::from_secs(seconds);
        let lifetime = Lifetime { opened, end: after(30) };
        let waning = |seconds| lifetime.is_waning(after(seconds));
        assert_eq!([0, 19, 20, 28, 29, 31].map(waning), [false, false, true, true, false, false]);
        assert_eq!(lifetime.until_waning(after(5)), Duration::from_secs(15));
    }
}
