//! A certificate authority for development and tests. Production uses certificates of SPIRE, cert-manager or step-ca.

use std::{
    fs::{self, DirBuilder, OpenOptions, Permissions},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, PublicKeyData, SanType,
};
use rustls_pki_types::{CertificateDer, pem::PemObject};
use x509_parser::prelude::{FromDer, X509Certificate};

pub use crate::validity::Validity;
use crate::{
    certificate::Facts,
    identity::{Identity, IdentityError, Role, is_trust_domain},
};

/// File name of the CA's certificate in its folder.
pub const CA_CERTIFICATE: &str = "ca.crt";
/// File name of the CA's private key in its folder.
pub const CA_KEY: &str = "ca.key";
/// Default validity of a CA of `dpuctl pki init`, in days.
pub const CA_DAYS: u64 = 3650;
/// Default validity of a certificate of `dpuctl pki issue`, in days.
pub const CERTIFICATE_DAYS: u64 = 90;

/// Why a CA could not be created or read, or a certificate could not be issued.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the sentences explain the variants and their fields")]
#[non_exhaustive]
pub enum AuthorityError {
    /// The trust domain or the name is malformed.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The file exists and is not overwritten.
    #[error("{} exists already and is not overwritten", .0.display())]
    Exists(PathBuf),
    #[error("there is no CA in {}: create one with `dpuctl pki init --dir {}`", .0.display(), .0.display())]
    Missing(PathBuf),
    #[error("cannot access {}", path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("{} is no CA certificate made by `dpuctl pki init`: {reason}", path.display())]
    NotOurs { path: PathBuf, reason: String },
    #[error(
        "{} and {} are not of one CA, so that no peer would trust its certificates: restore both from one \
         backup, or create a new CA with `dpuctl pki init --force --dir {}` and issue all certificates again",
        .0.join(CA_KEY).display(), .0.join(CA_CERTIFICATE).display(), .0.display()
    )]
    KeyMismatch(PathBuf),
    #[error("cannot create the certificate")]
    Make(#[from] rcgen::Error),
}

/// A certificate with its private key, both PEM.
#[derive(Clone)]
pub struct Issued {
    /// The certificate.
    pub certificate: String,
    /// Its private key, PKCS #8.
    pub key: String,
}

/// Omits the key, which must not get into logs.
impl std::fmt::Debug for Issued {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Issued").field("certificate", &self.certificate).finish_non_exhaustive()
    }
}

impl Issued {
    /// Writes `<stem>.crt` and `<stem>.key` (mode 0600) into `folder`, which is created if missing, and returns their
    /// paths. Existing files are replaced, each atomically.
    ///
    /// # Errors
    /// [`AuthorityError::File`] if a file cannot be written.
    pub fn save(&self, folder: &Path, stem: &str) -> Result<(PathBuf, PathBuf), AuthorityError> {
        let certificate = folder.join(format!("{stem}.crt"));
        let key = folder.join(format!("{stem}.key"));
        make_folder(folder)?;
        replace(&key, &self.key, 0o600)?;
        replace(&certificate, &self.certificate, 0o644)?;
        Ok((certificate, key))
    }
}

/// A certificate authority for one trust domain.
pub struct Authority {
    trust_domain: String,
    certificate: String,
    issuer: Issuer<'static, KeyPair>,
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Authority")
            .field("trust_domain", &self.trust_domain)
            .finish_non_exhaustive()
    }
}

impl Authority {
    /// Creates a CA.
    ///
    /// # Errors
    /// [`AuthorityError`] if `trust_domain` is malformed.
    pub fn create(trust_domain: &str, validity: Validity) -> Result<Self, AuthorityError> {
        if !is_trust_domain(trust_domain) {
            return Err(IdentityError::TrustDomain(trust_domain.into()).into());
        }
        let key = KeyPair::generate()?;
        let params = ca_params(trust_domain, validity)?;
        let certificate = params.self_signed(&key)?.pem();
        let issuer = Issuer::new(params, key);
        Ok(Self { trust_domain: trust_domain.into(), certificate, issuer })
    }

    /// Reads the CA that [`Authority::save`] wrote to `folder`.
    ///
    /// # Errors
    /// [`AuthorityError`] if it is missing or invalid.
    pub fn open(folder: &Path) -> Result<Self, AuthorityError> {
        let path = folder.join(CA_CERTIFICATE);
        if !path.exists() {
            return Err(AuthorityError::Missing(folder.into()));
        }
        let certificate = read(&path)?;
        let key = KeyPair::from_pem(&read(&folder.join(CA_KEY))?)?;
        let not_ours = |reason| AuthorityError::NotOurs { path: path.clone(), reason };
        let (trust_domain, public_key) = read_certificate(&certificate).map_err(not_ours)?;
        if public_key != key.subject_public_key_info() {
            return Err(AuthorityError::KeyMismatch(folder.into()));
        }
        let issuer = Issuer::from_ca_cert_pem(&certificate, key)?;
        Ok(Self { trust_domain, certificate, issuer })
    }

    /// Writes certificate and key (mode 0600) to `folder`, which is created if missing.
    ///
    /// # Errors
    /// [`AuthorityError::Exists`] if the folder has a CA, or [`AuthorityError::File`].
    pub fn save(&self, folder: &Path) -> Result<(), AuthorityError> {
        make_folder(folder)?;
        create(&folder.join(CA_KEY), &self.issuer.key().serialize_pem(), 0o600)?;
        create(&folder.join(CA_CERTIFICATE), &self.certificate, 0o644)
    }

