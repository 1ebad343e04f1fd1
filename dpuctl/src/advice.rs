//! Which stable code an error has, and what an operator does about it.

use mtls::{ConnectError, CredentialsError};
use offload_proto::Reason;
use tonic::Code;

use crate::error::{CallError, Kind};

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
            Self::Credentials(CredentialsError::Read { .. }) => {
                Some("correct the path under [tls] in the configuration, or make the file there")
            }
            Self::Connect(ConnectError::ServerRefused { .. }) => {
                Some("check which DPU `dpu` names, and that `tls.ca` is the CA of its certificate")
            }
            Self::Connect(ConnectError::OwnRefused { .. }) => {
                Some("use a certificate of the CA that the DPU trusts")
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

/// The reason's advice. Where that speaks to hosts, ours.
const fn for_operators(reason: Reason) -> &'static str {
    match reason {
        Reason::VfUnknown => "list the VFs with `dpuctl get vfs`",
        Reason::DpuUnreachable => {
            "check that dpu-service runs, and the `endpoint` in the configuration or --endpoint"
        }
        Reason::DeadlineExceeded => "try again, or give it longer with --timeout",
        _ => reason.advice(),
    }
}
