use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use serde::{Deserialize, Deserializer, Serialize, de};

/// The `[tls]` table of all configurations. All files are PEM.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct TlsSettings {
    /// One or more trusted CA certificates.
    pub ca: PathBuf,
    /// The own certificate, followed by its intermediates if any.
    pub certificate: PathBuf,
    /// The own certificate's private key. Group and others must not have access to the file.
    pub key: PathBuf,
    /// The trust domain of the own and all peers' identities.
    #[serde(default = "default_trust_domain")]
    pub trust_domain: String,
}

impl TlsSettings {
    /// Resolves relative paths against the configuration file's folder.
    pub fn anchor(&mut self, configuration: &Path) {
        let folder = configuration.parent().unwrap_or(Path::new(""));
        for path in [&mut self.ca, &mut self.certificate, &mut self.key] {
            *path = folder.join(&*path);
        }
    }
}

fn default_trust_domain() -> String {
    "dpu-offload.local".into()
}

/// How long before a certificate's expiry warnings start: `certificate_warning_days` of all configurations, 0 to 365.
/// Default: 14.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ExpiryWarning(u32);

impl ExpiryWarning {
    const MOST_DAYS: u32 = 365;

    /// The length of time. See [`crate::Validity::warning_at`] for short-lived certificates.
    #[must_use]
    pub fn ahead(self) -> Duration {
        Duration::from_secs(86_400) * self.0
    }
}

impl Default for ExpiryWarning {
    fn default() -> Self {
        Self(14)
    }
}

impl<'de> Deserialize<'de> for ExpiryWarning {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        match u32::deserialize(input)? {
            days @ 0..=Self::MOST_DAYS => Ok(Self(days)),
            days => Err(de::Error::custom(format!("{days} must be 0 to {} days", Self::MOST_DAYS))),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[derive(Debug, Deserialize)]
    struct File {
        #[serde(default, rename = "certificate_warning_days")]
        warning: ExpiryWarning,
    }

    #[test]
    fn warnings_default_to_two_weeks() {
        let parse = |text: &str| bootstrap::parse_config::<File>(text, Path::new("f.toml"));
        let days = |text: &str| parse(text).unwrap().warning.ahead().as_secs() / 86_400;
        assert_eq!(days(""), 14);
        assert_eq!(days("certificate_warning_days = 0"), 0);
        assert_eq!(days("certificate_warning_days = 365"), 365);
        let refused = parse("certificate_warning_days = 366").unwrap_err().to_string();
        let sentence = "`certificate_warning_days`: 366 must be 0 to 365 days";
        assert!(refused.contains(sentence), "{refused}");
    }
}
