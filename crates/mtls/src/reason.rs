//! Sentences for TLS errors that tell an operator what to do.

use std::{
    io,
    time::{Duration, SystemTime},
};

use rustls::{AlertDescription, CertificateError, Error};
use rustls_pki_types::{UnixTime, pem};

use crate::certificate::date;

/// The TLS error in an I/O error, if it has one.
pub(crate) fn tls_error(error: &io::Error) -> Option<&Error> {
    error.get_ref()?.downcast_ref()
}

/// The alert of the peer, if it caused the error.
pub(crate) fn alert(error: &io::Error) -> Option<AlertDescription> {
    match tls_error(error)? {
        Error::AlertReceived(alert) => Some(*alert),
        _ => None,
    }
}

/// Why a certificate of either side is refused. `None`: the error has another cause.
pub(crate) fn certificate_reason(error: &Error) -> Option<String> {
    Some(match error {
        Error::NoCertificatesPresented => "no certificate was presented".into(),
        Error::InvalidCertificate(error) => describe(error),
        _ => return None,
    })
}

/// When the refused certificate expired, if that is the cause.
pub(crate) fn expiry(error: &Error) -> Option<SystemTime> {
    match error {
        Error::InvalidCertificate(CertificateError::ExpiredContext { not_after, .. }) => {
            Some(system_time(*not_after))
        }
        _ => None,
    }
}

fn describe(error: &CertificateError) -> String {
    match error {
        CertificateError::ExpiredContext { not_after, .. } => {
            format!("it expired on {}", date(system_time(*not_after)))
        }
        CertificateError::NotValidYetContext { not_before, .. } => {
            format!("it is valid only from {}; check both clocks", date(system_time(*not_before)))
        }
        // Errors about the certificate itself carry its dates; see `without_dates_of_others`.
        CertificateError::Expired => "one of its intermediate certificates has expired".into(),
        CertificateError::NotValidYet => {
            "one of its intermediate certificates is not valid yet; check both clocks".into()
        }
        CertificateError::UnknownIssuer => "it was issued by a CA that is not trusted here".into(),
        CertificateError::BadSignature => {
            "its signature is not by the CA trusted here, though that has the same name".into()
        }
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            "its extended key usage does not allow this use".into()
        }
        CertificateError::Other(other) => other.0.to_string(),
        other => other.to_string(),
    }
}

pub(crate) fn system_time(time: UnixTime) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(time.as_secs())
}

/// Why a file is not valid PEM.
pub(crate) fn pem_reason(error: &pem::Error) -> String {
    let text = String::from_utf8_lossy;
    match error {
        pem::Error::MissingSectionEnd { end_marker } => {
            format!(
                "it ends before its line \"-----END {}-----\": write the whole file again",
                text(end_marker).trim()
            )
        }
        pem::Error::IllegalSectionStart { line } => {
            format!("{:?} begins no PEM section", text(line).trim())
        }
        pem::Error::Base64Decode(_) => "between its lines BEGIN and END is no base64".into(),
        pem::Error::NoItemsFound => "it holds no `BEGIN PRIVATE KEY` section".into(),
        other => other.to_string(),
    }
}

/// The most likely meaning of the peer's alert.
pub(crate) fn explain_alert(alert: AlertDescription) -> &'static str {
    match alert {
        AlertDescription::UnknownCA | AlertDescription::DecryptError => {
            "it does not trust the CA that issued it"
        }
        AlertDescription::CertificateExpired => "it finds it expired or not yet valid",
        AlertDescription::CertificateRequired => "it was sent none",
        AlertDescription::CertificateUnknown | AlertDescription::AccessDenied => {
            "it does not serve that identity; its log says why"
        }
        AlertDescription::UnsupportedCertificate => "the certificate is made for another use",
        AlertDescription::ProtocolVersion => "it does not speak TLS 1.3",
        _ => "its log says why",
    }
}

/// Why the peer refuses the own certificate, according to its alert. `None`: the alert has another cause.
pub(crate) fn refusal_of_own(alert: AlertDescription) -> Option<&'static str> {
    Some(match alert {
        AlertDescription::UnknownCA | AlertDescription::DecryptError => {
            "it does not trust the CA that issued it"
        }
        AlertDescription::CertificateExpired => {
            "it finds it expired or not yet valid; check both clocks"
        }
        AlertDescription::CertificateUnknown
        | AlertDescription::AccessDenied
        | AlertDescription::BadCertificate => {
            "it expects another name, or can't use it; its log says which"
        }
        _ => return None,
    })
}
