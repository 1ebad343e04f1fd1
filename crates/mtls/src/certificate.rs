//! What is read out of a certificate besides its signature.

use std::time::{Duration, SystemTime};

use rustls_pki_types::CertificateDer;
use time::{OffsetDateTime, format_description::well_known::Rfc3339};
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

use crate::{
    identity::{Identity, IdentityError},
    validity::Validity,
};

/// Why a certificate says no identity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CertificateProblem {
    #[error("it is no X.509 certificate")]
    Unreadable,
    #[error("it names no SPIFFE identity: it needs one URI in its subject alternative name")]
    NoIdentity,
    #[error("it names {0} URIs in its subject alternative name, where one is allowed")]
    SeveralIdentities(usize),
    #[error(transparent)]
    Identity(#[from] IdentityError),
}

/// What is of interest in a certificate.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    pub subject: String,
    pub validity: Validity,
    pub uris: Vec<String>,
}

impl Facts {
    pub(crate) fn read(certificate: &CertificateDer<'_>) -> Result<Self, CertificateProblem> {
        let unreadable = |_| CertificateProblem::Unreadable;
        let (_, parsed) = X509Certificate::from_der(certificate).map_err(unreadable)?;
        let names = parsed
            .subject_alternative_name()
            .map_err(|_| CertificateProblem::Unreadable)?
            .map_or(&[][..], |extension| &extension.value.general_names);
        Ok(Self {
            subject: parsed.subject().to_string(),
            validity: Validity {
                not_before: system_time(parsed.validity().not_before.timestamp()),
                not_after: system_time(parsed.validity().not_after.timestamp()),
            },
            uris: names.iter().filter_map(uri).collect(),
        })
    }

    /// The one identity that the certificate names. SPIFFE allows exactly one URI.
    pub(crate) fn identity(&self) -> Result<Identity, CertificateProblem> {
        match self.uris.as_slice() {
            [] => Err(CertificateProblem::NoIdentity),
            [uri] => Ok(uri.parse()?),
            several => Err(CertificateProblem::SeveralIdentities(several.len())),
        }
    }
}

fn uri(name: &GeneralName<'_>) -> Option<String> {
    match name {
        GeneralName::URI(uri) => Some((*uri).to_owned()),
        _ => None,
    }
}

fn system_time(seconds: i64) -> SystemTime {
    let distance = Duration::from_secs(seconds.unsigned_abs());
    if seconds < 0 { SystemTime::UNIX_EPOCH - distance } else { SystemTime::UNIX_EPOCH + distance }
}

/// RFC 3339, UTC, such as `2026-05-01T12:00:00Z`.
pub(crate) fn date(time: SystemTime) -> String {
    OffsetDateTime::from(time).format(&Rfc3339).unwrap_or_else(|_| "an unknown date".into())
}
