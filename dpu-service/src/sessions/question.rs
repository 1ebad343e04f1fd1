//! A question to a host about its VFs, and its outcome.

use std::sync::Arc;

use tokio::sync::oneshot;

use crate::host::Examination;

/// The host's findings, or why they are unknown.
pub type Examined = Result<Arc<Examination>, NotExamined>;

/// Maximum number of devices in a question, so that the message fits.
pub(super) const MOST_HELD: usize = 50_000;

/// Why a host's findings are unknown.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotExamined {
    /// The host has no session.
    #[error("it is not connected")]
    NotConnected,
    /// The agent does not know the question.
    #[error("its agent is of a version that can't be asked: upgrade it")]
    TooOld,
    /// The host has not answered an earlier question.
    #[error("it still examines its VFs for an earlier call: try again")]
    Busy,
    /// The host does not read its commands and has lost its session.
    #[error("it does not read its commands: its session ended")]
    TakesNoCommands,
    #[error("its session ended before it answered")]
    SessionEnded,
    /// A repair is refused because the list of VFs to leave alone does not fit into the question.
    #[error("it has {0} attachments, and a question can name at most {MOST_HELD}")]
    TooManyHeld(usize),
    /// The host could not examine its VFs, or its answer is invalid: one sentence without a final stop.
    #[error("{0}")]
    Failed(String),
}

/// A question that the host has not answered. It stays after the caller has timed out: the host is not asked again
/// until it answers, so that repeated calls cannot overload it.
#[derive(Debug)]
pub(super) struct Question {
    /// Random, so that an answer to another session's question is not taken for this one's.
    pub(super) request_id: u64,
    pub(super) answer: oneshot::Sender<Examined>,
}
