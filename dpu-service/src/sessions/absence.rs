//! Why hosts are not connected, as far as that is known.

use std::time::{Duration, Instant};

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

    /// The host was refused for `reason`; `why` says so with the time. Tells whether that is news.
    pub(super) fn note_refusal(&mut self, reason: &str, why: String) -> bool {
        self.why = why;
        self.is_news(reason, Instant::now())
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

#[cfg(test)]
mod tests {
    use super::*;

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
}
