//! Certificates from the library behind `dpuctl pki`. A test of `dpuctl` shows that its own work too.

use std::{
    path::PathBuf,
    time::{Duration, SystemTime},
};

use mtls::{
    LiveCredentials, Role, TlsSettings,
    authority::{Authority, CA_DAYS, CERTIFICATE_DAYS, Validity},
};

/// Trust domain of all certificates.
pub(crate) const TRUST_DOMAIN: &str = "dpu-offload.local";

/// Validity of certificates: that of `dpuctl pki`.
const LIFE: Duration = days(CERTIFICATE_DAYS);
const LIFE_OF_CA: Duration = days(CA_DAYS);

const fn days(count: u64) -> Duration {
    Duration::from_secs(count * 24 * 60 * 60)
}

/// A CA and its certificates, in a folder.
#[derive(Debug)]
pub struct Pki {
    folder: PathBuf,
}

impl Pki {
    /// Creates a CA in `folder`, and certificates for host node-1, DPU dpu-1, operator admin and viewer guest.
    ///
    /// # Panics
    /// If they cannot be written.
    #[must_use]
    pub fn make(folder: PathBuf) -> Self {
        let pki = Self { folder };
        let authority = Authority::create(TRUST_DOMAIN, Validity::from_now(LIFE_OF_CA)).unwrap();
        authority.save(&pki.folder).unwrap();
        for (role, name) in
            [("host", "node-1"), ("dpu", "dpu-1"), ("operator", "admin"), ("viewer", "guest")]
        {
            pki.issue(role, name);
        }
        pki
    }

    /// Issues the certificate `<role>-<name>` unless it exists.
    pub(crate) fn issue_once(&self, role: &str, name: &str) {
        if !self.certificate(role, name).exists() {
            self.issue(role, name);
        }
    }

    /// Issues another certificate: `<role>-<name>`.
    ///
    /// # Panics
    /// If the role does not exist, or the CA cannot be read.
    pub fn issue(&self, role: &str, name: &str) {
        self.issue_for(LIFE, role.parse().unwrap(), name);
    }

    /// Replaces `<role>-<name>` by a certificate that expired an hour ago.
    ///
    /// # Panics
    /// If the CA cannot be read.
    pub fn expire(&self, role: Role, name: &str) {
        let hours = |count: u64| SystemTime::now() - Duration::from_secs(3600 * count);
        self.replace(role, name, Validity { not_before: hours(2), not_after: hours(1) });
    }

    /// Replaces `<role>-<name>` by a certificate that becomes valid in an hour, as if this machine's clock were an hour
    /// slow.
    ///
    /// # Panics
    /// If the CA cannot be read.
    pub fn postdate(&self, role: Role, name: &str) {
        let hours = |count: u64| SystemTime::now() + Duration::from_secs(3600 * count);
        self.replace(role, name, Validity { not_before: hours(1), not_after: hours(2) });
    }

    /// Replaces `<role>-<name>` by a certificate that expires in half an hour.
    ///
    /// # Panics
    /// If the CA cannot be read.
    pub fn issue_expiring_soon(&self, role: Role, name: &str) {
        let (now, hour) = (SystemTime::now(), Duration::from_secs(3600));
        self.replace(
            role,
            name,
            Validity { not_before: now - 3 * hour, not_after: now + hour / 2 },
        );
    }

    /// Replaces `<role>-<name>` by a certificate that is valid for `life`.
    ///
    /// # Panics
    /// If the CA cannot be read.
    pub fn issue_for(&self, life: Duration, role: Role, name: &str) {
        self.replace(role, name, Validity::from_now(life));
    }

    fn replace(&self, role: Role, name: &str, validity: Validity) {
        let authority = Authority::open(&self.folder).unwrap();
        let issued = authority.issue(role, name, validity).unwrap();
        issued.save(&self.folder, &format!("{role}-{name}")).unwrap();
    }

    /// The credentials `<role>-<name>`, for calls without `dpuctl`.
    ///
    /// # Panics
    /// If they cannot be read.
    #[must_use]
    pub fn credentials(&self, role: Role, name: &str) -> LiveCredentials {
        let settings = TlsSettings {
            ca: self.ca(),
            certificate: self.certificate(role.as_str(), name),
            key: self.key(role.as_str(), name),
            trust_domain: TRUST_DOMAIN.into(),
        };
        LiveCredentials::load(&settings, &[role]).unwrap()
    }

    /// The CA's certificate.
    #[must_use]
    pub fn ca(&self) -> PathBuf {
        self.folder.join("ca.crt")
    }

    /// The certificate `<role>-<name>`.
    #[must_use]
    pub fn certificate(&self, role: &str, name: &str) -> PathBuf {
        self.folder.join(format!("{role}-{name}.crt"))
    }

    /// The key of `<role>-<name>`.
    #[must_use]
    pub fn key(&self, role: &str, name: &str) -> PathBuf {
        self.folder.join(format!("{role}-{name}.key"))
    }

    /// The `[tls]` section of a configuration file that uses `<role>-<name>`.
    #[must_use]
    pub fn section(&self, role: &str, name: &str) -> String {
        format!(
            "[tls]\nca = {:?}\ncertificate = {:?}\nkey = {:?}\ntrust_domain = {TRUST_DOMAIN:?}\n",
            self.ca(),
            self.certificate(role, name),
            self.key(role, name)
        )
    }
}
