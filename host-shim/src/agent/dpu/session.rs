//! The one session with the DPU: opened, kept, and opened again when it breaks.

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
        self, DpuMessage, Hello, HostMessage, Welcome, dpu_message, host_message,
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
use attend::{Loss, attend};

/// Pauses between attempts: the first and the longest. They double in between, and each is
/// shortened by chance so that the hosts of a rack do not come back in step.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(3);
/// How long a call waits for the first session of an agent that has only just started.
const FIRST_SESSION: Duration = Duration::from_secs(5);
/// Messages to the DPU that may wait to be sent.
const OUTBOX: usize = 256;
/// How often the certificate files are looked at.
const CERTIFICATE_PERIOD: Duration = Duration::from_secs(5);

/// How it stands with the DPU.
#[derive(Clone, Debug)]
pub(in crate::agent) enum Standing {
    /// There is a session.
    Up(Arc<Established>),
    /// There is none.
    Down {
        /// Since when.
        since: Instant,
        /// Whether there has been one in this boot of the host.
        was_up: bool,
        /// What became of the agent's first attempt.
        first_attempt: FirstAttempt,
        /// Why the latest attempt failed.
        failure: Failure,
    },
}

/// The agent's first attempt to have a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::agent) enum FirstAttempt {
    /// Nobody makes it yet: to wait for it would be in vain.
    NotBegun,
    UnderWay,
    Over,
}

/// What the DPU says.
#[derive(Debug)]
pub(in crate::agent) enum FromDpu {
    /// It has welcomed this host: a session has begun.
    Welcome,
    /// A message of the session.
    Message(Box<dpu_message::Message>),
}

/// The session with the DPU.
#[derive(Debug)]
pub(in crate::agent) struct Session {
    standing: watch::Sender<Standing>,
    connector: OnceLock<Connector>,
    credentials: OnceLock<LiveCredentials>,
}

impl Session {
    /// None yet. `was_up`: an earlier agent had one in this boot of the host.
    pub(in crate::agent) fn new(was_up: bool) -> Self {
        let failure = Failure::new(Reason::DpuUnreachable, "the agent has only just started");
        let since = Instant::now();
        let first_attempt = FirstAttempt::NotBegun;
        let standing = Standing::Down { since, was_up, first_attempt, failure };
        Self {
            standing: watch::Sender::new(standing),
            connector: OnceLock::new(),
            credentials: OnceLock::new(),
        }
    }

    /// How it stands now.
    #[must_use]
    pub(in crate::agent) fn standing(&self) -> Standing {
        self.standing.borrow().clone()
    }

