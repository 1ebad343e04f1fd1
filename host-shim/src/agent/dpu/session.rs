//! Opens the session with the DPU and reopens it when it ends.

mod attend;

use std::{
    collections::HashSet,
    convert::Infallible,
    sync::{Arc, OnceLock, Weak},
    time::{Duration, Instant},
};

use mtls::{Connector, LiveCredentials};
use offload_proto::{
    Failure, MESSAGE_LIMIT, PROTOCOL_HIGHEST, PROTOCOL_LOWEST, Reason, log_event,
    v1::{
        self, DpuMessage, Hello, HelloReply, HostMessage, dpu_message, host_message,
        workload_network_client::WorkloadNetworkClient,
    },
};
use tokio::{
    sync::{mpsc, watch},
    time::{sleep, timeout, timeout_at},
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Streaming, transport::Channel};

use super::{
    dial,
    established::Established,
    failure::{failure_of, lost, refused},
    networks::Networks,
};
use crate::agent::{config::Config, kill_points::KillPoint};
pub(in crate::agent) use attend::FromDpu;
use attend::{FIRST_BACKOFF, Loss, attend};

/// The longest backoff between attempts. It doubles from the first one. Random jitter keeps the hosts of a rack from
/// reconnecting in step.
const LONGEST_BACKOFF: Duration = Duration::from_secs(3);
/// How long a call waits for the first session of an agent that has just started.
const FIRST_SESSION: Duration = Duration::from_secs(5);
/// The number of messages to the DPU that may wait to be sent.
const OUTBOX: usize = 256;
/// How often the certificate files are checked for changes.
const CERTIFICATE_PERIOD: Duration = Duration::from_secs(5);

#[derive(Clone, Debug)]
pub(in crate::agent) enum SessionState {
    Up(Arc<Established>),
    Down {
        /// When the session was lost.
        since: Instant,
        /// Whether there was a session since the host's boot.
        was_up: bool,
        first_attempt: FirstAttempt,
        failure: Failure,
    },
}

/// The agent's first attempt to open a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::agent) enum FirstAttempt {
    /// No attempt runs yet, so that waiting is useless.
    NotBegun,
    UnderWay,
    Over,
}

#[derive(Debug)]
pub(in crate::agent) struct Session {
    state: watch::Sender<SessionState>,
    connector: OnceLock<Connector>,
    credentials: OnceLock<LiveCredentials>,
}

impl Session {
    /// Starts without a session. `was_up`: an earlier agent had one since the host's boot.
    pub(in crate::agent) fn new(was_up: bool) -> Self {
        let failure =
            Failure::new(Reason::DpuUnreachable, "the agent has not tried to connect yet");
        let since = Instant::now();
        let first_attempt = FirstAttempt::NotBegun;
        let state = SessionState::Down { since, was_up, first_attempt, failure };
        Self {
            state: watch::Sender::new(state),
            connector: OnceLock::new(),
            credentials: OnceLock::new(),
        }
    }

    #[must_use]
    pub(in crate::agent) fn state(&self) -> SessionState {
        self.state.borrow().clone()
    }

    /// Returns the session. After a loss, waits for the next session until `wait` after the loss. Just after the
    /// agent's start, waits for the result of the first attempt.
    ///
    /// # Errors
    /// Why there is no session.
    pub(in crate::agent) async fn current(
        &self,
        wait: Duration,
    ) -> Result<Arc<Established>, Failure> {
        self.other_than("", wait).await
    }

