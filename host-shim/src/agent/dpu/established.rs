//! An established session: its calls and its messages to the DPU.

use std::{collections::HashSet, future::Future, time::Instant};

use offload_proto::v1::{
    self, HostMessage, host_message, workload_network_client::WorkloadNetworkClient,
};
use parking_lot::Mutex;
use tokio::{
    sync::{
        Notify,
        mpsc::{self, error::TrySendError},
    },
    time::timeout_at,
};
use tokio_util::sync::CancellationToken;
use tonic::{Response, Status, transport::Channel};

use vf_alloc::{Device, VfOffer};

use super::{networks::Networks, vf_offers::VfOffers};
use crate::agent::vfs::Claimed;

/// The reason of calls to a DPU that does not answer heartbeats.
pub(super) const SILENCE: &str = "it does not answer heartbeats";

/// A session that the DPU has accepted.
#[derive(Debug)]
pub(in crate::agent) struct Established {
    /// The session's id in `AttachRequest` and `DetachRequest`.
    pub id: String,
    pub since: Instant,
    client: WorkloadNetworkClient<Channel>,
    outbox: mpsc::Sender<HostMessage>,
    /// Notified when a message finds the outbox full.
    overflow: Notify,
    /// Cancelled when the DPU is silent: no call waits any longer.
    silent: CancellationToken,
    networks: Mutex<Networks>,
    offers: Mutex<VfOffers>,
    /// The ids of attachments that the DPU has no record of.
    unrecorded: Mutex<HashSet<String>>,
}

impl Established {
    pub(super) fn new(
        id: String,
        client: WorkloadNetworkClient<Channel>,
        outbox: mpsc::Sender<HostMessage>,
        networks: Networks,
    ) -> Self {
        Self {
            id,
            since: Instant::now(),
            client,
            outbox,
            overflow: Notify::new(),
            silent: CancellationToken::new(),
            networks: Mutex::new(networks),
            offers: Mutex::default(),
            unrecorded: Mutex::default(),
        }
    }

    /// The prefix that a network gives to interfaces without a requested name. `None`: none.
    pub(in crate::agent) fn interface_prefix(&self, network: &str) -> Option<String> {
        self.networks.lock().interface_prefix(network).map(str::to_owned)
    }

    pub(super) fn note_network(&self, changed: &v1::NetworkChanged) {
        self.networks.lock().note(changed);
    }

    pub(super) fn note_offers(&self, offers: v1::VfOffers) {
        self.offers.lock().note(offers);
    }

    /// Takes the ids of attachments that the DPU has no record of.
    pub(super) fn note_unrecorded(&self, unrecorded: v1::Unrecorded) {
        let attachments = unrecorded.attachment_ids;
        tracing::error!(
            ?attachments,
            "the DPU has no record of these attachments; their pods are cut off"
        );
        self.unrecorded.lock().extend(attachments);
    }

    /// Whether the DPU has no record of the attachment.
    pub(in crate::agent) fn is_unrecorded(&self, id: &str) -> bool {
        self.unrecorded.lock().contains(id)
    }

    /// Takes the chosen VF if it is offered and can be claimed.
    pub(in crate::agent) fn take_chosen(
        &self,
        chosen: &Device,
        claim: impl Fn(&Device) -> Option<Claimed>,
    ) -> Option<(VfOffer, Claimed)> {
        self.offers.lock().take_chosen(chosen, claim)
    }

    /// Takes an offered VF of the network's pool that can be claimed. Also `None` if the pool is unknown.
    pub(in crate::agent) fn take_of_network(
        &self,
        network: &str,
        claim: impl Fn(&Device) -> Option<Claimed>,
    ) -> Option<(VfOffer, Claimed)> {
        let pool = self.networks.lock().pool_of(network).map(str::to_owned)?;
        self.offers.lock().take_of_pool(&pool, claim)
    }

    /// The VFs that the DPU offers and no ADD has taken.
    pub(in crate::agent) fn offered(&self) -> Vec<Device> {
        self.offers.lock().devices()
    }

    /// Voids this session's offers: the next hello lists the VFs in use.
    pub(super) fn close_offers(&self) {
        self.offers.lock().close();
    }

    pub(super) fn client(&self) -> WorkloadNetworkClient<Channel> {
        self.client.clone()
    }

    /// Makes a call; ends it at `deadline`, or as soon as the DPU is known to be silent.
    ///
    /// # Errors
    /// The DPU's refusal, or the missing answer.
    pub(super) async fn bounded<T>(
        &self,
        deadline: Instant,
        call: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, Status> {
        tokio::select! {
            biased;
            () = self.silent.cancelled() => Err(Status::unavailable(SILENCE)),
            answer = timeout_at(deadline.into(), call) => match answer {
                Ok(answer) => answer.map(Response::into_inner),
                Err(_) => Err(Status::deadline_exceeded("its deadline has passed")),
            },
        }
    }

    /// Marks the DPU as silent: calls in progress end.
    pub(super) fn give_up(&self) {
        self.silent.cancel();
    }

    /// Waits until a message finds the outbox full.
    pub(super) async fn overflowed(&self) {
        self.overflow.notified().await;
    }

    /// Queues a message and returns whether it was queued. A full outbox ends the session; the next session's hello has
    /// what could not be sent.
    pub(in crate::agent) fn send(&self, message: host_message::Message) -> bool {
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use offload_proto::{Reason, v1::Heartbeat};
    use test_clock::within;
    use tonic::transport::Endpoint;

    use super::{super::failure::failure_of, *};

    fn session() -> (Established, mpsc::Receiver<HostMessage>) {
        let (outbox, messages) = mpsc::channel(1);
        let channel = Endpoint::from_static("http://[::1]:1").connect_lazy();
        let client = WorkloadNetworkClient::new(channel);
        (Established::new("1".into(), client, outbox, Networks::default()), messages)
    }

    #[tokio::test]
    async fn full_outbox_ends_the_session() {
        let (session, _messages) = session();
        let heartbeat = || host_message::Message::Heartbeat(Heartbeat { sequence: 1 });
        assert!(session.send(heartbeat()));
        assert!(!session.send(heartbeat()), "what does not fit is not on its way");
        within(Duration::from_secs(5), session.overflowed()).await.unwrap();
    }

    #[tokio::test]
    async fn calls_to_a_silent_dpu_end() {
        let (session, _messages) = session();
        session.give_up();
        let deadline = Instant::now() + Duration::from_secs(60);
        let call = std::future::pending::<Result<Response<()>, Status>>();
        let failure = failure_of(&session.bounded(deadline, call).await.unwrap_err());
        assert_eq!(failure.reason, Reason::DpuUnreachable);
    }
}
