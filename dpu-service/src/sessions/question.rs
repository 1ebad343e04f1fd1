//! What a host is asked of its VFs, and what comes of it.

use std::sync::Arc;

use tokio::sync::oneshot;

use crate::host::Examination;

/// What a host finds, or why that is not known.
pub type Examined = Result<Arc<Examination>, NotExamined>;

/// Most devices in a question, such that a message takes them.
pub(super) const MOST_HELD: usize = 50_000;

/// Why it is not known what a host finds.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotExamined {
    /// It has no session.
    #[error("it is not connected")]
    NotConnected,
    /// Its agent does not know the question.
    #[error("its agent is of a version that can't be asked: upgrade it")]
    TooOld,
    /// It was asked before, and has not answered.
    #[error("it still examines its VFs for an earlier call: try again")]
    Busy,
    /// It takes no commands, and has lost its session by that.
    #[error("it takes no commands: its session ended")]
    TakesNoCommands,
    /// Its session ended meanwhile.
    #[error("its session ended before it answered")]
    SessionEnded,
    /// It must not be asked to mend, for it can't be told what to leave alone.
    #[error("it has {0} attachments, and {MOST_HELD} are the most that can be told to it")]
    TooManyHeld(usize),
    /// It could not look, or its answer can't be read: one sentence without a final stop.
    #[error("{0}")]
    Failed(String),
}

/// What a host was asked and has not answered. Whoever asked may have given up since: the host is not
/// asked again all the same, so that nobody can have it look more often than it is able to.
#[derive(Debug)]
pub(super) struct Question {
    /// Unique over all time, so that what was asked in another session is not answered here.
    pub(super) request_id: u64,
    pub(super) answer: oneshot::Sender<Examined>,
}