    /// Like [`Self::current`], but returns only a session with another id.
    ///
    /// # Errors
    /// Why there is no such session.
    pub(super) async fn other_than(
        &self,
        id: &str,
        wait: Duration,
    ) -> Result<Arc<Established>, Failure> {
        let asked = Instant::now();
        let mut state = self.state.subscribe();
        loop {
            let (until, failure) = match &*state.borrow_and_update() {
                SessionState::Up(session) if session.id != id => return Ok(Arc::clone(session)),
                SessionState::Up(_) => (asked + wait, lost("its session is over")),
                SessionState::Down { since, first_attempt, failure, .. } => {
                    let until = match first_attempt {
                        FirstAttempt::NotBegun => asked,
                        FirstAttempt::UnderWay => asked + wait.max(FIRST_SESSION),
                        FirstAttempt::Over => *since + wait,
                    };
                    (until, failure.clone())
                }
            };
            let deadline = tokio::time::Instant::from_std(until);
            match timeout_at(deadline, state.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) | Err(_) => return Err(failure),
            }
        }
    }

    /// Sends a message if there is a session. Returns whether it was queued.
    pub(in crate::agent) fn send(&self, message: host_message::Message) -> bool {
        match &*self.state.borrow() {
            SessionState::Up(session) => session.send(message),
            SessionState::Down { .. } => false,
        }
    }

    /// Keeps a session, forever. Each starts with a new `hello`; `on_message` gets what the DPU sends.
    pub(super) async fn keep(
        &self,
        config: &Config,
        hello: &impl AsyncFn() -> Result<Hello, Failure>,
        on_message: &impl Fn(FromDpu),
    ) -> Infallible {
        self.begin();
        let mut backoff = FIRST_BACKOFF;
        let mut renewal = None;
        let mut warned = Warned::default();
        loop {
            match self.hold_one(config, hello, on_message, renewal.take()).await {
                Err(failure) => {
                    backoff = (backoff * 2).min(LONGEST_BACKOFF);
                    let reason = failure.reason;
                    if warned.is_new(reason) {
                        tracing::warn!(%reason, %failure, "no session with the DPU");
                    } else {
                        tracing::info!(%reason, %failure, "no session with the DPU");
                    }
                    self.went_down(failure, Instant::now());
                }
                Ok(Ended::Lost(Loss { failure, since, backoff: first })) => {
                    backoff = first;
                    warned = Warned::default();
                    let reason = failure.reason;
                    tracing::warn!(%reason, %failure, "the session with the DPU ended");
                    self.went_down(failure, since);
                }
                Ok(Ended::Renewed(next)) => {
                    tracing::info!("the session continues with renewed certificates");
                    warned = Warned::default();
                    // Calls that start from here on are not in the next hello, and wait for its session.
                    self.went_down(lost("its connection is being renewed"), Instant::now());
                    renewal = Some(next);
                    continue;
                }
            }
            sleep(backoff.mul_f64(rand::random_range(0.5..1.0))).await;
        }
    }

    pub(super) fn begin(&self) {
        self.state.send_modify(|state| {
            if let SessionState::Down { first_attempt, .. } = state {
                *first_attempt = FirstAttempt::UnderWay;
            }
        });
    }

    fn went_down(&self, failure: Failure, lost_at: Instant) {
        self.state.send_modify(|state| {
            let (since, was_up) = match state {
                SessionState::Up(_) => (lost_at, true),
                SessionState::Down { since, was_up, .. } => (*since, *was_up),
            };
            let first_attempt = FirstAttempt::Over;
            *state = SessionState::Down { since, was_up, first_attempt, failure };
        });
    }

    /// Opens a session and keeps it until it ends.
    ///
    /// # Errors
    /// Why no session was opened.
    async fn hold_one(
        &self,
        config: &Config,
        hello: &impl AsyncFn() -> Result<Hello, Failure>,
        on_message: &impl Fn(FromDpu),
        renewal: Option<Box<NextConnection>>,
    ) -> Result<Ended, Failure> {
        let limit = config.timeouts.connect();
        let connector = self.connector(config)?;
        let opened = timeout(limit, open(connector, renewal, hello)).await;
        let late = |_| lost(format!("it did not answer within {limit:?}"));
        let (session, mut inbox, period) = opened.map_err(late)??;
        let session = Arc::new(session);
        // Published before the callback, which sends waiting reports in this session.
        self.state.send_replace(SessionState::Up(Arc::clone(&session)));
        on_message(FromDpu::SessionBegan);
        let ended = tokio::select! {
            loss = attend(&session, &mut inbox, period, on_message) => Err(loss),
            channel = connector.renewed() => Ok(channel),
        };
        // Before the next hello lists the VFs in use.
        session.close_offers();
        Ok(match ended {
            Ok(channel) => {
                Ended::Renewed(Box::new(NextConnection { channel, session, _inbox: inbox }))
            }
            Err(loss) => Ended::Lost(loss),
        })
    }

    /// The agent's certificate. `None`: not read yet.
    pub(in crate::agent) fn credentials(&self) -> Option<&LiveCredentials> {
        self.credentials.get()
    }

    /// Whether the certificate expires within `ahead` or has expired: one sentence.
    pub(in crate::agent) fn certificate_expiring(&self, ahead: Duration) -> Option<String> {
        self.credentials.get()?.expiring(ahead)
    }

    /// Whether the certificate has expired or its replacement was refused: one sentence.
    pub(in crate::agent) fn certificate_problem(&self) -> Option<String> {
        self.credentials.get()?.problem()
    }

    /// The current session as a weak reference, which is dead after the session's end.
    pub(in crate::agent) fn speaker(&self) -> Weak<Established> {
        match &*self.state.borrow() {
            SessionState::Up(session) => Arc::downgrade(session),
            SessionState::Down { .. } => Weak::new(),
        }
    }

    /// The connector, created when the certificates can be read for the first time.
    fn connector(&self, config: &Config) -> Result<&Connector, Failure> {
        if let Some(connector) = self.connector.get() {
            return Ok(connector);
        }
        let (credentials, connector) = dial::credentials_and_connector(config)?;
        self.credentials.get_or_init(|| credentials.clone());
        tokio::spawn(credentials.clone().warn_of_expiry(config.certificate_warning.ahead()));
        tokio::spawn(credentials.follow(CERTIFICATE_PERIOD));
        Ok(self.connector.get_or_init(|| connector))
    }
}

