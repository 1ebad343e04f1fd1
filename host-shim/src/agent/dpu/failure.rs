//! Conversion of failed calls to failures.

use bootstrap::Chain;
use mtls::ConnectError;
use offload_proto::{Failure, Reason};
use tonic::{Code, Status};

pub(super) fn lost(why: impl std::fmt::Display) -> Failure {
    Failure::new(Reason::DpuUnreachable, format!("the DPU can't be reached: {why}"))
}

/// A connection could not be opened. Certificate errors need a person.
pub(super) fn refused(error: &ConnectError) -> Failure {
    let reason =
        if error.is_certificate() { Reason::CertificateRefused } else { Reason::DpuUnreachable };
    Failure::new(reason, Chain(error).to_string())
}

/// The failure of a call: the DPU's own, or one of the transport.
pub(super) fn failure_of(status: &Status) -> Failure {
    if let Some(failure) = Failure::from_status(status) {
        return failure;
    }
    if let Some(error) = ConnectError::find(status) {
        return refused(error);
    }
    match status.code() {
        Code::DeadlineExceeded => Failure::new(
            Reason::DeadlineExceeded,
            format!("the DPU did not answer in time: {}", status.message()),
        ),
        Code::Unavailable | Code::Unknown | Code::Cancelled | Code::Aborted => {
            lost(status.message())
        }
        Code::Unimplemented => Failure::new(
            Reason::Unsupported,
            "the DPU's service does not have this call: upgrade it",
        ),
        code => Failure::new(
            Reason::Internal,
            format!("the DPU answered {code:?}: {}", status.message()),
        ),
    }
}

/// Whether the DPU itself refused the call, so that another session would not change the result.
pub(super) fn is_final(status: &Status) -> bool {
    let decides = |failure: Failure| {
        !matches!(failure.reason, Reason::DeadlineExceeded | Reason::StaleSession)
    };
    status.code() == Code::Unimplemented || Failure::from_status(status).is_some_and(decides)
}
