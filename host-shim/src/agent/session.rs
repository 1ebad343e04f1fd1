//! The one session with the DPU: opened, kept, and opened again when it breaks.

use std::{
    convert::Infallible,
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use bootstrap::Chain;
use mtls::{ConnectError, Connector, LiveCredentials, Role};
use offload_proto::{
    Failure, MESSAGE_LIMIT, PROTOCOL_HIGHEST, PROTOCOL_LOWEST, Reason,
    v1::{
        self, DpuMessage, Heartbeat, HostMessage, Welcome, dpu_message, host_message,
        workload_network_client::WorkloadNetworkClient,
    },
};
use tokio::{
    sync::{
        Notify,
        mpsc::{self, error::TrySendError},
        watch,
    },
    time::{MissedTickBehavior, interval, sleep, timeout, timeout_at},
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status, Streaming, transport::Channel};

use super::{Agent, config::Config};

/// Pauses between attempts: the first and the longest. They double in between, and each is
/// shortened by chance so that the hosts of a rack do not come back in step.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(3);
/// Messages to the DPU that may wait to be sent.
const OUTBOX: usize = 256;
/// A session without an answer for so many heartbeats is over.
const MISSED_HEARTBEATS: u32 = 3;
/// How often the certificate files are looked at.
const CERTIFICATE_PERIOD: Duration = Duration::from_secs(5);

/// How it stands with the DPU.
#[derive(Clone, Debug)]
pub(super) enum Standing {
    /// There is a session.
    Up(Arc<Established>),
    /// There is none.
    Down {
        /// Since when.
        since: Instant,
        /// Whether there has been one since the agent started.
        was_up: bool,
        /// Why the latest attempt failed.
        failure: Failure,
    },
}

/// A session that the DPU has welcomed.
#[derive(Debug)]
pub(super) struct Established {
    /// Names it in `AttachRequest`.
    pub id: String,
    client: WorkloadNetworkClient<Channel>,
    outbox: mpsc::Sender<HostMessage>,
    /// A message found the outbox full.
    overflow: Notify,
}

impl Established {
    /// The calls of this session's connection.
    #[must_use]
    pub(super) fn client(&self) -> WorkloadNetworkClient<Channel> {
        self.client.clone()
    }

    /// Sends a message, and tells whether it is on its way. A DPU that takes none ends the session,
    /// so that what could not be sent is in its successor's hello.
    pub(super) fn send(&self, message: host_message::Message) -> bool {
        match self.outbox.try_send(HostMessage { message: Some(message) }) {
            Ok(()) => true,
            Err(TrySendError::Full(_)) => {
                self.overflow.notify_one();
                false
            }
            Err(TrySendError::Closed(_)) => false,
        }
    }
}

/// The session with the DPU.
#[derive(Debug)]
pub(super) struct Session {
    standing: watch::Sender<Standing>,
    connector: OnceLock<Connector>,
}

impl Default for Session {
    fn default() -> Self {
        let failure = Failure::new(Reason::DpuUnreachable, "the agent has only just started");
        let standing = Standing::Down { since: Instant::now(), was_up: false, failure };
        Self { standing: watch::Sender::new(standing), connector: OnceLock::new() }
    }
}

impl Session {
    /// How it stands now.
    #[must_use]
    pub(super) fn standing(&self) -> Standing {
        self.standing.borrow().clone()
    }

    /// The session. Where it was lost just now, waits for the next one until `patience` after the
    /// loss.
    ///
    /// # Errors
    /// Why there is none.
    pub(super) async fn current(&self, patience: Duration) -> Result<Arc<Established>, Failure> {
        self.other_than("", patience).await
    }

    /// A session other than the one of this id. As [`Self::current`].
    ///
    /// # Errors
    /// Why there is none.
    pub(super) async fn other_than(
        &self,
        id: &str,
        patience: Duration,
    ) -> Result<Arc<Established>, Failure> {
        let asked = Instant::now();
        let mut standing = self.standing.subscribe();
        loop {
            let (since, failure) = match &*standing.borrow_and_update() {
                Standing::Up(session) if session.id != id => return Ok(Arc::clone(session)),
                Standing::Up(_) => (asked, lost("its session is over")),
                Standing::Down { since, failure, .. } => (*since, failure.clone()),
            };
            let deadline = tokio::time::Instant::from_std(since + patience);
            match timeout_at(deadline, standing.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) | Err(_) => return Err(failure),
            }
        }
    }

    /// Sends a message, if there is a session, and tells whether it is on its way.
    pub(super) fn send(&self, message: host_message::Message) -> bool {
        match &*self.standing.borrow() {
            Standing::Up(session) => session.send(message),
            Standing::Down { .. } => false,
        }
    }

    /// Keeps a session, for ever.
    pub(super) async fn keep(&self, agent: &Arc<Agent>) -> Infallible {
        let mut pause = FIRST_PAUSE;
        loop {
            let (failure, was_up) = match self.hold_one(agent).await {
                Ended::BeforeWelcome(failure) => (failure, false),
                Ended::AfterWelcome(failure) => (failure, true),
            };
            self.went_down(failure, was_up);
            pause = if was_up { FIRST_PAUSE } else { (pause * 2).min(LONGEST_PAUSE) };
            sleep(pause.mul_f64(rand::random_range(0.5..1.0))).await;
        }
    }

    fn went_down(&self, failure: Failure, was_up: bool) {
        let reason = failure.reason;
        if was_up {
            tracing::warn!(%reason, "the session with the DPU is over: {failure}");
        } else {
            tracing::info!(%reason, "no session with the DPU: {failure}");
        }
        self.standing.send_modify(|standing| {
            let (since, was_up) = match standing {
                Standing::Up(_) => (Instant::now(), true),
                Standing::Down { since, was_up, .. } => (*since, *was_up),
            };
            *standing = Standing::Down { since, was_up, failure };
        });
    }

    /// Opens a session and stays with it until it ends.
    async fn hold_one(&self, agent: &Arc<Agent>) -> Ended {
        let limit = agent.config.timeouts.connect();
        let opened = match timeout(limit, self.open(agent)).await {
            Ok(opened) => opened,
            Err(_) => Err(lost(format!("it did not answer within {limit:?}"))),
        };
        let (session, inbox, period) = match opened {
            Ok(opened) => opened,
            Err(failure) => return Ended::BeforeWelcome(failure),
        };
        let session = Arc::new(session);
        self.standing.send_replace(Standing::Up(Arc::clone(&session)));
        agent.session_began();
        Ended::AfterWelcome(self.attend(agent, &session, inbox, period).await)
    }

    async fn open(
        &self,
        agent: &Arc<Agent>,
    ) -> Result<(Established, Streaming<DpuMessage>, Duration), Failure> {
        let channel =
            self.connector(&agent.config)?.connect().await.map_err(|error| refused(&error))?;
        let mut client = WorkloadNetworkClient::new(channel)
            .max_decoding_message_size(MESSAGE_LIMIT)
            .max_encoding_message_size(MESSAGE_LIMIT);
        let (outbox, messages) = mpsc::channel(OUTBOX);
        let hello = host_message::Message::Hello(agent.hello().await?);
        let hello = HostMessage { message: Some(hello) };
        outbox.send(hello).await.map_err(|_| lost("the session was closed"))?;
        let inbox = client.session(ReceiverStream::new(messages)).await;
        let mut inbox = inbox.map_err(|status| failure_of(&status))?.into_inner();
        let welcome = welcome(inbox.message().await.map_err(|status| failure_of(&status))?)?;
        tracing::info!(
            dpu = welcome.dpu,
            version = welcome.service_version,
            session = welcome.session_id,
            "the DPU welcomed this host"
        );
        let period = Duration::from_millis(welcome.heartbeat_interval_ms.max(10).into());
        let session =
            Established { id: welcome.session_id, client, outbox, overflow: Notify::new() };
        Ok((session, inbox, period))
    }

    /// The connector, made when the certificates can be read for the first time.
    fn connector(&self, config: &Config) -> Result<&Connector, Failure> {
        if let Some(connector) = self.connector.get() {
            return Ok(connector);
        }
        let refused = |error: &(dyn std::error::Error + 'static)| {
            Failure::new(Reason::CertificateRefused, Chain(error).to_string())
        };
        let credentials = LiveCredentials::load(&config.tls, &[Role::Host]);
        let credentials = credentials.map_err(|error| refused(&error))?;
        let dpu = &config.dpu;
        let connector = Connector::new(
            credentials.clone(),
            &dpu.endpoint,
            &dpu.name,
            config.timeouts.connect(),
        )
        .map_err(|error| refused(&error))?;
        tokio::spawn(credentials.follow(CERTIFICATE_PERIOD));
        Ok(self.connector.get_or_init(|| connector))
    }

    /// Heartbeats out, messages in. Returns why the session is over.
    async fn attend(
        &self,
        agent: &Arc<Agent>,
        session: &Established,
        mut inbox: Streaming<DpuMessage>,
        period: Duration,
    ) -> Failure {
        let mut ticks = interval(period);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut sequence = 0;
        let mut unanswered = 0;
        loop {
            tokio::select! {
                _ = ticks.tick() => {
                    if unanswered >= MISSED_HEARTBEATS {
                        return lost(format!("it answered none of {unanswered} heartbeats"));
                    }
                    unanswered += 1;
                    sequence += 1;
                    session.send(host_message::Message::Heartbeat(Heartbeat { sequence }));
                }
                received = inbox.message() => match received {
                    Ok(Some(DpuMessage { message: Some(dpu_message::Message::Heartbeat(_)) })) => {
                        unanswered = 0;
                    }
                    Ok(Some(DpuMessage { message })) => agent.hear(message),
                    Ok(None) => return lost("it closed the session"),
                    Err(status) => return failure_of(&status),
                },
                () = session.overflow.notified() => return lost("it takes no messages"),
            }
        }
    }
}