/// Opens a session, on a renewed connection if there is one.
async fn open(
    connector: &Connector,
    renewal: Option<Box<NextConnection>>,
    hello: &impl AsyncFn() -> Result<Hello, Failure>,
) -> Result<(Established, Streaming<DpuMessage>, Duration), Failure> {
    let channel = match &renewal {
        Some(renewal) => renewal.channel.clone(),
        None => connector.connect().await.map_err(|error| refused(&error))?,
    };
    let renewed_session_id = renewal.as_ref().map_or_else(String::new, |it| it.session.id.clone());
    let mut client = WorkloadNetworkClient::new(channel)
        .max_decoding_message_size(MESSAGE_LIMIT)
        .max_encoding_message_size(MESSAGE_LIMIT);
    let (outbox, messages) = mpsc::channel(OUTBOX);
    let hello = Hello { renewed_session_id, ..hello().await? };
    let hello = HostMessage { message: Some(host_message::Message::Hello(hello)) };
    outbox.send(hello).await.map_err(|_| lost("the session was closed"))?;
    let inbox = client.session(ReceiverStream::new(messages)).await;
    let mut inbox = inbox.map_err(|status| failure_of(&status))?.into_inner();
    let reply = hello_reply(inbox.message().await.map_err(|status| failure_of(&status))?)?;
    tracing::info!(
        event = log_event::SESSION_OPENED,
        dpu = reply.dpu,
        version = reply.service_version,
        session = reply.session_id,
        "the DPU accepted this host"
    );
    KillPoint::SessionAccepted.pass();
    let period = Duration::from_millis(reply.heartbeat_interval_ms.max(10).into());
    let networks = Networks {
        interface_prefixes: reply.interface_prefixes,
        pools: reply.network_pools,
        default: reply.default_network,
    };
    let session = Established::new(reply.session_id, client, outbox, networks);
    Ok((session, inbox, period))
}

