//! Parses certificates.

use std::time::{Duration, SystemTime};

use rustls_pki_types::CertificateDer;
use time::{OffsetDateTime, format_description::well_known::Rfc3339};
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

use crate::{
    identity::{Identity, IdentityError},
    validity::Validity,
};

/// Certificates are valid until the end of their last second.
const GRAIN: Duration = Duration::from_secs(1);

/// Why a certificate has no identity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CertificateProblem {
    #[error("no certificate was presented")]
    Missing,
    #[error("it is no X.509 certificate")]
    Unreadable,
    #[error("it names no SPIFFE identity: it needs one URI in its subject alternative name")]
    NoIdentity,
    #[error("it names {0} URIs in its subject alternative name, where one is allowed")]
    SeveralIdentities(usize),
    #[error(transparent)]
    Identity(#[from] IdentityError),
}

/// Parsed fields of a certificate.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    pub subject: String,
    pub validity: Validity,
    pub uris: Vec<String>,
}

impl Facts {
    pub(crate) fn read(certificate: &CertificateDer<'_>) -> Result<Self, CertificateProblem> {
        let parsed = parse(certificate)?;
        let names = parsed
            .subject_alternative_name()
            .map_err(|_| CertificateProblem::Unreadable)?
            .map_or(&[][..], |extension| &extension.value.general_names);
        let uris: Vec<_> = names.iter().filter_map(uri).collect();
        let subject = parsed.subject().to_string();
        // SPIFFE issuers leave the subject empty.
        let subject = if subject.is_empty() { uris.join(", ") } else { subject };
        Ok(Self { subject, validity: validity(&parsed), uris })
    }

    /// The certificate's identity. SPIFFE allows exactly one URI.
    pub(crate) fn identity(&self) -> Result<Identity, CertificateProblem> {
        match self.uris.as_slice() {
            [] => Err(CertificateProblem::NoIdentity),
            [uri] => Ok(uri.parse()?),
            several => Err(CertificateProblem::SeveralIdentities(several.len())),
        }
    }
}

/// When the first certificate of a chain expires: the holder's own, or an intermediate.
///
/// A peer may send certificates that the path to the CA does not need. Those that had expired at `moment`, before the
/// path was verified, cannot be part of it and are ignored.
pub(crate) fn first_end(
    chain: &[CertificateDer<'_>],
    moment: SystemTime,
) -> Result<SystemTime, CertificateProblem> {
    let Some((own, intermediates)) = chain.split_first() else {
        return Err(CertificateProblem::Unreadable);
    };
    let mut first = end(own)?;
    for intermediate in intermediates {
        let end = end(intermediate)?;
        if end + GRAIN > moment {
            first = first.min(end);
        }
    }
    Ok(first)
}

fn end(certificate: &CertificateDer<'_>) -> Result<SystemTime, CertificateProblem> {
    Ok(validity(&parse(certificate)?).not_after)
}

fn parse<'a>(
    certificate: &'a CertificateDer<'_>,
) -> Result<X509Certificate<'a>, CertificateProblem> {
    let parsed = X509Certificate::from_der(certificate);
    parsed.map(|(_, parsed)| parsed).map_err(|_| CertificateProblem::Unreadable)
}

fn validity(certificate: &X509Certificate<'_>) -> Validity {
    let validity = certificate.validity();
    Validity {
        not_before: system_time(validity.not_before.timestamp()),
        not_after: system_time(validity.not_after.timestamp()),
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

/// Formats a time as RFC 3339 in UTC, such as `2026-05-01T12:00:00Z`.
pub(crate) fn date(time: SystemTime) -> String {
    OffsetDateTime::from(time).format(&Rfc3339).unwrap_or_else(|_| "an unknown date".into())
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DistinguishedName, KeyPair, SanType};

    use super::*;

    fn ending_at(end: SystemTime) -> CertificateDer<'static> {
        let mut params = CertificateParams::default();
        params.not_after = end.into();
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().into()
    }

    #[test]
    fn certificates_without_subject_are_named() {
        const URI: &str = "spiffe://test.local/host/node-1";
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.subject_alt_names = vec![SanType::URI(URI.try_into().unwrap())];
        let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        assert_eq!(Facts::read(&certificate.into()).unwrap().subject, URI);
    }

    #[test]
    fn chain_end_ignores_expired_certificates() {
        let after = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let moment = after(1000) + GRAIN / 2;
        let first = |ends: &[u64]| {
            let chain: Vec<_> = ends.iter().map(|end| ending_at(after(*end))).collect();
            first_end(&chain, moment)
        };
        assert_eq!(first(&[3000]), Ok(after(3000)));
        assert_eq!(first(&[3000, 4000, 2000]), Ok(after(2000)));
        assert_eq!(first(&[1000, 2000]), Ok(after(1000)));
        // An expired certificate was not part of the verified path, except in its last second.
        assert_eq!(first(&[3000, 4000, 999]), Ok(after(3000)));
        assert_eq!(first(&[3000, 1000]), Ok(after(1000)));
        assert_eq!(first(&[]), Err(CertificateProblem::Unreadable));
    }
}
