//! Why hosts are not connected, as far as that is known.

use std::{
    collections::HashMap,
    sync::{MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use super::Sessions;
use crate::model::HostName;

/// How often it is told of one host that it was refused. It tries again every few seconds.
const TELL_EVERY: Duration = Duration::from_secs(60);
/// How often the same is told.
const REPEAT_EVERY: Duration = Duration::from_secs(3600);

/// Why a host is not connected.
#[derive(Debug)]
pub(super) struct Absence {
    why: String,
    /// The refusal that was told last, and when.
    told: Option<(String, Instant)>,
}

impl Absence {
    pub(super) fn new(why: String) -> Self {
        Self { why, told: None }
    }

    pub(super) fn why(&self) -> &str {
        &self.why
    }

    /// Whether this refusal is to be told.
    fn is_news(&mut self, refusal: &str, now: Instant) -> bool {
        let is_news = self.told.as_ref().is_none_or(|(told, at)| {
            let pause = if told == refusal { REPEAT_EVERY } else { TELL_EVERY };
            now.duration_since(*at) >= pause
        });
        if is_news {
            self.told = Some((refusal.to_owned(), now));
        }
        is_news
    }
}

impl Sessions {
    /// A host that is not connected was refused for `reason`; `why` says so with the time. Tells whether
    /// that is news.
    pub fn refused(&self, host: &HostName, reason: &str, why: String) -> bool {
        let hosts = self.lock();
        if hosts.get(host).is_some_and(|entry| entry.open.is_some()) {
            return false;
        }
        let mut absences = self.absences();
        let absence = absences.entry(host.clone()).or_insert_with(|| Absence::new(String::new()));
        absence.why = why;
        absence.is_news(reason, Instant::now())
    }

    pub(super) fn absences(&self) -> MutexGuard<'_, HashMap<HostName, Absence>> {
        self.absences.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sessions::tests::{hello, host};

    #[test]
    fn a_refusal_is_news_once_in_a_while_and_another_one_not_much_more_often() {
        let mut absence = Absence::new(String::new());
        let begun = Instant::now();
        let mut is_news =
            |reason, seconds| absence.is_news(reason, begun + Duration::from_secs(seconds));
        assert!(is_news("a", 0) && !is_news("a", 61) && !is_news("b", 59));
        assert!(is_news("b", 61) && !is_news("a", 119) && !is_news("b", 3600));
        assert!(is_news("b", 3661));
    }

    #[test]
    fn only_of_a_host_that_is_away_it_is_known_why() {
        let sessions = Sessions::default();
        let absence = || sessions.view(&host()).absence;
        assert_eq!(absence(), None);
        assert!(sessions.refused(&host(), "expired", "refused today".into()));
        assert_eq!(absence().as_deref(), Some("refused today"));

        let session = sessions.open(&host(), &hello("boot", 0)).unwrap();
        assert_eq!(absence(), None);
        assert!(!sessions.refused(&host(), "expired", "somebody else was".into()));
        assert_eq!(absence(), None);

        assert!(sessions.close(&host(), session.id, Some("its certificate ended".into())));
        assert_eq!(absence().as_deref(), Some("its certificate ended"));
        let session = sessions.open(&host(), &hello("boot", 0)).unwrap();
        assert!(sessions.close(&host(), session.id, None));
        assert_eq!(absence(), None);
    }
}