    /// The session. Where it was lost just now, waits for the next one until `patience` after the
    /// loss. Where the agent has only just started, waits for what becomes of its first attempt, once that
    /// is made.
    ///
    /// # Errors
    /// Why there is none.
    pub(in crate::agent) async fn current(
        &self,
        patience: Duration,
    ) -> Result<Arc<Established>, Failure> {
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
            let (until, failure) = match &*standing.borrow_and_update() {
                Standing::Up(session) if session.id != id => return Ok(Arc::clone(session)),
                Standing::Up(_) => (asked + patience, lost("its session is over")),
                Standing::Down { since, first_attempt, failure, .. } => {
                    let until = match first_attempt {
                        FirstAttempt::NotBegun => asked,
                        FirstAttempt::UnderWay => asked + patience.max(FIRST_SESSION),
                        FirstAttempt::Over => *since + patience,
                    };
                    (until, failure.clone())
                }
            };
            let deadline = tokio::time::Instant::from_std(until);
            match timeout_at(deadline, standing.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) | Err(_) => return Err(failure),
            }
        }
    }

    /// Sends a message, if there is a session, and tells whether it is on its way.
    pub(in crate::agent) fn send(&self, message: host_message::Message) -> bool {
        match &*self.standing.borrow() {
            Standing::Up(session) => session.send(message),
            Standing::Down { .. } => false,
        }
    }

    /// Keeps a session, for ever. Each begins with a `hello`, made anew; what the DPU says is `heard`.
    pub(super) async fn keep(
        &self,
        config: &Config,
        hello: &impl AsyncFn() -> Result<Hello, Failure>,
        heard: &impl Fn(FromDpu),
    ) -> Infallible {
        self.begin();
        let mut pause = FIRST_PAUSE;
        let mut renewal = None;
        let mut warned = Warned::default();
        loop {
            match self.hold_one(config, hello, heard, renewal.take()).await {
                Ended::BeforeWelcome(failure) => {
                    pause = (pause * 2).min(LONGEST_PAUSE);
                    let reason = failure.reason;
                    if warned.is_new(reason) {
                        tracing::warn!(%reason, "no session with the DPU: {failure}");
                    } else {
                        tracing::info!(%reason, "no session with the DPU: {failure}");
                    }
                    self.went_down(failure, Instant::now());
                }
                Ended::AfterWelcome(Loss { failure, since, pause: first }) => {
                    pause = first;
                    warned = Warned::default();
                    let reason = failure.reason;
                    tracing::warn!(%reason, "the session with the DPU is over: {failure}");
                    self.went_down(failure, since);
                }
                Ended::Renewed(next) => {
                    tracing::info!("the session goes on with renewed certificates");
                    warned = Warned::default();
                    // What is begun from here on is not in the next hello, and waits for its session.
                    self.went_down(lost("its connection is being renewed"), Instant::now());
                    renewal = Some(next);
                    continue;
                }
            }
            sleep(pause.mul_f64(rand::random_range(0.5..1.0))).await;
        }
    }

    pub(super) fn begin(&self) {
        self.standing.send_modify(|standing| {
            if let Standing::Down { first_attempt, .. } = standing {
                *first_attempt = FirstAttempt::UnderWay;
            }
        });
    }

    fn went_down(&self, failure: Failure, lost_at: Instant) {
        self.standing.send_modify(|standing| {
            let (since, was_up) = match standing {
                Standing::Up(_) => (lost_at, true),
                Standing::Down { since, was_up, .. } => (*since, *was_up),
            };
            let first_attempt = FirstAttempt::Over;
            *standing = Standing::Down { since, was_up, first_attempt, failure };
        });
    }

    /// Opens a session and stays with it until it ends.
    async fn hold_one(
        &self,
        config: &Config,
        hello: &impl AsyncFn() -> Result<Hello, Failure>,
        heard: &impl Fn(FromDpu),
        renewal: Option<Box<NextConnection>>,
    ) -> Ended {
        let limit = config.timeouts.connect();
        let connector = match self.connector(config) {
            Ok(connector) => connector,
            Err(failure) => return Ended::BeforeWelcome(failure),
        };
        let opened = match timeout(limit, open(connector, renewal, hello)).await {
            Ok(opened) => opened,
            Err(_) => Err(lost(format!("it did not answer within {limit:?}"))),
        };
        let (session, mut inbox, period) = match opened {
            Ok(opened) => opened,
            Err(failure) => return Ended::BeforeWelcome(failure),
        };
        let session = Arc::new(session);
        self.standing.send_replace(Standing::Up(Arc::clone(&session)));
        heard(FromDpu::Welcome);
        let ended = tokio::select! {
            loss = attend(&session, &mut inbox, period, heard) => Err(loss),
            channel = connector.renewed() => Ok(channel),
        };
        // Before the next hello lists what is in use.
        session.close_promises();
        let channel = match ended {
            Ok(channel) => channel,
            Err(loss) => return Ended::AfterWelcome(loss),
        };
        Ended::Renewed(Box::new(NextConnection { channel, session, _inbox: inbox }))
    }

    /// The agent's certificate. `None`: it could not be read yet.
    pub(in crate::agent) fn credentials(&self) -> Option<&LiveCredentials> {
        self.credentials.get()
    }

    /// That the agent's certificate expires within `ahead`, or has expired: one sentence.
    pub(in crate::agent) fn certificate_expiring(&self, ahead: Duration) -> Option<String> {
        self.credentials.get()?.expiring(ahead)
    }

    /// That the agent's certificate has expired, or that its replacement is refused: one sentence.
    pub(in crate::agent) fn certificate_problem(&self) -> Option<String> {
        self.credentials.get()?.problem()
    }

    /// Who speaks in the session that there is now. Gone once that is over.
    pub(in crate::agent) fn speaker(&self) -> Weak<Established> {
        match &*self.standing.borrow() {
            Standing::Up(session) => Arc::downgrade(session),
            Standing::Down { .. } => Weak::new(),
        }
    }

    /// The connector, made when the certificates can be read for the first time.
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