    /// As [`Self::save`], but replaces an existing CA. Peers that trust the new CA refuse all certificates of the old
    /// one.
    ///
    /// # Errors
    /// [`AuthorityError::File`] if a file cannot be written.
    pub fn save_over(&self, folder: &Path) -> Result<(), AuthorityError> {
        make_folder(folder)?;
        replace(&folder.join(CA_KEY), &self.issuer.key().serialize_pem(), 0o600)?;
        replace(&folder.join(CA_CERTIFICATE), &self.certificate, 0o644)
    }

    /// The trust domain of its certificates.
    #[must_use]
    pub fn trust_domain(&self) -> &str {
        &self.trust_domain
    }

    /// Its own certificate in PEM, which peers must trust.
    #[must_use]
    pub fn certificate(&self) -> &str {
        &self.certificate
    }

    /// Creates a key and a certificate for `name` in `role`.
    ///
    /// # Errors
    /// [`AuthorityError`] if the name is malformed.
    pub fn issue(
        &self,
        role: Role,
        name: &str,
        validity: Validity,
    ) -> Result<Issued, AuthorityError> {
        let identity = Identity::new(&self.trust_domain, role, name)?;
        let key = KeyPair::generate()?;
        let certificate = leaf_params(&identity, validity)?.signed_by(&key, &self.issuer)?.pem();
        Ok(Issued { certificate, key: key.serialize_pem() })
    }
}

fn ca_params(trust_domain: &str, validity: Validity) -> Result<CertificateParams, AuthorityError> {
    let mut params = params(&format!("dpu-offload CA of {trust_domain}"), validity);
    params.subject_alt_names = vec![SanType::URI(format!("spiffe://{trust_domain}").try_into()?)];
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    Ok(params)
}

fn leaf_params(
    identity: &Identity,
    validity: Validity,
) -> Result<CertificateParams, AuthorityError> {
    let mut params = params(&format!("{} {}", identity.role(), identity.name()), validity);
    params.subject_alt_names = vec![SanType::URI(identity.to_string().try_into()?)];
    params.is_ca = IsCa::ExplicitNoCa;
    params.use_authority_key_identifier_extension = true;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![match identity.role() {
        Role::Dpu => ExtendedKeyUsagePurpose::ServerAuth,
        Role::Host | Role::Operator | Role::Viewer => ExtendedKeyUsagePurpose::ClientAuth,
    }];
    Ok(params)
}

fn params(common_name: &str, validity: Validity) -> CertificateParams {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, common_name);
    let mut params = CertificateParams::default();
    params.distinguished_name = name;
    params.not_before = validity.not_before.into();
    params.not_after = validity.not_after.into();
    params
}

/// The trust domain and the public key (SubjectPublicKeyInfo, DER) in a CA certificate of this module.
fn read_certificate(certificate: &str) -> Result<(String, Vec<u8>), String> {
    let certificate = CertificateDer::from_pem_slice(certificate.as_bytes())
        .map_err(|error| error.to_string())?;
    let facts = Facts::read(&certificate).map_err(|problem| problem.to_string())?;
    let trust_domain = match facts.uris.as_slice() {
        [uri] => uri.strip_prefix("spiffe://").filter(|domain| is_trust_domain(domain)),
        _ => None,
    };
    let trust_domain = trust_domain.ok_or("it names no trust domain")?;
    let (_, parsed) = X509Certificate::from_der(&certificate).map_err(|error| error.to_string())?;
    Ok((trust_domain.to_owned(), parsed.public_key().raw.to_vec()))
}

fn read(path: &Path) -> Result<String, AuthorityError> {
    fs::read_to_string(path).map_err(|source| AuthorityError::File { path: path.into(), source })
}

fn make_folder(folder: &Path) -> Result<(), AuthorityError> {
    let unusable = |source| AuthorityError::File { path: folder.into(), source };
    DirBuilder::new().recursive(true).mode(0o755).create(folder).map_err(unusable)
}

fn create(path: &Path, content: &str, mode: u32) -> Result<(), AuthorityError> {
    let written = OpenOptions::new().write(true).create_new(true).mode(mode).open(path).and_then(
        |mut file| {
            // `mode` of OpenOptions is subject to the umask; this is not.
            file.set_permissions(Permissions::from_mode(mode))?;
            file.write_all(content.as_bytes())
        },
    );
    written.map_err(|source| match source.kind() {
        io::ErrorKind::AlreadyExists => AuthorityError::Exists(path.into()),
        _ => AuthorityError::File { path: path.into(), source },
    })
}

/// Replaces the file atomically, so that a program that follows it never reads a part.
fn replace(path: &Path, content: &str, mode: u32) -> Result<(), AuthorityError> {
    let mut next = path.as_os_str().to_owned();
    next.push(".new");
    let next = PathBuf::from(next);
    let unusable = |source| AuthorityError::File { path: path.into(), source };
    match fs::remove_file(&next) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(unusable(error)),
        _ => create(&next, content, mode)?,
    }
    fs::rename(&next, path).map_err(unusable)
}
