use std::time::{Duration, SystemTime};

/// Certificates are made valid from a little earlier on, for clocks that are slow.
const CLOCK_SKEW: Duration = Duration::from_secs(5 * 60);

/// From when until when a certificate is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    /// Its first moment.
    pub not_before: SystemTime,
    /// Its last moment.
    pub not_after: SystemTime,
}

impl Validity {
    /// From now (and a few minutes before, for slow clocks) for `length`.
    #[must_use]
    pub fn from_now(length: Duration) -> Self {
        let now = SystemTime::now();
        Self { not_before: now - CLOCK_SKEW, not_after: now + length }
    }

    /// When it is to be warned of the certificate's end: `ahead` of it, but never before two thirds of
    /// its validity are over, for certificates that are renewed by themselves live shortly.
    #[must_use]
    pub fn warning_at(&self, ahead: Duration) -> SystemTime {
        let length = self.not_after.duration_since(self.not_before).unwrap_or_default();
        self.not_after - ahead.min(length / 3)
    }
}
