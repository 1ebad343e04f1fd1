//! A host's session stream: messages from the host, commands to it.
//!
//! Owns: one task for each stream and the queue to its connection. `sessions` owns the session itself.
//!
//! Concurrently: flows of the engine queue commands for the session. Only the task reads them and writes to the
//! connection.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use futures::stream::{BoxStream, StreamExt};
use jiff::Timestamp;
use mtls::Peer;
use offload_proto::{Failure, Reason, capability, v1, v1::dpu_message, v1::host_message};
use tokio::{
    sync::mpsc,
    time::{Instant, interval, timeout, timeout_at},
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status, Streaming};

use super::{convert::read, convert::show};
use crate::{attachments::HostPool, host::Hello, sessions, shared::Shared};
use model::HostName;

/// Capacity of the queue of messages to a host's connection.
const MESSAGES_WAITING: usize = 16;

/// Number of heartbeat intervals without a message after which a session is dropped.
const MISSED_HEARTBEATS: u32 = 3;

/// How often the service checks whether the host's pools have changed. Polled, because many events change them; the
/// device plugin does not need them sooner.
const POOLS_PERIOD: Duration = Duration::from_secs(1);

/// Boxed: a channel allocates room for dozens of messages when it is created, and there are many idle sessions.
type Outgoing = mpsc::Sender<Box<Result<v1::DpuMessage, Status>>>;

/// Opens a session for the host at `peer`. Its task ends when the returned stream or the incoming one ends.
pub(crate) fn open(
    shared: Arc<Shared>,
    peer: Peer,
    incoming: Streaming<v1::HostMessage>,
) -> BoxStream<'static, Result<v1::DpuMessage, Status>> {
    let (outgoing, messages) = mpsc::channel(MESSAGES_WAITING);
    let sessions = shared.sessions.clone();
    sessions.spawn(async move {
        let host = HostName(peer.identity.name().into());
        if let Err(status) = run(&shared, &peer, &host, incoming, &outgoing).await {
            tracing::info!(%host, reason = status.message(), "host session ended");
            // Fails if the host has gone: then it needs no reason.
            let _ = outgoing.try_send(Box::new(Err(status)));
        }
    });
    ReceiverStream::new(messages).map(|message| *message).boxed()
}

async fn run(
    shared: &Shared,
    peer: &Peer,
    host: &HostName,
    mut incoming: Streaming<v1::HostMessage>,
    outgoing: &Outgoing,
) -> Result<(), Status> {
    let address = peer.address.ip();
    // Shown to operators as the reason for the missing session, unless it passes by itself.
    let note_refused = |status: &Status| {
        if Failure::from_status(status).is_some_and(|failure| !failure.reason.is_passing()) {
            shared.engine.hosts().refused(host, address, status.message());
        }
    };
    let (hello, protocol) =
        receive_hello(shared, peer, host, &mut incoming).await.inspect_err(note_refused)?;
    let capabilities = hello.capabilities.clone();
    let session = shared.engine.hosts().hello(host.clone(), hello).await;
    let session = session.map_err(Status::from).inspect_err(note_refused)?;
    let id = session.id;
    shared.engine.hosts().accepted(host, address);
    shared.refused_peers.forget(address);
    let mut session_task =
        SessionTask { shared, host, incoming, outgoing, session, sent_pools: None };
    let result = session_task.serve(protocol, capabilities).await;
    let how = ending(&result, shared.credentials.outside_validity());
    shared.engine.hosts().goodbye(host, id, &how, expired(peer.certificate_end));
    result
}

/// Describes the end of a session in one clause. If this DPU's certificate has expired, connections break because of
/// that.
fn ending(result: &Result<(), Status>, own_certificate: Option<String>) -> String {
    let how = match result {
        Ok(()) => "the host closed it".to_owned(),
        Err(status) if status.code() == Code::Cancelled => "the host closed it".to_owned(),
        Err(status) if Failure::from_status(status).is_some() => status.message().to_owned(),
        Err(status) => format!("its connection broke: {}", status.message()),
    };
    match own_certificate {
        Some(expired) => format!("{how}; this DPU's {expired}"),
        None => how,
    }
}

/// A sentence if the host's certificate has expired: its connection ends with it.
fn expired(end: SystemTime) -> Option<String> {
    let end = Timestamp::try_from(end).ok().filter(|end| *end < Timestamp::now())?;
    Some(format!(
        "its session ended with its certificate, which expired on {end}: renew it on the host"
    ))
}

