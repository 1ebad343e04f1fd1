//! A simulated host's session with the DPU.

use std::time::Duration;

use offload_proto::{
    PROTOCOL_HIGHEST, PROTOCOL_LOWEST, capability,
    v1::{
        self, dpu_message::Message as FromDpu, host_message::Message as FromHost,
        workload_network_client::WorkloadNetworkClient,
    },
};
use test_clock::within;
use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
    time::{Interval, interval},
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming, transport::Channel};

/// Timeout of the DPU's hello reply.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout of an offer, if each pod has a VF that can be offered.
const OFFER_TIMEOUT: Duration = Duration::from_secs(2);
/// Capacity of the send queue.
const WAITING: usize = 64;
/// Number of the first heartbeat whose answer is awaited. Ordinary heartbeats have lower numbers.
const FIRST_ASKED: u64 = 1 << 32;

/// A session, until it is dropped or the DPU ends it.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) id: String,
    out: mpsc::Sender<v1::HostMessage>,
    /// Offered VFs that are not taken.
    offers: mpsc::UnboundedReceiver<v1::VfOffer>,
    /// Attachments to release.
    released: mpsc::UnboundedReceiver<v1::Release>,
    /// The latest answered heartbeat among those whose answer is awaited.
    echoed: watch::Receiver<u64>,
    listener: JoinHandle<()>,
}

impl Drop for Session {
    fn drop(&mut self) {
        self.listener.abort();
    }
}

impl Session {
    /// Opens a session.
    ///
    /// # Errors
    /// The DPU is unavailable or refuses.
    pub(super) async fn open(
        client: &mut WorkloadNetworkClient<Channel>,
        hello: v1::Hello,
    ) -> Result<Self, Status> {
        let greeted = within(HELLO_TIMEOUT, Self::greet(client, hello)).await;
        greeted.unwrap_or_else(|| Err(Status::deadline_exceeded("no hello_reply")))
    }

    async fn greet(
        client: &mut WorkloadNetworkClient<Channel>,
        hello: v1::Hello,
    ) -> Result<Self, Status> {
        let (out, messages) = mpsc::channel(WAITING);
        let greeting = v1::HostMessage { message: Some(FromHost::Hello(with_protocol(hello))) };
        out.try_send(greeting).expect("a channel with room");
        let mut from_dpu = client.session(ReceiverStream::new(messages)).await?.into_inner();
        let Some(FromDpu::HelloReply(hello_reply)) = next(&mut from_dpu).await? else {
            return Err(Status::unavailable("the session ended"));
        };
        let (echoes, echoed) = watch::channel(0);
        let (offered, offers) = mpsc::unbounded_channel();
        let (releases, released) = mpsc::unbounded_channel();
        let beats = interval(Duration::from_millis(hello_reply.heartbeat_interval_ms.into()));
        let receiver = DpuReceiver { out: out.clone(), offered, releases, echoes };
        let listener = tokio::spawn(receiver.listen(from_dpu, beats));
        Ok(Self { id: hello_reply.session_id, out, offers, released, echoed, listener })
    }

    pub(super) fn is_over(&self) -> bool {
        self.listener.is_finished()
    }

    /// Sends a message, unless the session is over.
    pub(super) async fn send(&self, message: FromHost) {
        let _ = self.out.send(v1::HostMessage { message: Some(message) }).await;
    }

    /// Waits until the DPU has processed all messages. `false`: the session is over.
    pub(super) async fn all_processed(&mut self) -> bool {
        let sequence = FIRST_ASKED.max(*self.echoed.borrow() + 1);
        self.send(FromHost::Heartbeat(v1::Heartbeat { sequence })).await;
        self.echoed.wait_for(|echoed| *echoed == sequence).await.is_ok()
    }

    /// Takes a VF that the DPU has offered, or offers shortly.
    pub(super) async fn take_offer(&mut self) -> Option<v1::VfOffer> {
        within(OFFER_TIMEOUT, self.offers.recv()).await?
    }

    /// Takes an attachment to release.
    pub(super) fn take_released(&mut self) -> Option<v1::Release> {
        self.released.try_recv().ok()
    }
}

fn with_protocol(hello: v1::Hello) -> v1::Hello {
    v1::Hello {
        protocol: Some(v1::ProtocolVersions { lowest: PROTOCOL_LOWEST, highest: PROTOCOL_HIGHEST }),
        agent_version: "played".into(),
        capabilities: vec![capability::VF_OFFERS.into()],
        ..hello
    }
}

async fn next(from_dpu: &mut Streaming<v1::DpuMessage>) -> Result<Option<FromDpu>, Status> {
    Ok(from_dpu.message().await?.and_then(|message| message.message))
}

/// Receives the DPU's messages.
struct DpuReceiver {
    out: mpsc::Sender<v1::HostMessage>,
    offered: mpsc::UnboundedSender<v1::VfOffer>,
    releases: mpsc::UnboundedSender<v1::Release>,
    echoes: watch::Sender<u64>,
}

impl DpuReceiver {
    /// Runs until the session is over.
    async fn listen(self, mut from_dpu: Streaming<v1::DpuMessage>, mut beats: Interval) {
        let mut sequence = 0;
        loop {
            let answer = tokio::select! {
                message = next(&mut from_dpu) => match message {
                    Ok(Some(message)) => self.handle(message),
                    Ok(None) | Err(_) => return,
                },
                _ = beats.tick() => {
                    sequence += 1;
                    Some(FromHost::Heartbeat(v1::Heartbeat { sequence }))
                }
            };
            let Some(message) = answer else { continue };
            if self.out.send(v1::HostMessage { message: Some(message) }).await.is_err() {
                return;
            }
        }
    }

    /// Handles a message and returns the answer. The queue of a dropped session has no reader.
    fn handle(&self, message: FromDpu) -> Option<FromHost> {
        match message {
            FromDpu::VfOffers(v1::VfOffers { vfs }) => {
                let offers = vfs.into_iter().filter_map(|vf| vf.offer);
                offers.for_each(|offer| _ = self.offered.send(offer));
            }
            FromDpu::Release(release) => _ = self.releases.send(release),
            FromDpu::Heartbeat(v1::Heartbeat { sequence }) if sequence >= FIRST_ASKED => {
                self.echoes.send_replace(sequence);
            }
            // The simulated VF has never moved.
            FromDpu::Reattach(v1::Reattach { attachment }) => {
                let attachment_id = attachment?.id;
                return Some(FromHost::Attached(v1::Attached { attachment_id }));
            }
            _ => {}
        }
        None
    }
}
