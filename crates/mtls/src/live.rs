//! Credentials that follow their files.
//!
//! Locks: `reading` is held while files are read and put in force; `refusal` is taken inside it. Readers of the current
//! credentials take no lock. [`LiveCredentials::follow`], [`LiveCredentials::reload`] and
//! [`LiveCredentials::warn_of_expiry`] run concurrently.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use arc_swap::ArcSwap;
use bootstrap::Chain;
use parking_lot::Mutex;
use tokio::{
    task::spawn_blocking,
    time::{Instant, sleep},
};

use crate::{
    certificate::date, credentials::Credentials, error::CredentialsError, files::Files,
    identity::Role, settings::TlsSettings,
};

/// How often the log repeats a warning of expiry.
const WARNING_PERIOD: Duration = Duration::from_secs(3600);
/// How often the certificate in force is checked: it may be replaced, and the clock may be set.
const LOOK_PERIOD: Duration = Duration::from_secs(60);
/// Added to each wait for a moment of the clock, so that the moment has passed when the wait ends.
const INSTANT: Duration = Duration::from_millis(1);

/// The credentials in force. Clones share them. When the files are replaced, new connections use the new credentials,
/// and open connections keep theirs.
#[derive(Clone, Debug)]
pub struct LiveCredentials(Arc<Shared>);

/// Why a replacement was refused.
#[derive(Debug, PartialEq)]
struct Refusal {
    /// The digest of the refused files. `None`: they cannot be read.
    digest: Option<String>,
    problem: String,
}

#[derive(Debug)]
struct Shared {
    settings: TlsSettings,
    current: ArcSwap<Credentials>,
    /// Serialises readings, so that the later one of two decides.
    reading: Mutex<()>,
    refusal: Mutex<Option<Refusal>>,
}

impl LiveCredentials {
    /// Reads and checks the files of `settings`, as [`Credentials::load`] does.
    ///
    /// # Errors
    /// [`CredentialsError`] if the files are not valid.
    pub fn load(settings: &TlsSettings, roles: &[Role]) -> Result<Self, CredentialsError> {
        let credentials = Credentials::load(settings, roles)?;
        Ok(Self(Arc::new(Shared {
            settings: settings.clone(),
            current: ArcSwap::from_pointee(credentials),
            reading: Mutex::new(()),
            refusal: Mutex::new(None),
        })))
    }

    /// As [`Self::load`], but retries every `period` until the files are valid. Any error may be temporary: a renewal
    /// writes one file after the other, and the machine's clock may not be set yet.
    pub async fn load_when_valid(settings: &TlsSettings, roles: &[Role], period: Duration) -> Self {
        let mut reported = None;
        loop {
            let problem = match Self::load(settings, roles) {
                Err(error) => Chain(&error).to_string(),
                Ok(loaded) => return loaded,
            };
            if reported.as_ref() != Some(&problem) {
                tracing::error!(
                    problem,
                    "certificates are not valid; refusing all connections until they are"
                );
                reported = Some(problem);
            }
            sleep(period).await;
        }
    }

    /// The credentials in force.
    #[must_use]
    pub fn current(&self) -> Credentials {
        Credentials::clone(&self.0.current.load())
    }

    /// A clause with the expiry of the certificate in force and of the CA's.
    #[must_use]
    pub fn ends(&self) -> String {
        let (current, settings) = (self.current(), &self.0.settings);
        format!(
            "certificate {} of {} is valid until {}, CA file {} until {}",
            settings.certificate.display(),
            current.identity(),
            date(current.validity().not_after),
            settings.ca.display(),
            date(current.ca_validity().not_after)
        )
    }

