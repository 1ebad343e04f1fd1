//! Credentials that follow their files.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime},
};

use arc_swap::ArcSwap;
use bootstrap::Chain;
use tokio::{
    task::spawn_blocking,
    time::{Instant, sleep},
};

use crate::{
    certificate::date, credentials::Credentials, error::CredentialsError, files::Files,
    identity::Role, settings::TlsSettings,
};

/// How often it is warned of a certificate's end.
const WARNING_PERIOD: Duration = Duration::from_secs(3600);
/// How often the certificate in force is looked at, for it may be replaced, and the clock be set.
const LOOK_PERIOD: Duration = Duration::from_secs(60);
/// A wait for a moment of the clock ends this much after it, so that the moment has passed by then.
const INSTANT: Duration = Duration::from_millis(1);

/// The credentials in force. Clones share them: when the files are replaced, new connections use
/// the new ones, and connections that are open keep theirs.
#[derive(Clone, Debug)]
pub struct LiveCredentials(Arc<Shared>);

/// Why a replacement was refused.
#[derive(Debug, PartialEq)]
struct Refusal {
    /// The digest of the refused files. `None`: they can't be read.
    digest: Option<String>,
    problem: String,
}

#[derive(Debug)]
struct Shared {
    settings: TlsSettings,
    current: ArcSwap<Credentials>,
    /// Held while the files are read and put in force: of two readings the later one decides.
    reading: Mutex<()>,
    refusal: Mutex<Option<Refusal>>,
}

impl LiveCredentials {
    /// Reads and checks the files of `settings`, as [`Credentials::load`] does.
    ///
    /// # Errors
    /// [`CredentialsError`]: the first credentials must be good.
    pub fn load(settings: &TlsSettings, roles: &[Role]) -> Result<Self, CredentialsError> {
        let credentials = Credentials::load(settings, roles)?;
        Ok(Self(Arc::new(Shared {
            settings: settings.clone(),
            current: ArcSwap::from_pointee(credentials),
            reading: Mutex::new(()),
            refusal: Mutex::new(None),
        })))
    }

    /// As [`Self::load`], but waits until the files can be used: certificates are renewed, or this machine's clock is
    /// set. Looks every `period`. A renewal writes one file after the other, so that any error may be one of a moment.
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
                    "no connection is accepted before the certificates are valid"
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

    /// Until when the certificate in force and the CA's are valid: one clause.
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

    /// What is wrong, one sentence: the certificate in force has expired or is not valid yet, or its
    /// replacement was refused. `None`: nothing.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        self.outside_validity().or_else(|| self.refused())
    }

    /// That the certificate in force has expired or is not valid yet, one sentence. `None`: it is valid.
    #[must_use]
    pub fn outside_validity(&self) -> Option<String> {
        self.expired().or_else(|| self.not_yet_valid())
    }

    /// Why the latest replacement was refused. `None`: it was not.
    #[must_use]
    pub fn refused(&self) -> Option<String> {
        self.refusal().as_ref().map(|refusal| refusal.problem.clone())
    }

    /// Why the last replacement was refused.
    fn refusal(&self) -> MutexGuard<'_, Option<Refusal>> {
        self.0.refusal.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Follows the files, looking every `period`, until it is dropped.
    pub async fn follow(self, period: Duration) {
        loop {
            self.look_aside(false).await;
            sleep(period).await;
        }
    }

    /// Reads the files now. What does not pass is refused, logged, and told by
    /// [`LiveCredentials::problem`]; the credentials in force stay.
    ///
    /// Certificate and key that do not match are refused too, when one of them was replaced without
    /// the other. The other one's coming is the next change that [`LiveCredentials::follow`] sees.
    pub async fn reload(&self) {
        self.look_aside(true).await;
    }

    /// Looks on a thread for blocking work: a file system that hangs keeps no other task waiting.
    async fn look_aside(&self, is_asked: bool) {
        let live = self.clone();
        if let Err(error) = spawn_blocking(move || live.look(is_asked)).await {
            tracing::error!(%error, "the certificates can't be read");
        }
    }

    /// Loads the files, if it is asked for or if they differ from what is in force.
    ///
    /// Contents are compared with what was loaded, not with an earlier look: files that are changed back while they are
    /// loaded are loaded again.
    fn look(&self, is_asked: bool) {
        let _one_at_a_time = self.0.reading.lock().unwrap_or_else(PoisonError::into_inner);
        let files = Files::read(&self.0.settings).ok();
        let are_in_force = files.as_ref().is_some_and(|files| self.current().are_of(files));
        // What was refused may be valid by now without a change: once its validity has begun.
        if are_in_force && !is_asked && self.refusal().is_none() {
            return;
        }
        let refused = self.replace().err().map(|error| Refusal {
            digest: files.as_ref().map(Files::digest),
            problem: Chain(&error).to_string(),
        });
        self.report(refused, is_asked);
    }

    fn replace(&self) -> Result<(), CredentialsError> {
        let current = self.current();
        let next = Credentials::load(&self.0.settings, &[current.identity().role()])?;
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

    /// Logs a refusal, unless the same files were refused for the same reason before and no reload was asked for.
    fn report(&self, refused: Option<Refusal>, is_asked: bool) {
        let mut earlier = self.refusal();
        if let Some(Refusal { problem, .. }) = &refused
            && (is_asked || *earlier != refused)
        {
            tracing::error!(problem, "replaced certificates are refused; the earlier ones stay");
        }
        *earlier = refused;
    }

    /// That the certificate in force has expired, one sentence. `None`: it has not.
    #[must_use]
    pub fn expired(&self) -> Option<String> {
        let current = self.current();
        let path = self.0.settings.certificate.display();
        (SystemTime::now() > current.validity().not_after).then(|| {
            format!(
                "certificate {path} expired on {}: renew it",
                date(current.validity().not_after)
            )
        })
    }

    /// That the certificate in force is not valid yet, one sentence: the clock was set back, for a certificate is only put
    /// in force while it is valid. `None`: its validity has begun.
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

    /// That the certificate in force has expired, or will so soon that it is time to renew it: one
    /// sentence. `ahead` is how long before its end that is told, or the last third of its validity
    /// if that is shorter. `None`: it is not time yet.
    #[must_use]
    pub fn expiring(&self, ahead: Duration) -> Option<String> {
        let current = self.current();
        let path = self.0.settings.certificate.display();
        let is_near = || SystemTime::now() > current.validity().warning_at(ahead);
        self.expired().or_else(|| {
            is_near().then(|| {
                format!(
                    "certificate {path} expires on {}: renew it",
                    date(current.validity().not_after)
                )
            })
        })
    }

    /// Warns in the log when it is time to renew the certificate, at its end, and again every hour, for
    /// ever.
    pub async fn warn_of_expiry(self, ahead: Duration) {
        let mut told: Option<(String, Instant)> = None;
        loop {
            if let Some(warning) = self.expiring(ahead) {
                let is_told = told.as_ref().is_some_and(|(earlier, at)| {
                    *earlier == warning && at.elapsed() < WARNING_PERIOD
                });
                if !is_told {
                    tracing::warn!("{warning}");
                    told = Some((warning, Instant::now()));
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
        live.look(false);
        assert_eq!(live.current().first_end(), first_end);
    }
}
