//! Replaces a connection before the certificates that it was opened with expire.

use std::time::{Duration, SystemTime};

use bootstrap::Chain;
use tokio::time::{Instant, sleep};
use tonic::transport::Channel;

use crate::{
    connector::Connector, credentials::Credentials, lifetime::Lifetime, term::LOOK_PERIOD,
};

/// Shortest interval between checks of the clock.
const SHORTEST_LOOK_PERIOD: Duration = Duration::from_millis(100);

/// Bounds of the delay between attempts, which is a tenth of the remaining time.
const SHORTEST_PAUSE: Duration = Duration::from_secs(3);
const LONGEST_PAUSE: Duration = Duration::from_secs(3600);

impl Connector {
    /// Waits until the latest connection nears its end, and opens another one that lasts longer. A connection ends with
    /// its certificates, the own and the DPU's, even if both have been renewed by then. While the certificate that
    /// expires first is not renewed, this function keeps waiting.
    pub async fn renewed(&self) -> Channel {
        loop {
            self.until_near_end().await;
            let shown = self.credentials.current();
            match self.connect_for_longer().await {
                Some(channel) => return channel,
                None => self.wait_for_renewal(&shown).await,
            }
        }
    }

    /// Waits until the own certificate differs from `shown`, or the DPU's may have been renewed.
    async fn wait_for_renewal(&self, shown: &Credentials) {
        let left = self.latest.lock().map(|latest| latest.left(SystemTime::now()));
        let pause = left.unwrap_or_default() / 10;
        let over = Instant::now() + pause.clamp(SHORTEST_PAUSE, LONGEST_PAUSE);
        while self.credentials.current().is(shown) && Instant::now() < over {
            sleep((over - Instant::now()).min(LOOK_PERIOD)).await;
        }
    }

    async fn until_near_end(&self) {
        loop {
            let (latest, now) = (*self.latest.lock(), SystemTime::now());
            if latest.is_some_and(|latest| latest.is_near_end(now)) {
                return;
            }
            let ahead = latest.map(|latest| latest.until_near_end(now)).unwrap_or_default();
            sleep(ahead.clamp(SHORTEST_LOOK_PERIOD, LOOK_PERIOD)).await;
        }
    }

    /// Opens another connection. `None`: that failed, or the new one would not last longer than the latest, which then
    /// stays in use.
    async fn connect_for_longer(&self) -> Option<Channel> {
        let in_force = *self.latest.lock();
        let connected = self.connect().await;
        let end = |lifetime: Option<Lifetime>| lifetime.map(|lifetime| lifetime.end);
        match connected {
            Ok(channel) if end(*self.latest.lock()) > end(in_force) => return Some(channel),
            Ok(_) => tracing::debug!("another connection would end with the same certificates"),
            Err(error) => tracing::warn!(error = %Chain(&error), "cannot renew the connection"),
        }
        // A successful attempt has stored its own lifetime, but its connection is dropped here.
        *self.latest.lock() = in_force;
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

    /// Certificates of a host and its DPU, valid for an hour.
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

        /// A connector with a connection that ends after `left`.
        fn connector(&self, listener: &TcpListener, left: Duration) -> Connector {
            let address = listener.local_addr().unwrap().to_string();
            let live = self.live(Role::Host, "node-1");
            let connector = Connector::new(live, &address, "dpu-1", BOUND).unwrap();
            *connector.latest.lock() = Some(Lifetime::until(SystemTime::now() + left));
            connector
        }
    }

    const DAY: Duration = Duration::from_secs(86_400);

    /// How long the connector waits after a failed attempt with so much time left.
    async fn paused(left: Duration) -> Duration {
        let connector = Pki::new().connector(&listen().await, left);
        let begun = Instant::now();
        connector.wait_for_renewal(&connector.credentials.current()).await;
        begun.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn failed_renewal_is_retried_after_a_tenth() {
        let lefts = [30 * DAY, HOUR, Duration::from_secs(5)];
        let pauses = [HOUR, HOUR / 10, SHORTEST_PAUSE];
        for (left, expected) in lefts.into_iter().zip(pauses) {
            let pause = paused(left).await;
            // Certificates use the system clock, which runs on while tokio's clock is paused.
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
        tokio::join!(connector.wait_for_renewal(&shown), replace);
        assert_eq!(begun.elapsed().as_secs(), 2 * LOOK_PERIOD.as_secs());
    }

    /// With paused time, tokio's clock jumps ahead whenever all tasks wait.
    #[tokio::test(start_paused = true)]
    async fn unrenewed_dpu_certificate_limits_dialling() {
        let (pki, listener) = (Pki::new(), listen().await);
        let connector = pki.connector(&listener, DAY);
        let now = SystemTime::now();
        *connector.latest.lock() = Some(Lifetime { opened: now - 60 * DAY, end: now + 30 * DAY });
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

    /// A server that resets each connection after its first frame.
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
        let in_force = connector.latest.lock().unwrap().end;
        let server = break_off(listener, pki.live(Role::Dpu, "dpu-1"));
        let (renewed, ()) = tokio::join!(connector.connect_for_longer(), server);
        assert!(renewed.is_none());
        assert_eq!(connector.latest.lock().unwrap().end, in_force);
    }

    #[test]
    fn connection_is_renewed_in_last_third() {
        let opened = SystemTime::now();
        let after = |seconds| opened + Duration::from_secs(seconds);
        let lifetime = Lifetime { opened, end: after(30) };
        let waning = |seconds| lifetime.is_near_end(after(seconds));
        assert_eq!([0, 19, 20, 28, 29, 31].map(waning), [false, false, true, true, false, false]);
        assert_eq!(lifetime.until_near_end(after(5)), Duration::from_secs(15));
    }
}
