use std::time::{Duration, SystemTime};

/// New certificates are valid from a little earlier, for peers with slow clocks.
const CLOCK_SKEW: Duration = Duration::from_secs(5 * 60);

/// The validity of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    /// Its first moment.
    pub not_before: SystemTime,
    /// Its last moment.
    pub not_after: SystemTime,
}

impl Validity {
    /// Valid from now (minus a few minutes for slow clocks) for `length`.
    #[must_use]
    pub fn from_now(length: Duration) -> Self {
        let now = SystemTime::now();
        Self { not_before: now - CLOCK_SKEW, not_after: now + length }
    }

    /// When to warn of the certificate's expiry: `ahead` of it, but not before two thirds of the validity are over,
    /// because certificates that are renewed automatically are short-lived.
    #[must_use]
    pub fn warning_at(&self, ahead: Duration) -> SystemTime {
        let length = self.not_after.duration_since(self.not_before).unwrap_or_default();
        self.not_after - ahead.min(length / 3)
    }
}