/// Opens a session, by a connection that is there already if there is one.
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
    let welcome = welcome(inbox.message().await.map_err(|status| failure_of(&status))?)?;
    tracing::info!(
        event = log_event::SESSION_OPENED,
        dpu = welcome.dpu,
        version = welcome.service_version,
        session = welcome.session_id,
        "the DPU welcomed this host"
    );
    KillPoint::SessionWelcomed.pass();
    let period = Duration::from_millis(welcome.heartbeat_interval_ms.max(10).into());
    let networks = Networks {
        interface_prefixes: welcome.interface_prefixes,
        pools: welcome.network_pools,
        default: welcome.default_network,
    };
    let session = Established::new(welcome.session_id, client, outbox).with_networks(networks);
    Ok((session, inbox, period))
}

/// The reasons that have been warned of since the last session. The next attempts fail for the same ones.
#[derive(Default)]
struct Warned(HashSet<Reason>);

impl Warned {
    /// Whether it is to be warned of: it does not go away by itself, and has not been told yet.
    fn is_new(&mut self, reason: Reason) -> bool {
        !reason.is_passing() && self.0.insert(reason)
    }
}

/// How a session ended.
enum Ended {
    BeforeWelcome(Failure),
    AfterWelcome(Loss),
    Renewed(Box<NextConnection>),
}

/// There is another connection to open the next session by. The session that is renewed stays open until
/// then, so that to the DPU the host is never away.
struct NextConnection {
    channel: Channel,
    session: Arc<Established>,
    _inbox: Streaming<DpuMessage>,
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
         {PROTOCOL_HIGHEST}: upgrade the older of the two",
        welcome.protocol
    );
    Err(Failure::new(Reason::Unsupported, message))
}

/// The versions of the session protocol that the agent speaks.
pub(super) fn protocol_versions() -> v1::ProtocolVersions {
    v1::ProtocolVersions { lowest: PROTOCOL_LOWEST, highest: PROTOCOL_HIGHEST }
}

#[cfg(test)]
mod tests {
    use test_clock::within;

    use super::*;

    /// Its caller came while no agent was there, or another one.
    #[tokio::test]
    async fn a_call_waits_for_the_first_attempt_of_an_agent_that_has_only_just_started() {
        let sessions = Session::new(true);
        let at_once = within(Duration::from_secs(3), sessions.current(Duration::ZERO)).await;
        assert!(at_once.unwrap().is_err(), "there is no attempt to wait for");
        sessions.begin();
        let ends_it = async { sessions.went_down(lost("refused"), Instant::now()) };
        let (told, ()) = tokio::join!(sessions.current(Duration::ZERO), ends_it);
        assert!(told.unwrap_err().message.ends_with("refused"));
        let later = sessions.current(Duration::ZERO).await.unwrap_err();
        assert!(later.message.ends_with("refused"), "{later}");
    }

    #[test]
    fn what_stays_as_it_is_is_warned_of_once() {
        let mut warned = Warned::default();
        assert!(!warned.is_new(Reason::DpuUnreachable), "a DPU that boots is back by itself");
        assert!(warned.is_new(Reason::HostUnknown));
        assert!(warned.is_new(Reason::CertificateRefused));
        assert!(!warned.is_new(Reason::HostUnknown) && !warned.is_new(Reason::CertificateRefused));
    }

    #[test]
    fn a_dpu_of_another_protocol_is_refused_with_what_to_do() {
        let first = |protocol| {
            let welcome = Welcome { protocol, ..Welcome::default() };
            DpuMessage { message: Some(dpu_message::Message::Welcome(welcome)) }
        };
        assert!(welcome(Some(first(PROTOCOL_HIGHEST))).is_ok());
        let failure = welcome(Some(first(PROTOCOL_HIGHEST + 1))).unwrap_err();
        assert_eq!(failure.reason, Reason::Unsupported);
        assert!(failure.message.contains("upgrade the older"), "{failure}");
        let later = welcome(Some(DpuMessage { message: None })).unwrap_err();
        assert_eq!(later.reason, Reason::DpuUnreachable);
    }
}
