//! What callers are told.

use offload_proto::{Failure, Reason, v1};

use crate::{cni::error::CniError, protocol::Reply};

/// What a caller is told.
#[derive(Debug)]
pub(in crate::agent) enum Answer {
    /// The pod has its interfaces, of which the first one leads.
    Attached(Vec<v1::Attachment>),
    /// What was asked for is done.
    Done,
    /// It is done, and there is something that the caller should know.
    Warned(String),
    /// It is refused, or has failed.
    Refused {
        /// Why.
        failure: Failure,
        /// What CNI calls it.
        code: u32,
    },
}

impl Answer {
    /// Why it is refused. `None`: what was asked for is done.
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
