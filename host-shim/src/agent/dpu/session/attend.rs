//! What is done while a session lasts.

use std::time::{Duration, Instant};

use offload_proto::{
    Failure,
    v1::{DpuMessage, Heartbeat, dpu_message::Message, host_message},
};
use tokio::time::{MissedTickBehavior, interval, sleep_until};
use tonic::{Code, Status, Streaming};

use super::{FIRST_PAUSE, FromDpu};
use crate::agent::dpu::{
    established::{Established, SILENCE},
    failure::{failure_of, lost},
};

/// The pause of an agent whose session was ended by another's: two agents of one identity are not
/// to spend their time ending each other's sessions.
const RIVAL_PAUSE: Duration = Duration::from_secs(10);
/// A heartbeat is waited for as long as it takes until the next, and this long at least.
const SHORTEST_PATIENCE: Duration = Duration::from_secs(1);

/// How a session was lost.
pub(in crate::agent) struct Loss {
    pub failure: Failure,
    /// When the DPU last gave a sign of life.
    pub since: Instant,
    /// How long to wait before the next attempt.
    pub pause: Duration,
}

impl From<Failure> for Loss {
    fn from(failure: Failure) -> Self {
        Self { failure, since: Instant::now(), pause: FIRST_PAUSE }
    }
}

impl From<Status> for Loss {
    /// Of all ends, only that by a newer session is `Aborted`. This agent did not open it.
    fn from(status: Status) -> Self {
        let failure = failure_of(&status);
        if status.code() != Code::Aborted {
            return failure.into();
        }
        let message = format!("{failure}; does another agent use this host's certificate?");
        let failure = Failure::new(failure.reason, message);
        Self { pause: RIVAL_PAUSE, ..failure.into() }
    }
}

/// Heartbeats out, messages in, until the session is over.
pub(in crate::agent) async fn attend(
    session: &Established,
    inbox: &mut Streaming<DpuMessage>,
    period: Duration,
    heard: &impl Fn(FromDpu),
) -> Loss {
    let mut ticks = interval(period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let patience = period.max(SHORTEST_PATIENCE);
    let mut sequence = 0;
    let mut last_heard = Instant::now();
    let mut unanswered_since = None;
    loop {
        tokio::select! {
            // What has arrived counts first: perhaps it was the agent that stood still.
            biased;
            received = inbox.message() => match received {
                Ok(Some(DpuMessage { message })) => {
                    last_heard = Instant::now();
                    unanswered_since = None;
                    match message {
                        Some(Message::Promises(told)) => session.note_promises(told),
                        Some(Message::Unrecorded(told)) => session.note_unrecorded(told),
                        Some(message) => {
                            if let Message::NetworkChanged(changed) = &message {
                                session.note_network(changed);
                            }
                            heard(FromDpu::Message(Box::new(message)));
                        }
                        // One of a newer protocol says nothing to this agent.
                        None => {}
                    }
                }
                Ok(None) => return lost("it closed the session").into(),
                Err(status) => return status.into(),
            },
            () = end_of_patience(unanswered_since, patience) => {
                session.give_up();
                return Loss { since: last_heard, ..lost(SILENCE).into() };
            }
            () = session.overflowed() => return lost("it takes no messages").into(),
            _ = ticks.tick() => {
                sequence += 1;
                unanswered_since.get_or_insert_with(Instant::now);
                session.send(host_message::Message::Heartbeat(Heartbeat { sequence }));
            }
        }
    }
}

async fn end_of_patience(unanswered_since: Option<Instant>, patience: Duration) {
    match unanswered_since {
        Some(since) => sleep_until((since + patience).into()).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_end_by_a_rival_is_followed_by_a_long_pause() {
        assert_eq!(Loss::from(Status::aborted("newer")).pause, RIVAL_PAUSE);
        assert_eq!(Loss::from(Status::unavailable("stopping")).pause, FIRST_PAUSE);
    }
}
