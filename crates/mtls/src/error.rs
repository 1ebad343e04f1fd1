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
#[expect(missing_docs, reason = "the sentences explain the variants and their fields")]
#[non_exhaustive]
pub enum CredentialsError {
    #[error("cannot read {item} {}", path.display())]
    Read { item: Item, path: PathBuf, source: io::Error },
    #[error("{item} {} can't be used: {reason}", path.display())]
    Unusable { item: Item, path: PathBuf, reason: String },
    /// Other users can read or change the key. The group of a key of root may read it.
    #[error(
        "private key {} has mode {mode:04o}, which lets others read or change it: \
         run `chmod 600` on it", path.display()
    )]
    KeyOpen { path: PathBuf, mode: u32 },
    #[error(
        "{item} {} has mode {mode:04o}, which lets other users change it: run `chmod o-w` on it",
        path.display()
    )]
    Writable { item: Item, path: PathBuf, mode: u32 },
    #[error(
        "{item} {} belongs to user {owner}, who can change it: run `chown {user}` on it",
        path.display()
    )]
    Owner {
        item: Item,
        path: PathBuf,
        owner: u32,
        /// Required owner, unless root owns it.
        user: u32,
    },
    /// The key belongs to another certificate. This also happens briefly while both are replaced.
    #[error(
        "private key {} does not belong to certificate {}: replace both together",
        key.display(), certificate.display()
    )]
    KeyMismatch { key: PathBuf, certificate: PathBuf },
    #[error("certificate {} ({subject}) expired on {not_after}: renew it", path.display())]
    Expired {
        path: PathBuf,
        subject: String,
        /// Its last moment, RFC 3339.
        not_after: String,
    },
    #[error(
        "certificate {} ({subject}) is valid only from {not_before}: check this machine's clock",
        path.display()
    )]
    NotYetValid {
        path: PathBuf,
        subject: String,
        /// Its first moment, RFC 3339.
        not_before: String,
    },
    #[error(
        "certificate {} ({subject}) does not pass under CA file {}: {reason}",
        path.display(), ca.display()
    )]
    Untrusted {
        path: PathBuf,
        subject: String,
        ca: PathBuf,
        reason: String,
        /// Whether an intermediate certificate has expired or is not valid yet.
        is_of_dates: bool,
    },
    #[error(
        "certificate {} belongs to {identity}, which is outside the configured trust domain \
         {trust_domain:?}", path.display()
    )]
    TrustDomain { path: PathBuf, identity: Identity, trust_domain: String },
    #[error("certificate {} belongs to {identity}; this program needs one of role {wanted}", path.display())]
    Role { path: PathBuf, identity: Identity, wanted: String },
    #[error("certificate {} belongs to {found}, but this program runs as {expected}: restart it to change its identity", path.display())]
    OtherIdentity { path: PathBuf, found: Identity, expected: Identity },
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
