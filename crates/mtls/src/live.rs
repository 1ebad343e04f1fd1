//! Credentials that follow their files.

use std::{
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime},
};

use arc_swap::ArcSwap;
use bootstrap::{Chain, FileWatch};
use tokio::time::{Instant, sleep};

use crate::{
    certificate::date, credentials::Credentials, error::CredentialsError, identity::Role,
    settings::TlsSettings,
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

#[derive(Debug)]
struct Shared {
    settings: TlsSettings,
    current: ArcSwap<Credentials>,
    /// The files as they were before they were last read.
    read: Mutex<FileWatch>,
    refusal: Mutex<Option<String>>,
}

impl LiveCredentials {
    /// Reads and checks the files of `settings`, as [`Credentials::load`] does.
    ///
    /// # Errors
    /// [`CredentialsError`]: the first credentials must be good.
    pub fn load(settings: &TlsSettings, roles: &[Role]) -> Result<Self, CredentialsError> {
        let paths = [&settings.ca, &settings.certificate, &settings.key].map(PathBuf::clone);
        let read = FileWatch::new(paths);
        let credentials = Credentials::load(settings, roles)?;
        Ok(Self(Arc::new(Shared {
            settings: settings.clone(),
            current: ArcSwap::from_pointee(credentials),
            read: Mutex::new(read),
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

    /// What is wrong, one sentence: the certificate in force has expired, or its replacement was
    /// refused. `None`: nothing.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        self.expired().or_else(|| self.refusal().clone())
    }

    /// Why the last replacement was refused.
    fn refusal(&self) -> MutexGuard<'_, Option<String>> {
        self.0.refusal.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Follows the files, looking every `period`, until it is dropped.
    pub async fn follow(self, period: Duration) {
        loop {
            let have_changed = self.have_changed();
            // What was refused may be valid by now without a change: once its validity has begun.
            if have_changed || self.refusal().is_some() {
                self.report(self.replace().err(), have_changed);
            }
            sleep(period).await;
        }
    }

    /// Whether the files differ from what was read last. They are to be read now.
    fn have_changed(&self) -> bool {
        self.0.read.lock().unwrap_or_else(PoisonError::into_inner).look()
    }

    /// Reads the files now. What does not pass is refused, logged, and told by
    /// [`LiveCredentials::problem`]; the credentials in force stay.
    ///
    /// Certificate and key that do not match are refused too, when one of them was replaced without
    /// the other. The other one's coming is the next change that [`LiveCredentials::follow`] sees.
    pub fn reload(&self) {
        let _is_reloaded_anyway = self.have_changed();
        self.report(self.replace().err(), true);
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

    /// What is refused as before is told again only of files that changed.
    fn report(&self, refused: Option<CredentialsError>, have_changed: bool) {
        let found = refused.map(|error| Chain(&error).to_string());
        let mut refusal = self.refusal();
        if let Some(problem) = found.as_ref().filter(|_| have_changed || *refusal != found) {
            tracing::error!(problem, "replaced certificates are refused; the earlier ones stay");
        }
        *refusal = found;
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