async fn receive_hello(
    shared: &Shared,
    peer: &Peer,
    host: &HostName,
    incoming: &mut Streaming<v1::HostMessage>,
) -> Result<(Hello, u32), Status> {
    let late = |_| {
        let seconds = shared.session_limits.hello_timeout.as_secs();
        refuse(format!("host {host} sent no hello within {seconds} s of opening its session"))
    };
    let first = tokio::select! {
        first = timeout(shared.session_limits.hello_timeout, incoming.message()) => first.map_err(late)??,
        () = shared.stopping.cancelled() => return Err(stopping()),
    };
    match first.and_then(|first| first.message) {
        Some(host_message::Message::Hello(hello)) => Ok(read::hello(host, peer.connection, hello)?),
        _ => {
            Err(refuse(format!("host {host} began its session with another message than a hello")))
        }
    }
}

fn refuse(sentence: String) -> Status {
    Failure::new(Reason::InvalidRequest, sentence).into()
}

fn stopping() -> Status {
    Failure::new(Reason::Draining, "the service is stopping").into()
}

struct SessionTask<'a> {
    shared: &'a Shared,
    host: &'a HostName,
    incoming: Streaming<v1::HostMessage>,
    outgoing: &'a Outgoing,
    session: sessions::Session,
    /// The pools as last sent to the host. `None`: not sent yet.
    sent_pools: Option<Vec<HostPool>>,
}

