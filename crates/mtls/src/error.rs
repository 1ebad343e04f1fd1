//! Errors of credentials.

use std::{fmt, io, path::PathBuf};

use crate::identity::Identity;

/// One of the three files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Item {
    /// The trusted CA certificates.
    Ca,
    /// The own certificate.
    Certificate,
    /// The own private key.
    Key,
}

impl fmt::Display for Item {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Item::Ca => "CA file",
            Item::Certificate => "certificate",
            Item::Key => "private key",
        })
    }
}

/// Why credentials are refused. Each text names the file and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CredentialsError {
    /// A file cannot be read.
    #[error("cannot read {item} {}", path.display())]
    Read {
        /// Which file.
        item: Item,
        /// Its path.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A file has invalid content.
    #[error("{item} {} can't be used: {reason}", path.display())]
    Unusable {
        /// Which file.
        item: Item,
        /// Its path.
        path: PathBuf,
        /// What is wrong with the content.
        reason: String,
    },
    /// Other users can read or change the key. The group of a key of root may read it.
    #[error(
        "private key {} has mode {mode:04o}, which lets others read or change it: \
         run `chmod 600` on it", path.display()
    )]
    KeyOpen {
        /// The key's path.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// All users can change a certificate or the CA file.
    #[error(
        "{item} {} has mode {mode:04o}, which lets other users change it: run `chmod o-w` on it",
        path.display()
    )]
    Writable {
        /// Which file.
        item: Item,
        /// Its path.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// Another user owns a file and so can change it.
    #[error(
        "{item} {} belongs to user {owner}, who can change it: run `chown {user}` on it",
        path.display()
    )]
    Owner {
        /// Which file.
        item: Item,
        /// Its path.
        path: PathBuf,
        /// Its owner.
        owner: u32,
        /// Required owner, unless root owns it.
        user: u32,
    },
    /// The key belongs to another certificate. This also happens briefly while both are replaced.
    #[error(
        "private key {} does not belong to certificate {}: replace both together",
        key.display(), certificate.display()
    )]
    KeyMismatch {
        /// The key's path.
        key: PathBuf,
        /// The certificate's path.
        certificate: PathBuf,
    },
    /// The certificate has expired.
    #[error("certificate {} ({subject}) expired on {not_after}: renew it", path.display())]
    Expired {
        /// The certificate's path.
        path: PathBuf,
        /// Its subject.
        subject: String,
        /// Its last moment, RFC 3339.
        not_after: String,
    },
    /// The certificate is not valid yet.
    #[error(
        "certificate {} ({subject}) is valid only from {not_before}: check this machine's clock",
        path.display()
    )]
    NotYetValid {
        /// The certificate's path.
        path: PathBuf,
        /// Its subject.
        subject: String,
        /// Its first moment, RFC 3339.
        not_before: String,
    },
    /// The own CA does not verify the certificate.
    #[error(
        "certificate {} ({subject}) does not pass under CA file {}: {reason}",
        path.display(), ca.display()
    )]
    Untrusted {
        /// The certificate's path.
        path: PathBuf,
        /// Its subject.
        subject: String,
        /// The CA file's path.
        ca: PathBuf,
        /// Why it is not verified.
        reason: String,
        /// Whether an intermediate certificate has expired or is not valid yet.
        is_of_dates: bool,
    },
    /// The certificate belongs to another trust domain than the configured one.
    #[error(
        "certificate {} belongs to {identity}, which is outside the configured trust domain \
         {trust_domain:?}", path.display()
    )]
    TrustDomain {
        /// The certificate's path.
        path: PathBuf,
        /// The identity in the certificate.
        identity: Identity,
        /// The configured trust domain.
        trust_domain: String,
    },
    /// This program cannot use the certificate's role.
    #[error("certificate {} belongs to {identity}; this program needs one of role {wanted}", path.display())]
    Role {
        /// The certificate's path.
        path: PathBuf,
        /// The identity in the certificate.
        identity: Identity,
        /// The accepted roles.
        wanted: String,
    },
    /// A replaced certificate has another identity.
    #[error("certificate {} belongs to {found}, but this program runs as {expected}: restart it to change its identity", path.display())]
    OtherIdentity {
        /// The certificate's path.
        path: PathBuf,
        /// The identity in the new certificate.
        found: Identity,
        /// The identity in the previous certificate.
        expected: Identity,
    },
}

impl CredentialsError {
    /// Whether only dates of certificates or the machine's clock are wrong.
    #[must_use]
    pub const fn is_of_dates(&self) -> bool {
        match self {
            Self::Expired { .. } | Self::NotYetValid { .. } => true,
            Self::Untrusted { is_of_dates, .. } => *is_of_dates,
            _ => false,
        }
    }
}
