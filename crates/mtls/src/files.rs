//! Reads and checks the three files.

use std::{
    fs::Metadata,
    io::{self, Read},
    os::unix::fs::MetadataExt,
    path::Path,
    sync::Arc,
    time::SystemTime,
};

use bootstrap::{is_trusted_owner, open_regular_file, sha256};
use nix::unistd::geteuid;
use rustls::{
    CertificateError, Error, InconsistentKeys, RootCertStore, server::danger::ClientCertVerifier,
    sign::CertifiedKey,
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, UnixTime, pem::PemObject};

use crate::{
    certificate::{Facts, date, first_end},
    error::{CredentialsError, Item},
    identity::{Identity, Role},
    provider::provider,
    reason::{certificate_reason, pem_reason},
    settings::TlsSettings,
    validity::Validity,
    verifier::{ExpectClients, check_server_chain},
};

/// Largest accepted file, in bytes.
const FILE_LIMIT: u64 = 1024 * 1024;

/// Permission bits that a key must not have.
const OPEN_TO_OTHERS: u32 = 0o077;
/// Permission bits that a key of root must not have. Its group may read it: Kubernetes gives secrets of root to a pod's
/// group (`fsGroup`), and Debian does the same with `ssl-cert`. Only root can add members to the group.
const OPEN_TO_OTHERS_THAN_ROOTS_GROUP: u32 = 0o037;
/// Permission bit of a file that all users may write.
const WRITABLE_FOR_OTHERS: u32 = 0o002;

/// The content of the three files.
pub(crate) struct Files {
    ca: Vec<u8>,
    certificate: Vec<u8>,
    key: Vec<u8>,
}

impl Files {
    /// Fails if a file cannot be read or other users could change it.
    pub(crate) fn read(settings: &TlsSettings) -> Result<Self, CredentialsError> {
        Ok(Self {
            ca: read(Item::Ca, &settings.ca)?,
            certificate: read(Item::Certificate, &settings.certificate)?,
            key: read(Item::Key, &settings.key)?,
        })
    }

    pub(crate) fn digest(&self) -> String {
        [&self.ca, &self.certificate, &self.key].map(|content| sha256(content)).concat()
    }
}

pub(crate) struct OwnCertificate {
    pub certified_key: CertifiedKey,
    pub facts: Facts,
    /// When the first of the certificate and its intermediates expires.
    pub first_end: SystemTime,
    pub identity: Identity,
}

pub(crate) struct Trusted {
    pub roots: Arc<RootCertStore>,
    /// The validity of the certificate that expires first.
    pub validity: Validity,
}

pub(crate) fn trusted(settings: &TlsSettings, files: &Files) -> Result<Trusted, CredentialsError> {
    let refused = |reason: &dyn ToString| unusable(Item::Ca, &settings.ca, reason);
    let chain = certificates(Item::Ca, &settings.ca, &files.ca)?;
    let mut validity = Facts::read(&chain[0]).map_err(|error| refused(&error))?.validity;
    let mut roots = RootCertStore::empty();
    for certificate in chain {
        let other = Facts::read(&certificate).map_err(|error| refused(&error))?.validity;
        validity = std::cmp::min_by_key(validity, other, |it| it.not_after);
        roots.add(certificate).map_err(|error| refused(&error))?;
    }
    Ok(Trusted { roots: Arc::new(roots), validity })
}

pub(crate) fn client_verifier(
    settings: &TlsSettings,
    roots: &Arc<RootCertStore>,
) -> Result<ExpectClients, CredentialsError> {
    ExpectClients::new(Arc::clone(roots), &settings.trust_domain)
        .map_err(|error| unusable(Item::Ca, &settings.ca, &error))
}

pub(crate) fn own_certificate(
    settings: &TlsSettings,
    files: &Files,
) -> Result<OwnCertificate, CredentialsError> {
    let path = &settings.certificate;
    let chain = certificates(Item::Certificate, path, &files.certificate)?;
    let now = SystemTime::now();
    let unusable = |error| unusable(Item::Certificate, path, &error);
    let facts = Facts::read(&chain[0]).map_err(unusable)?;
    check_dates(path, &facts, now)?;
    let first_end = first_end(&chain, now).map_err(unusable)?;
    let identity = identity(settings, &facts)?;
    let certified_key = certified_key(settings, chain, &files.key)?;
    Ok(OwnCertificate { certified_key, facts, first_end, identity })
}

/// Verifies the own chain as a peer would, so that an invalid chain is refused here, with the reason.
pub(crate) fn check_chain(
    settings: &TlsSettings,
    own: &OwnCertificate,
    roots: &RootCertStore,
    clients: &ExpectClients,
) -> Result<(), CredentialsError> {
    let (certificate, intermediates) = (&own.certified_key.cert[0], &own.certified_key.cert[1..]);
    let now = UnixTime::now();
    let passed = match own.identity.role() {
        Role::Dpu => check_server_chain(certificate, intermediates, roots, now),
        _ => clients.verify_client_cert(certificate, intermediates, now).map(drop),
    };
    passed.map_err(|error| CredentialsError::Untrusted {
        path: settings.certificate.clone(),
        subject: own.facts.subject.clone(),
        ca: settings.ca.clone(),
        reason: certificate_reason(&error).unwrap_or_else(|| error.to_string()),
        is_of_dates: is_of_dates(&error),
    })
}