    /// The problem of the certificates, one sentence: the certificate in force has expired or is not valid yet, or its
    /// replacement was refused. `None`: there is none.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        self.outside_validity().or_else(|| self.refused())
    }

    /// One sentence if the certificate in force has expired or is not valid yet. `None`: it is valid.
    #[must_use]
    pub fn outside_validity(&self) -> Option<String> {
        self.expired().or_else(|| self.not_yet_valid())
    }

    /// Why the latest replacement was refused. `None`: it was not refused.
    #[must_use]
    pub fn refused(&self) -> Option<String> {
        self.0.refusal.lock().as_ref().map(|refusal| refusal.problem.clone())
    }

    /// Follows the files, and checks them every `period`. Never returns.
    pub async fn follow(self, period: Duration) {
        loop {
            self.load_if_changed(false).await;
            sleep(period).await;
        }
    }

    /// Reads the files now. Invalid files are refused, logged and reported by [`LiveCredentials::problem`]; the
    /// credentials in force stay.
    ///
    /// Certificate and key that do not match are refused, too, if only one of them was replaced yet.
    /// [`LiveCredentials::follow`] sees the replacement of the other.
    pub async fn reload(&self) {
        self.load_if_changed(true).await;
    }

    /// Loads on a thread for blocking work: a hanging file system must not block other tasks.
    async fn load_if_changed(&self, is_forced: bool) {
        let live = self.clone();
        if let Err(error) = spawn_blocking(move || live.load_if_changed_blocking(is_forced)).await {
            tracing::error!(%error, "cannot read the certificates");
        }
    }

    /// Loads the files if `is_forced` or if they differ from the files in force.
    ///
    /// The comparison is with the loaded content, not with the previous check: files that change back during a load
    /// must be loaded again.
    fn load_if_changed_blocking(&self, is_forced: bool) {
        let _one_at_a_time = self.0.reading.lock();
        let files = Files::read(&self.0.settings).ok();
        let are_in_force = files.as_ref().is_some_and(|files| self.current().are_of(files));
        // Refused files are tried again without a change, because their validity may have begun.
        if are_in_force && !is_forced && self.0.refusal.lock().is_none() {
            return;
        }
        let refused = self.replace().err().map(|error| Refusal {
            digest: files.as_ref().map(Files::digest),
            problem: Chain(&error).to_string(),
        });
        self.report(refused, is_forced);
    }

    fn replace(&self) -> Result<(), CredentialsError> {
        let current = self.current();
        let next = Credentials::load(&self.0.settings, &[current.identity().role()])?;
        // Peers and records refer to this identity: only a restart may change it.
        if next.identity() != current.identity() {
            return Err(CredentialsError::OtherIdentity {
                path: self.0.settings.certificate.clone(),
                found: next.identity().clone(),
                expected: current.identity().clone(),
            });
        }
        tracing::info!(identity = %next.identity(), expires_at = date(next.validity().not_after), "certificates read");
        self.0.current.store(Arc::new(next));
        Ok(())
    }

    /// Logs a refusal, unless it was logged before for the same files and reason and no reload was requested.
    fn report(&self, refused: Option<Refusal>, is_forced: bool) {
        let mut earlier = self.0.refusal.lock();
        if let Some(Refusal { problem, .. }) = &refused
            && (is_forced || *earlier != refused)
        {
            tracing::error!(
                problem,
                "replaced certificates are refused; the earlier ones stay in force"
            );
        }
        *earlier = refused;
    }

    /// One sentence if the certificate in force has expired. `None`: it has not.
    #[must_use]
    pub fn expired(&self) -> Option<String> {
        let current = self.current();
        let (path, end) = (self.0.settings.certificate.display(), current.validity().not_after);
        (SystemTime::now() > end)
            .then(|| format!("certificate {path} expired on {}: renew it", date(end)))
    }

    /// One sentence if the certificate in force is not valid yet. This means that the clock was set back, because a
    /// certificate is put in force only while it is valid. `None`: its validity has begun.
    #[must_use]
    pub fn not_yet_valid(&self) -> Option<String> {
        let current = self.current();
        let path = self.0.settings.certificate.display();
        let not_before = current.validity().not_before;
        (SystemTime::now() < not_before).then(|| {
            format!(
                "certificate {path} is valid from {} on, and the clock of this machine shows an earlier time: set the clock",
                date(not_before)
            )
        })
    }

    /// One sentence if the certificate in force has expired or must be renewed. It must be renewed when its end is
    /// closer than `ahead`, or than a third of its validity if that is shorter. `None`: it need not be renewed yet.
    #[must_use]
    pub fn expiring(&self, ahead: Duration) -> Option<String> {
        let current = self.current();
        let path = self.0.settings.certificate.display();
        let end = date(current.validity().not_after);
        let is_near = || SystemTime::now() > current.validity().warning_at(ahead);
        self.expired()
            .or_else(|| is_near().then(|| format!("certificate {path} expires on {end}: renew it")))
    }

    /// Logs a warning when the certificate must be renewed, when it has expired, and every hour in between. Never
    /// returns.
    pub async fn warn_of_expiry(self, ahead: Duration) {
        let mut logged: Option<(String, Instant)> = None;
        loop {
            if let Some(warning) = self.expiring(ahead) {
                let is_logged = logged.as_ref().is_some_and(|(earlier, at)| {
                    *earlier == warning && at.elapsed() < WARNING_PERIOD
                });
                if !is_logged {
                    tracing::warn!(%warning, "the certificate must be renewed");
                    logged = Some((warning, Instant::now()));
                }
            }
            sleep(self.until_next_look(ahead)).await;
        }
    }

    fn until_next_look(&self, ahead: Duration) -> Duration {
        let validity = self.current().validity();
        let now = SystemTime::now();
        let moments = [validity.warning_at(ahead), validity.not_after];
        let left = moments.into_iter().filter_map(|moment| moment.duration_since(now).ok());
        left.map(|left| left + INSTANT).fold(LOOK_PERIOD, Duration::min)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::authority::{Authority, Validity};

    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn files_changed_back_during_a_load_are_loaded() {
        let folder = tempfile::tempdir().unwrap();
        let authority = Authority::create("test.local", Validity::from_now(HOUR)).unwrap();
        authority.save(folder.path()).unwrap();
        let save = |hours| {
            let validity = Validity::from_now(hours * HOUR);
            let issued = authority.issue(Role::Host, "a", validity).unwrap();
            issued.save(folder.path(), "a").unwrap()
        };
        let (certificate, key) = save(1);
        let (ca, trust_domain) = (folder.path().join("ca.crt"), "test.local".into());
        let settings = TlsSettings { ca, certificate, key, trust_domain };
        let live = LiveCredentials::load(&settings, &[Role::Host]).unwrap();
        let paths = [&settings.certificate, &settings.key];
        let (first, first_end) =
            (paths.map(|path| fs::read(path).unwrap()), live.current().first_end());

        // The files change after a look and before its load.
        save(2);
        live.replace().unwrap();
        assert_ne!(live.current().first_end(), first_end);
        paths.into_iter().zip(&first).for_each(|(path, content)| fs::write(path, content).unwrap());
        live.load_if_changed_blocking(false);
        assert_eq!(live.current().first_end(), first_end);
    }
}
