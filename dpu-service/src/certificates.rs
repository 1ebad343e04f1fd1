//! The service's certificates, for which only the API waits.
//!
//! A DPU may reboot with an expired certificate, or with a clock that is not set yet. Pods are programmed first:
//! only connections wait until the certificates are valid.

use std::time::Duration;

use bootstrap::notify_ready;
use mtls::{CredentialsError, LiveCredentials, Role, TlsSettings};
use tokio::sync::OnceCell;

use crate::config::Config;

/// How often the certificate files are read.
const PERIOD: Duration = Duration::from_secs(5);

/// The service's certificates, once they are valid.
#[derive(Debug)]
pub(crate) struct Certificates {
    settings: TlsSettings,
    /// How long before the certificate's end the log warns.
    warning: Duration,
    valid: OnceCell<LiveCredentials>,
}

impl Certificates {
    /// Those that a configuration names. Nothing is read yet.
    pub(crate) fn of(config: &Config) -> Self {
        let (settings, warning) = (config.tls.clone(), config.certificate_warning.ahead());
        Self { settings, warning, valid: OnceCell::new() }
    }

    /// Waits until they are valid, and follows their files from then on.
    ///
    /// # Errors
    /// The files can't be used, for another reason than their dates, when they are read first.
    pub(crate) async fn valid(&self) -> Result<LiveCredentials, CredentialsError> {
        self.valid.get_or_try_init(|| self.wait()).await.cloned()
    }

    /// `None`: they have not been valid yet.
    pub(crate) fn now(&self) -> Option<&LiveCredentials> {
        self.valid.get()
    }

    async fn wait(&self) -> Result<LiveCredentials, CredentialsError> {
        let roles = [Role::Dpu];
        let valid = match LiveCredentials::load(&self.settings, &roles) {
            Err(error) if error.is_of_dates() => {
                // A start that waits is no failed one, which the service manager would repeat.
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