/// The reasons that were logged as warnings since the last session. Repeated failures with one of them are logged as
/// info.
#[derive(Default)]
struct Warned(HashSet<Reason>);

impl Warned {
    /// Whether to warn: the reason needs a person, and was not logged before.
    fn is_new(&mut self, reason: Reason) -> bool {
        !reason.is_passing() && self.0.insert(reason)
    }
}

enum Ended {
    Lost(Loss),
    Renewed(Box<NextConnection>),
}

/// The connection for the next session, after the certificates changed. The old session stays open until then, so that
/// the DPU never sees the host disconnected.
struct NextConnection {
    channel: Channel,
    session: Arc<Established>,
    _inbox: Streaming<DpuMessage>,
}

fn hello_reply(first: Option<DpuMessage>) -> Result<HelloReply, Failure> {
    let Some(dpu_message::Message::HelloReply(reply)) = first.and_then(|first| first.message)
    else {
        return Err(lost("it did not start the session with a hello reply"));
    };
    if (PROTOCOL_LOWEST..=PROTOCOL_HIGHEST).contains(&reply.protocol) {
        return Ok(reply);
    }
    let message = format!(
        "the DPU speaks version {} of the session protocol, and the agent {PROTOCOL_LOWEST} to \
         {PROTOCOL_HIGHEST}: upgrade the older of the two",
        reply.protocol
    );
    Err(Failure::new(Reason::Unsupported, message))
}

/// The versions of the session protocol that the agent supports.
pub(super) fn protocol_versions() -> v1::ProtocolVersions {
    v1::ProtocolVersions { lowest: PROTOCOL_LOWEST, highest: PROTOCOL_HIGHEST }
}

#[cfg(test)]
mod tests {
    use test_clock::within;

    use super::*;

    /// The caller waited while no agent, or another one, was running.
    #[tokio::test]
    async fn call_waits_for_the_first_session_attempt() {
        let sessions = Session::new(true);
        let at_once = within(Duration::from_secs(3), sessions.current(Duration::ZERO)).await;
        assert!(at_once.unwrap().is_err(), "there is no attempt to wait for");
        sessions.begin();
        let ends_it = async { sessions.went_down(lost("refused"), Instant::now()) };
        let (result, ()) = tokio::join!(sessions.current(Duration::ZERO), ends_it);
        assert!(result.unwrap_err().message.ends_with("refused"));
        let later = sessions.current(Duration::ZERO).await.unwrap_err();
        assert!(later.message.ends_with("refused"), "{later}");
    }

    #[test]
    fn lasting_session_failure_is_warned_once() {
        let mut warned = Warned::default();
        assert!(!warned.is_new(Reason::DpuUnreachable), "a DPU that boots is back by itself");
        assert!(warned.is_new(Reason::HostUnknown));
        assert!(warned.is_new(Reason::CertificateRefused));
        assert!(!warned.is_new(Reason::HostUnknown) && !warned.is_new(Reason::CertificateRefused));
    }

    #[test]
    fn dpu_of_other_protocol_is_refused() {
        let first = |protocol| {
            let reply = HelloReply { protocol, ..HelloReply::default() };
            DpuMessage { message: Some(dpu_message::Message::HelloReply(reply)) }
        };
        assert!(hello_reply(Some(first(PROTOCOL_HIGHEST))).is_ok());
        let failure = hello_reply(Some(first(PROTOCOL_HIGHEST + 1))).unwrap_err();
        assert_eq!(failure.reason, Reason::Unsupported);
        assert!(failure.message.contains("upgrade the older"), "{failure}");
        let later = hello_reply(Some(DpuMessage { message: None })).unwrap_err();
        assert_eq!(later.reason, Reason::DpuUnreachable);
    }
}