/// How a session ended.
enum Ended {
    BeforeWelcome(Failure),
    AfterWelcome(Failure),
}

fn welcome(first: Option<DpuMessage>) -> Result<Welcome, Failure> {
    let Some(dpu_message::Message::Welcome(welcome)) = first.and_then(|first| first.message) else {
        return Err(lost("it did not begin the session with a welcome"));
    };
    if (PROTOCOL_LOWEST..=PROTOCOL_HIGHEST).contains(&welcome.protocol) {
        return Ok(welcome);
    }
    let message = format!(
        "the DPU speaks version {} of the session protocol, and the agent {PROTOCOL_LOWEST} to \
         {PROTOCOL_HIGHEST}",
        welcome.protocol
    );
    Err(Failure::new(Reason::Unsupported, message))
}

/// The versions of the session protocol that the agent speaks.
pub(super) fn protocol_versions() -> v1::ProtocolVersions {
    v1::ProtocolVersions { lowest: PROTOCOL_LOWEST, highest: PROTOCOL_HIGHEST }
}

fn lost(why: impl std::fmt::Display) -> Failure {
    Failure::new(Reason::DpuUnreachable, format!("the DPU can't be reached: {why}"))
}

fn refused(error: &ConnectError) -> Failure {
    let reason =
        if error.is_certificate() { Reason::CertificateRefused } else { Reason::DpuUnreachable };
    Failure::new(reason, Chain(error).to_string())
}

/// What a call failed with: the DPU's own words, or the transport's.
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
        code => Failure::new(
            Reason::Internal,
            format!("the DPU answered {code:?}: {}", status.message()),
        ),
    }
}

/// Whether the DPU itself refused, so that nothing is left undecided.
pub(super) fn is_answer(status: &Status) -> bool {
    Failure::from_status(status).is_some_and(|failure| failure.reason != Reason::DeadlineExceeded)
}

#[cfg(test)]
mod tests {
    use tonic::transport::Endpoint;

    use super::*;

    #[tokio::test]
    async fn a_dpu_that_takes_no_messages_ends_the_session() {
        let (outbox, _messages) = mpsc::channel(1);
        let channel = Endpoint::from_static("http://[::1]:1").connect_lazy();
        let client = WorkloadNetworkClient::new(channel);
        let overflow = Notify::new();
        let session = Established { id: "1".into(), client, outbox, overflow };
        let beat = || host_message::Message::Heartbeat(Heartbeat { sequence: 1 });
        assert!(session.send(beat()));
        assert!(!session.send(beat()), "what does not fit is not on its way");
        timeout(Duration::from_secs(5), session.overflow.notified()).await.unwrap();
    }
}
