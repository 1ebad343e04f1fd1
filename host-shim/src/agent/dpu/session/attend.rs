//! The work during a session: heartbeats out, messages in.

use std::time::{Duration, Instant};

use offload_proto::{
    Failure,
    v1::{DpuMessage, Heartbeat, dpu_message::Message, host_message},
};
use tokio::time::{MissedTickBehavior, interval, sleep_until};
use tonic::{Code, Status, Streaming};

use crate::agent::dpu::{
    established::{Established, SILENCE},
    failure::{failure_of, lost},
};

/// The backoff after the first failed attempt.
pub(super) const FIRST_BACKOFF: Duration = Duration::from_millis(100);
/// The backoff after another agent's session ended ours: two agents with one identity must not end each other's
/// sessions all the time.
const RIVAL_BACKOFF: Duration = Duration::from_secs(10);
/// The shortest wait for a heartbeat's answer; otherwise it is the heartbeat interval.
const SHORTEST_SILENCE: Duration = Duration::from_secs(1);

/// What the DPU sends.
#[derive(Debug)]
pub(in crate::agent) enum FromDpu {
    /// The DPU accepted this host: a session has begun.
    SessionBegan,
    Message(Box<Message>),
}

/// The end of a session.
pub(in crate::agent) struct Loss {
    pub failure: Failure,
    /// When the DPU last sent something.
    pub since: Instant,
    pub backoff: Duration,
}

impl From<Failure> for Loss {
    fn from(failure: Failure) -> Self {
        Self { failure, since: Instant::now(), backoff: FIRST_BACKOFF }
    }
}

impl From<Status> for Loss {
    /// Only the end by a newer session has the status `Aborted`. This agent did not open that session.
    fn from(status: Status) -> Self {
        let failure = failure_of(&status);
        if status.code() != Code::Aborted {
            return failure.into();
        }
        let message = format!("{failure}; does another agent use this host's certificate?");
        let failure = Failure::new(failure.reason, message);
        Self { backoff: RIVAL_BACKOFF, ..failure.into() }
    }
}

/// Sends heartbeats and receives messages until the session ends.
pub(in crate::agent) async fn attend(
    session: &Established,
    inbox: &mut Streaming<DpuMessage>,
    period: Duration,
    on_message: &impl Fn(FromDpu),
) -> Loss {
    let mut ticks = interval(period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let limit = period.max(SHORTEST_SILENCE);
    let mut sequence = 0;
    let mut last_received = Instant::now();
    let mut unanswered_since = None;
    loop {
        tokio::select! {
            // Received messages are handled before timeouts: this agent may have been suspended.
            biased;
            received = inbox.message() => match received {
                Ok(Some(DpuMessage { message })) => {
                    last_received = Instant::now();
                    unanswered_since = None;
                    match message {
                        Some(Message::VfOffers(offers)) => session.note_offers(offers),
                        Some(Message::Unrecorded(found)) => session.note_unrecorded(found),
                        Some(message) => {
                            if let Message::NetworkChanged(changed) = &message {
                                session.note_network(changed);
                            }
                            on_message(FromDpu::Message(Box::new(message)));
                        }
                        // A message of a newer protocol is ignored.
                        None => {}
                    }
                }
                Ok(None) => return lost("it closed the session").into(),
                Err(status) => return status.into(),
            },
            () = silence_exceeds(unanswered_since, limit) => {
                // Otherwise calls in progress would wait until their own deadlines.
                session.give_up();
                return Loss { since: last_received, ..lost(SILENCE).into() };
            }
            () = session.overflowed() => return lost("it takes no messages").into(),
            _ = ticks.tick() => {
                sequence += 1;
                // The oldest unanswered heartbeat counts; later ones must not extend the wait.
                unanswered_since.get_or_insert_with(Instant::now);
                session.send(host_message::Message::Heartbeat(Heartbeat { sequence }));
            }
        }
    }
}

async fn silence_exceeds(unanswered_since: Option<Instant>, limit: Duration) {
    match unanswered_since {
        Some(since) => sleep_until((since + limit).into()).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn end_by_rival_agent_has_long_backoff() {
        assert_eq!(Loss::from(Status::aborted("newer")).backoff, RIVAL_BACKOFF);
        assert_eq!(Loss::from(Status::unavailable("stopping")).backoff, FIRST_BACKOFF);
    }
}