impl SessionTask<'_> {
    /// Runs the session until either side ends it or the host is silent for too long.
    async fn serve(
        &mut self,
        protocol: u32,
        capabilities: Vec<&'static str>,
    ) -> Result<(), Status> {
        self.send(self.hello_reply(protocol, &capabilities)).await?;
        // A deadline and not a timeout: the loop's other branches must not extend it.
        let mut silent_at = Instant::now() + self.silence_limit();
        let wants_pools = capabilities.contains(&capability::VF_POOLS);
        let wants_offers = capabilities.contains(&capability::VF_OFFERS);
        // The first tick is immediate: pools and offers follow the reply to the hello.
        let mut pools_due = interval(POOLS_PERIOD);
        loop {
            tokio::select! {
                received = timeout_at(silent_at, self.incoming.message()) => {
                    let Some(received) = received.map_err(|_| self.lost("sent no heartbeat"))?? else {
                        return Ok(());
                    };
                    silent_at = Instant::now() + self.silence_limit();
                    self.receive(received).await?;
                }
                command = self.session.commands.recv() => {
                    let command = command.ok_or_else(|| self.ended())?;
                    self.send(show::command(command)).await?;
                }
                // Polled for offers as well: some changes, such as a cleared quarantine, send no notification.
                _ = pools_due.tick() => {
                    if wants_pools {
                        self.send_pools().await?;
                    }
                    if wants_offers {
                        self.send_offers().await?;
                    }
                }
                () = self.session.vfs_changed.notified(), if wants_offers => {
                    self.send_offers().await?;
                }
                () = self.shared.stopping.cancelled() => {
                    self.send_remaining().await?;
                    return Err(stopping());
                }
            }
        }
    }

    async fn send_pools(&mut self) -> Result<(), Status> {
        let pools = self.shared.engine.hosts().pools(self.host);
        if self.sent_pools.as_ref() != Some(&pools) {
            self.send(dpu_message::Message::VfPools(show::vf_pools(&pools))).await?;
            self.sent_pools = Some(pools);
        }
        Ok(())
    }

    async fn send_offers(&self) -> Result<(), Status> {
        let offers = self.shared.engine.hosts().offer_vfs(self.host, self.session.id);
        if offers.is_empty() {
            return Ok(());
        }
        self.send(dpu_message::Message::VfOffers(show::offers(&offers))).await
    }

    /// Sends the remaining commands, which tell the host why its session ends.
    async fn send_remaining(&mut self) -> Result<(), Status> {
        while let Ok(command) = self.session.commands.try_recv() {
            self.send(show::command(command)).await?;
        }
        Ok(())
    }

    fn hello_reply(&self, protocol: u32, capabilities: &[&str]) -> dpu_message::Message {
        let interval = self.shared.session_limits.heartbeat.as_millis();
        let networks = self.shared.engine.networks().shown_to(self.host);
        dpu_message::Message::HelloReply(v1::HelloReply {
            protocol,
            service_version: env!("CARGO_PKG_VERSION").into(),
            dpu: self.shared.dpu(),
            capabilities: capabilities.iter().map(ToString::to_string).collect(),
            session_id: self.session.id.to_string(),
            heartbeat_interval_ms: interval.try_into().unwrap_or(u32::MAX),
            interface_prefixes: networks.interface_prefixes,
            network_pools: networks.pools,
            default_network: networks.default.unwrap_or_default(),
        })
    }

    async fn receive(&self, received: v1::HostMessage) -> Result<(), Status> {
        let hosts = self.shared.engine.hosts();
        let session = self.session.id;
        match received.message {
            Some(host_message::Message::Heartbeat(heartbeat)) => {
                self.send(dpu_message::Message::Heartbeat(heartbeat)).await?;
            }
            Some(host_message::Message::Attached(attached)) => {
                let id = read::attachment_id(&attached.attachment_id)?;
                hosts.attached(self.host, session, id);
            }
            Some(host_message::Message::Inventory(inventory)) => {
                // Not awaited: heartbeats must not wait for the VFs that it frees.
                drop(hosts.inventory(self.host, session, &read::inventory(&inventory)?)?);
            }
            Some(host_message::Message::Hello(_)) => {
                return Err(refuse(format!(
                    "host {} sent a second hello in one session",
                    self.host
                )));
            }
            Some(host_message::Message::Examination(found)) => {
                let request_id = found.request_id;
                hosts.examined(self.host, session, request_id, read::examination(&found));
            }
            Some(host_message::Message::DeclinedOffers(declined_offers)) => {
                hosts.decline(self.host, &read::offers(declined_offers.offers)?);
            }
            Some(host_message::Message::PodFindings(found)) => {
                hosts.reported(self.host, session, read::pod_findings(&found));
            }
            Some(host_message::Message::FailedAdd(failed)) => {
                if let Some(failure) = read::failed_add(&failed) {
                    hosts.add_failed(self.host, session, &failure);
                }
            }
            Some(host_message::Message::Repaired(repaired)) => {
                let (subject, what) = read::repaired(&repaired);
                hosts.repaired(self.host, session, &subject, &what);
            }
            // A message of a later protocol version: ignored.
            None => {}
        }
        Ok(())
    }

    /// Sends a message. A host that reads nothing for as long as it may be silent has lost its session.
    async fn send(&self, message: dpu_message::Message) -> Result<(), Status> {
        let message = v1::DpuMessage { message: Some(message) };
        let sent = timeout(self.silence_limit(), self.outgoing.send(Box::new(Ok(message)))).await;
        sent.map_err(|_| self.lost("took no message"))?
            .map_err(|_| Status::cancelled("the host hung up"))
    }

    fn silence_limit(&self) -> Duration {
        self.shared.session_limits.heartbeat * MISSED_HEARTBEATS
    }

    /// The error for a host that was silent or did not read for too long.
    fn lost(&self, nothing: &str) -> Status {
        let seconds = self.silence_limit().as_secs_f64();
        let message = format!("host {} {nothing} for {seconds} s", self.host);
        Failure::new(Reason::StaleSession, message).into()
    }

    fn ended(&self) -> Status {
        if self.shared.engine.hosts().serves(self.host) {
            let why = format!(
                "host {} has opened a newer session, or does not read its commands",
                self.host
            );
            return Status::aborted(why);
        }
        let why = format!("host {} was removed from the DPU's configuration", self.host);
        Failure::new(Reason::HostUnknown, why).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_of_sessions_are_described() {
        let silent = Failure::new(Reason::StaleSession, "host a sent no heartbeat for 15 s");
        let ends = [
            (Ok(()), "the host closed it"),
            (Err(Status::cancelled("hung up")), "the host closed it"),
            (Err(silent.into()), "host a sent no heartbeat for 15 s"),
            (Err(Status::unknown("broken pipe")), "its connection broke: broken pipe"),
        ];
        for (result, expected) in ends {
            assert_eq!(ending(&result, None), expected);
        }
        let expired = ending(&Ok(()), Some("certificate a.crt expired: renew it".into()));
        assert_eq!(expired, "the host closed it; this DPU's certificate a.crt expired: renew it");
    }
}
