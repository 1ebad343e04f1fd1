//! Which stable code an error has, and what an operator does about it.

use mtls::{ConnectError, CredentialsError, authority::AuthorityError};
use offload_proto::Reason;
use tonic::Code;

use crate::error::{CallError, Kind};

const RENEW: &str = "renew the certificate named, or trust its CA";

impl CallError {
    /// The stable code. `None`: the command line or a file is to blame, not the DPU or the way there.
    pub(crate) fn reason(&self) -> Option<Reason> {
        match self {
            Self::Refused(failure) => Some(failure.reason),
            Self::Unknown { kind, .. } => kind.reason(),
            Self::Credentials(_) => Some(Reason::CertificateRefused),
            Self::Connect(error) if error.is_certificate() => Some(Reason::CertificateRefused),
            Self::Connect(_) | Self::StreamEnded(_) => Some(Reason::DpuUnreachable),
            Self::Status(status) if status.code() == Code::Unavailable => {
                Some(Reason::DpuUnreachable)
            }
            Self::TooSlow(_) => Some(Reason::DeadlineExceeded),
            _ => None,
        }
    }

    /// What to do about it, one clause without a final stop.
    pub(crate) fn advice(&self) -> Option<&'static str> {
        match self {
            Self::Unknown { kind: Kind::Pool, .. } => {
                Some("list the pools with `dpuctl get pools`")
            }
            Self::Credentials(error) => Some(for_credentials(error)),
            Self::Connect(ConnectError::ServerRefused { .. }) => {
                Some("check which DPU `dpu` names, and that `tls.ca` is the CA of its certificate")
            }
            Self::Connect(ConnectError::OwnRefused { .. }) => {
                Some("use a certificate of the CA that the DPU trusts")
            }
            Self::Authority(AuthorityError::Exists(_)) => {
                Some("take another folder, or replace it with --force")
            }
            Self::StreamEnded(_) => Some("watch again once `dpuctl status` answers"),
            _ => self.reason().map(for_operators),
        }
    }
}

impl Kind {
    const fn reason(self) -> Option<Reason> {
        match self {
            Self::Attachment => Some(Reason::AttachmentUnknown),
            Self::Network => Some(Reason::NetworkUnknown),
            Self::Vf => Some(Reason::VfUnknown),
            Self::Pool => None,
        }
    }
}

/// What to do about the own files, which the configuration names.
const fn for_credentials(error: &CredentialsError) -> &'static str {
    match error {
        CredentialsError::Read { .. } => {
            "correct the path under [tls] in the configuration, or make the file there"
        }
        CredentialsError::Role { .. } => "name an operator's or a viewer's in `tls.certificate`",
        CredentialsError::KeyOpen { .. } => "close the key's file to group and others",
        CredentialsError::KeyMismatch { .. } => {
            "name a certificate and its own key in `tls.certificate` and `tls.key`"
        }
        CredentialsError::NotYetValid { .. } => "set this machine's clock, or wait",
        _ => RENEW,
    }
}

/// The reason's advice. Where that speaks to hosts, ours.
const fn for_operators(reason: Reason) -> &'static str {
    match reason {
        Reason::VfUnknown => "list the VFs with `dpuctl get vfs`",
        Reason::DpuUnreachable => {
            "check that dpu-service runs, and the `endpoint` in the configuration or --endpoint"
        }
        Reason::CertificateRefused => RENEW,
        Reason::DeadlineExceeded => "try again, or give it longer with --timeout",
        _ => reason.advice(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_on_a_key_is_not_to_renew_its_certificate() {
        let (key, certificate) = ("a.key", "a.crt");
        let open = CredentialsError::KeyOpen { path: key.into(), mode: 0o644 };
        let another =
            CredentialsError::KeyMismatch { key: key.into(), certificate: certificate.into() };
        for (error, expected) in
            [(open, "close the key's file"), (another, "name a certificate and")]
        {
            let advice = CallError::from(error).advice().unwrap();
            assert!(advice.starts_with(expected), "{advice}");
        }
    }
}
