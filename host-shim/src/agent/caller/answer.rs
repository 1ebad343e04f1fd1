//! The answers to callers.

use offload_proto::{Failure, Reason, v1};

use crate::{cni::error::CniError, protocol::Reply};

/// The answer to a call.
#[derive(Debug)]
pub(in crate::agent) enum Answer {
    /// The pod has its interfaces; the first one is the request's own.
    Attached(Vec<v1::Attachment>),
    /// Success without a result.
    Done,
    /// Success with a warning for the caller.
    Warned(String),
    /// The call was refused or failed.
    Refused {
        failure: Failure,
        /// The CNI error code.
        code: u32,
    },
}

impl Answer {
    /// The reason of a refusal or failure. `None`: success.
    pub(in crate::agent) fn refusal(&self) -> Option<Reason> {
        match self {
            Self::Attached(_) | Self::Done | Self::Warned(_) => None,
            Self::Refused { failure, .. } => Some(failure.reason),
        }
    }
}

impl From<Failure> for Answer {
    fn from(failure: Failure) -> Self {
        Self::Refused { code: failure.reason.cni_code(), failure }
    }
}

impl From<Answer> for Reply {
    fn from(answer: Answer) -> Self {
        match answer {
            Answer::Attached(attachments) => {
                let mut attachments = attachments.into_iter();
                let attachment = Box::new(attachments.next().unwrap_or_default());
                Self::Attached { attachment, further: attachments.collect() }
            }
            Answer::Done => Self::Done { warning: None },
            Answer::Warned(warning) => Self::Done { warning: Some(warning) },
            Answer::Refused { failure, code } => {
                let CniError { message, details, .. } = failure.into();
                Self::Failed { code, message, details }
            }
        }
    }
}