const fn is_of_dates(error: &Error) -> bool {
    matches!(
        error,
        Error::InvalidCertificate(
            CertificateError::Expired
                | CertificateError::ExpiredContext { .. }
                | CertificateError::NotValidYet
                | CertificateError::NotValidYetContext { .. }
        )
    )
}

/// Parses the certificates of a PEM file, at least one.
fn certificates(
    item: Item,
    path: &Path,
    content: &[u8],
) -> Result<Vec<CertificateDer<'static>>, CredentialsError> {
    let chain: Vec<_> = CertificateDer::pem_slice_iter(content)
        .collect::<Result<_, _>>()
        .map_err(|error| unusable(item, path, &pem_reason(&error)))?;
    if chain.is_empty() {
        return Err(unusable(item, path, &"it holds no `BEGIN CERTIFICATE` section"));
    }
    Ok(chain)
}

fn check_dates(path: &Path, facts: &Facts, now: SystemTime) -> Result<(), CredentialsError> {
    let (path, subject) = (path.to_owned(), facts.subject.clone());
    let Validity { not_before, not_after } = facts.validity;
    if now > not_after {
        let not_after = date(not_after);
        return Err(CredentialsError::Expired { path, subject, not_after });
    }
    if now < not_before {
        let not_before = date(not_before);
        return Err(CredentialsError::NotYetValid { path, subject, not_before });
    }
    Ok(())
}

fn identity(settings: &TlsSettings, facts: &Facts) -> Result<Identity, CredentialsError> {
    let path = &settings.certificate;
    let identity = facts.identity().map_err(|error| unusable(Item::Certificate, path, &error))?;
    if identity.trust_domain() != settings.trust_domain {
        return Err(CredentialsError::TrustDomain {
            path: path.clone(),
            identity,
            trust_domain: settings.trust_domain.clone(),
        });
    }
    Ok(identity)
}

/// Joins certificate and key. Fails if they do not belong together.
fn certified_key(
    settings: &TlsSettings,
    chain: Vec<CertificateDer<'static>>,
    key: &[u8],
) -> Result<CertifiedKey, CredentialsError> {
    let path = &settings.key;
    let key = PrivateKeyDer::from_pem_slice(key)
        .map_err(|error| unusable(Item::Key, path, &pem_reason(&error)))?;
    CertifiedKey::from_der(chain, key, &provider()).map_err(|error| match error {
        Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => CredentialsError::KeyMismatch {
            key: path.clone(),
            certificate: settings.certificate.clone(),
        },
        other => unusable(Item::Key, path, &other),
    })
}

fn read(item: Item, path: &Path) -> Result<Vec<u8>, CredentialsError> {
    let unreadable = |source| CredentialsError::Read { item, path: path.to_owned(), source };
    // Open first and check the open file: the path may lead to another file at any time.
    let file = open_regular_file(path).map_err(unreadable)?;
    check_access(item, path, &file.metadata().map_err(unreadable)?)?;
    let mut content = Vec::new();
    file.take(FILE_LIMIT + 1).read_to_end(&mut content).map_err(unreadable)?;
    if content.len() as u64 > FILE_LIMIT {
        return Err(unreadable(io::ErrorKind::FileTooLarge.into()));
    }
    Ok(content)
}

/// Refuses a file that other users can change, or a key that they can read. `metadata` is of the open file, not of the
/// path, so that the file cannot be exchanged in between.
fn check_access(item: Item, path: &Path, metadata: &Metadata) -> Result<(), CredentialsError> {
    let path = path.to_owned();
    let (owner, mode) = (metadata.uid(), metadata.mode() & 0o7777);
    if !is_trusted_owner(owner) {
        let user = geteuid().as_raw();
        return Err(CredentialsError::Owner { item, path, owner, user });
    }
    match item {
        Item::Key if !is_closed(owner, mode) => Err(CredentialsError::KeyOpen { path, mode }),
        Item::Ca | Item::Certificate if mode & WRITABLE_FOR_OTHERS != 0 => {
            Err(CredentialsError::Writable { item, path, mode })
        }
        _ => Ok(()),
    }
}

fn is_closed(owner: u32, mode: u32) -> bool {
    let open = if owner == 0 { OPEN_TO_OTHERS_THAN_ROOTS_GROUP } else { OPEN_TO_OTHERS };
    mode & open == 0
}

fn unusable(item: Item, path: &Path, reason: &dyn ToString) -> CredentialsError {
    CredentialsError::Unusable { item, path: path.to_owned(), reason: reason.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roots_key_may_be_group_readable() {
        for mode in [0o400, 0o600] {
            assert!(is_closed(0, mode) && is_closed(1000, mode), "{mode:o}");
        }
        for mode in [0o440, 0o640] {
            assert!(is_closed(0, mode) && !is_closed(1000, mode), "{mode:o}");
        }
        for mode in [0o604, 0o620, 0o644, 0o660, 0o601, 0o610] {
            assert!(!is_closed(0, mode) && !is_closed(1000, mode), "{mode:o}");
        }
    }
}
