//! The stable code of an error, and what an operator does about it.

use std::io::{
    self,
    ErrorKind::{NotFound, PermissionDenied},
};

use mtls::{ConnectError, CredentialsError, authority::AuthorityError};
use offload_proto::Reason;
use tonic::Code;

use crate::error::{CallError, EditError, Kind};

const RENEW: &str = "renew the certificate named, or trust its CA";

impl CallError {
    /// The stable code. `None` for errors of the command line or a file: those do not come from the DPU or the
    /// connection.
    pub(crate) fn reason(&self) -> Option<Reason> {
        match self {
            Self::Refused(failure) => Some(failure.reason),
            Self::Unknown { kind, .. } => kind.reason(),
            Self::NoSuchCall => Some(Reason::Unsupported),
            Self::Credentials(_) => Some(Reason::CertificateRefused),
            Self::Connect(error) if error.is_certificate() => Some(Reason::CertificateRefused),
            Self::Connect(_) => Some(Reason::DpuUnreachable),
            Self::Status(status) if status.code() == Code::Unavailable => {
                Some(Reason::DpuUnreachable)
            }
            Self::TooSlow(_) => Some(Reason::DeadlineExceeded),
            _ => None,
        }
    }

    /// What to do about the error: one clause without a final stop.
    pub(crate) fn advice(&self) -> Option<&'static str> {
        match self {
            Self::Unknown { kind: Kind::Pool, .. } => {
                Some("list the pools with `dpuctl get pools`")
            }
            Self::Unknown { kind: Kind::Host, .. } => {
                Some("list the hosts with `dpuctl get hosts`")
            }
            Self::NoSuchCall => Some("upgrade the service"),
            Self::Unexplained { .. } => Some("list the codes with `dpuctl explain`"),
            Self::Credentials(error) => for_credentials(error),
            Self::File { source, .. } => Some(for_file(source)),
            Self::Connect(ConnectError::ServerRefused { .. }) => {
                Some("check which DPU `dpu` names, and that `tls.ca` is the CA of its certificate")
            }
            Self::Connect(ConnectError::OwnRefused { .. }) => {
                Some("use a certificate of the CA that the DPU trusts")
            }
            Self::Authority(AuthorityError::Exists(_)) => {
                Some("choose another folder, or replace it with --force")
            }
            Self::LinesOfCounters => {
                Some("leave it out, or name the attachments' --network or --host")
            }
            Self::Edit(error) => Some(for_edit(error)),
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
            Self::Host | Self::Pool => None,
        }
    }
}

/// What to do about the program's own certificate files. `None`: the message is enough.
fn for_credentials(error: &CredentialsError) -> Option<&'static str> {
    match error {
        CredentialsError::Read { source, .. } if source.kind() == PermissionDenied => Some(
            "run dpuctl as the file's owner, or let this user read it and the folders above it",
        ),
        CredentialsError::Read { .. } => {
            Some("correct the path under [tls] in the configuration, or make the file there")
        }
        CredentialsError::Role { .. } => {
            Some("name an operator's or a viewer's in `tls.certificate`")
        }
        CredentialsError::KeyMismatch { .. } => {
            Some("name a certificate and its own key in `tls.certificate` and `tls.key`")
        }
        CredentialsError::Untrusted { .. } | CredentialsError::Unusable { .. } => Some(RENEW),
        _ => None,
    }
}

/// What to do about a file with networks that can't be read.
fn for_file(error: &io::Error) -> &'static str {
    match error.kind() {
        NotFound => "correct the path after -f, or name - for standard input",
        PermissionDenied => "let this user read it, or pass it on standard input with -f -",
        _ => "name a text file with networks after -f, or - for standard input",
    }
}

/// What to do about a network that can't be edited.
const fn for_edit(error: &EditError) -> &'static str {
    match error {
        EditError::Fixed(_) => "change that file, and reload the service",
        EditError::File(_) => "free space in the folder for temporary files, or set TMPDIR",
        EditError::Saved(_) => "save a text file under the name that the editor is given",
        EditError::Editor { .. } => "name another editor in VISUAL or EDITOR",
        EditError::Renamed { .. } => {
            "leave `name` as it is: `dpuctl rename network` renames, and `dpuctl apply` creates"
        }
    }
}

/// The reason's advice, replaced where it is written for hosts.
const fn for_operators(reason: Reason) -> &'static str {
    match reason {
        Reason::VfUnknown => "list the VFs with `dpuctl get vfs`",
        Reason::NetworkConflict => {
            "merge the difference above into the network as `dpuctl get networks NAME -o yaml` prints it, or replace \
             it with `dpuctl apply --force-conflicts`"
        }
        Reason::DpuUnreachable => {
            "check that dpu-service runs and has a valid certificate, which its log says, and the `endpoint` in the \
             configuration or --endpoint"
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
    fn advice_does_not_repeat_the_message() {
        let (path, subject) = ("a.crt", String::new());
        let (date, mode) = ("2026-03-01T12:00:00Z".to_owned(), 0o644);
        for error in [
            CredentialsError::KeyOpen { path: path.into(), mode },
            CredentialsError::Expired { path: path.into(), subject, not_after: date },
        ] {
            let error = CallError::from(error);
            assert_eq!(error.advice(), None, "{error}");
        }
    }

    #[test]
    fn key_advice_is_not_certificate_renewal() {
        let (key, certificate) = ("a.key", "a.crt");
        let source = PermissionDenied.into();
        let closed = CredentialsError::Read { item: mtls::Item::Key, path: key.into(), source };
        let another =
            CredentialsError::KeyMismatch { key: key.into(), certificate: certificate.into() };
        for (error, expected) in [(closed, "run dpuctl as"), (another, "name a certificate")] {
            let advice = CallError::from(error).advice().unwrap();
            assert!(advice.starts_with(expected), "{advice}");
        }
    }

    #[test]
    fn unreadable_file_gets_advice() {
        for (kind, expected) in [
            (NotFound, "correct the path"),
            (PermissionDenied, "let this user"),
            (io::ErrorKind::InvalidData, "name a text"),
        ] {
            let error = CallError::File { path: "blue.yaml".into(), source: kind.into() };
            assert!(error.advice().unwrap().starts_with(expected), "{kind:?}");
        }
    }
}
