//! The service's certificates.
//!
//! A DPU may boot with an expired certificate, or before its clock is set. Pods are programmed first: only connections
//! wait for valid certificates.

use std::{sync::Arc, time::Duration};

use bootstrap::notify_ready;
use mtls::{CredentialsError, LiveCredentials, Role, TlsSettings};
use tokio::{sync::OnceCell, time::sleep};

use crate::{
    config::Config,
    events::{EventKind, Events},
};

const PERIOD: Duration = Duration::from_secs(5);
/// How often the certificate in use is compared with the clock and with its previous state.
const LOOK: Duration = Duration::from_secs(1);
/// Subject of events about certificates.
const SUBJECT: &str = "certificate";

/// The service's certificates, available once they are valid.
#[derive(Debug)]
pub(crate) struct Certificates {
    settings: TlsSettings,
    /// How long before the certificate's end the log warns.
    warning: Duration,
    valid: OnceCell<LiveCredentials>,
}

impl Certificates {
    /// The certificates that a configuration names. Reads no file yet.
    pub(crate) fn of(config: &Config) -> Self {
        let (settings, warning) = (config.tls.clone(), config.certificate_warning.ahead());
        Self { settings, warning, valid: OnceCell::new() }
    }

    /// Waits until the certificates are valid, and then follows their files.
    ///
    /// # Errors
    /// The files cannot be used at the first read, for another reason than their dates.
    pub(crate) async fn valid(&self) -> Result<LiveCredentials, CredentialsError> {
        self.valid.get_or_try_init(|| self.wait()).await.cloned()
    }

    /// `None`: not valid yet.
    pub(crate) fn now(&self) -> Option<&LiveCredentials> {
        self.valid.get()
    }

    async fn wait(&self) -> Result<LiveCredentials, CredentialsError> {
        let roles = [Role::Dpu];
        let valid = match LiveCredentials::load(&self.settings, &roles) {
            Err(error) if error.is_of_dates() => {
                // Reported as ready although it waits: the service manager would restart a start that takes too long.
                notify_ready();
                LiveCredentials::load_when_valid(&self.settings, &roles, PERIOD).await
            }
            loaded => loaded?,
        };
        tokio::spawn(valid.clone().follow(PERIOD));
        tokio::spawn(valid.clone().warn_of_expiry(self.warning));
        Ok(valid)
    }
}

/// Records changes of the certificate as events. It counts as expiring for `expiring` before its end. Never returns.
pub(crate) async fn record_changes(live: LiveCredentials, expiring: Duration, events: Arc<Events>) {
    let mut before = Seen { ends: live.ends(), ..Seen::default() };
    loop {
        let now = Seen::of(&live, expiring);
        now.record_since(&before, &events);
        before = now;
        sleep(LOOK).await;
    }
}

/// State of the certificate at one moment. Each problem is one sentence.
#[derive(Debug, Default)]
struct Seen {
    ends: String,
    refused: Option<String>,
    expiring: Option<String>,
    expired: Option<String>,
}

impl Seen {
    fn of(live: &LiveCredentials, expiring: Duration) -> Self {
        let expired = live.expired();
        let expiring = live.expiring(expiring).filter(|_| expired.is_none());
        Self { ends: live.ends(), refused: live.refused(), expiring, expired }
    }

    fn record_since(&self, before: &Self, events: &Events) {
        if self.ends != before.ends {
            events.record(EventKind::CertificateRenewed, SUBJECT, &self.ends);
        }
        let problems = [
            (EventKind::CertificateRefused, &self.refused, &before.refused),
            (EventKind::CertificateExpiring, &self.expiring, &before.expiring),
            (EventKind::CertificateExpired, &self.expired, &before.expired),
        ];
        for (kind, now, before) in problems {
            let news = now.as_ref().filter(|_| now != before);
            news.into_iter().for_each(|problem| events.record(kind, SUBJECT, problem));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(ends: &str) -> Seen {
        Seen { ends: ends.into(), ..Seen::default() }
    }

    #[test]
    fn changes_of_the_certificate_are_events() {
        let events = Events::default();
        let expiring = Seen { expiring: Some("soon".into()), ..seen("May") };
        let expired = Seen { expired: Some("over".into()), ..seen("May") };
        let refused = Seen { refused: Some("of another CA".into()), ..seen("June") };
        let states = [seen("May"), expiring, expired, seen("June"), refused, seen("June")];
        for pair in states.windows(2) {
            pair[1].record_since(&pair[0], &events);
            pair[1].record_since(&pair[1], &events);
        }
        let kinds: Vec<_> = events.about(SUBJECT).iter().map(|event| event.kind).collect();
        let expected = [
            EventKind::CertificateExpiring,
            EventKind::CertificateExpired,
            EventKind::CertificateRenewed,
            EventKind::CertificateRefused,
        ];
        assert_eq!(kinds, expected);
    }
}
