//! A session while it lasts: its calls, and its messages to the DPU.

use std::{collections::HashSet, future::Future, sync::Mutex, time::Instant};

use offload_proto::v1::{
    self, HostMessage, host_message, workload_network_client::WorkloadNetworkClient,
};
use tokio::{
    sync::{
        Notify,
        mpsc::{self, error::TrySendError},
    },
    time::timeout_at,
};
use tokio_util::sync::CancellationToken;
use tonic::{Response, Status, transport::Channel};

use vf_alloc::{Device, VfPromise};

use super::{networks::Networks, promises::Promises};
use crate::agent::{defect::locked, vfs::Claimed};

/// What a DPU that does not answer heartbeats is told as.
pub(super) const SILENCE: &str = "it does not answer heartbeats";

/// A session that the DPU has welcomed.
#[derive(Debug)]
pub(in crate::agent) struct Established {
    /// Names it in `AttachRequest` and `DetachRequest`.
    pub id: String,
    /// When the DPU welcomed this host.
    pub since: Instant,
    client: WorkloadNetworkClient<Channel>,
    outbox: mpsc::Sender<HostMessage>,
    /// A message found the outbox full.
    overflow: Notify,
    /// The DPU is silent: nothing is to be waited for.
    silent: CancellationToken,
    networks: Mutex<Networks>,
    promises: Mutex<Promises>,
    /// The attachments that the DPU has no record of, by their ids.
    unrecorded: Mutex<HashSet<String>>,
}

impl Established {
    /// A session of that id, whose calls go by `client` and whose messages by `outbox`.
    pub(super) fn new(
        id: String,
        client: WorkloadNetworkClient<Channel>,
        outbox: mpsc::Sender<HostMessage>,
    ) -> Self {
        let (overflow, silent) = (Notify::new(), CancellationToken::new());
        let (networks, promises, unrecorded) = Default::default();
        let since = Instant::now();
        Self { id, since, client, outbox, overflow, silent, networks, promises, unrecorded }
    }

    /// The same, of a DPU that has told this of its networks.
    pub(super) fn with_networks(self, told: Networks) -> Self {
        Self { networks: Mutex::new(told), ..self }
    }

    /// How a network has interfaces' names begin that nobody names. `None`: it does not say.
    pub(in crate::agent) fn interface_prefix(&self, network: &str) -> Option<String> {
        locked(&self.networks).interface_prefix(network).map(str::to_owned)
    }

    /// The DPU has told anew of a network.
    pub(super) fn note_network(&self, changed: &v1::NetworkChanged) {
        locked(&self.networks).note(changed);
    }

    /// The DPU has promised VFs.
    pub(super) fn note_promises(&self, told: v1::Promises) {
        locked(&self.promises).note(told);
    }

    /// The DPU has no record of these attachments.
    pub(super) fn note_unrecorded(&self, unrecorded: v1::Unrecorded) {
        let attachments = unrecorded.attachment_ids;
        tracing::error!(
            ?attachments,
            "the DPU has no record of attachments: their pods are cut off"
        );
        locked(&self.unrecorded).extend(attachments);
    }

    /// Whether the DPU has reported that it has no record of the attachment.
    pub(in crate::agent) fn is_unrecorded(&self, id: &str) -> bool {
        locked(&self.unrecorded).contains(id)
    }

    /// Takes the VF that somebody has chosen, if it is promised and can be claimed.
    pub(in crate::agent) fn take_chosen(
        &self,
        chosen: &Device,
        claim: impl Fn(&Device) -> Option<Claimed>,
    ) -> Option<(VfPromise, Claimed)> {
        locked(&self.promises).take_chosen(chosen, claim)
    }

    /// Takes one of the promised VFs of a network's pool that can be claimed. `None`, too, where the pool is not known.
    pub(in crate::agent) fn take_for(
        &self,
        network: &str,
        claim: impl Fn(&Device) -> Option<Claimed>,
    ) -> Option<(VfPromise, Claimed)> {
        let pool = locked(&self.networks).pool_of(network).map(str::to_owned)?;
        locked(&self.promises).take_of_pool(&pool, claim)
    }

    /// The VFs that the DPU has promised and no ADD has taken.
    pub(in crate::agent) fn promised(&self) -> Vec<Device> {
        locked(&self.promises).devices()
    }

    /// Nothing that was promised in this session may be taken any more: the next hello tells what is in use.
    pub(super) fn close_promises(&self) {
        locked(&self.promises).close();
    }

    /// The calls of this session's connection.
    #[must_use]
    pub(super) fn client(&self) -> WorkloadNetworkClient<Channel> {
        self.client.clone()
    }

    /// Makes a call, and gives it up at `deadline`, or as soon as the DPU is known to be silent.
    ///
    /// # Errors
    /// The DPU's refusal, or that there is no answer.
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

    /// The DPU is silent: calls that are under way are given up.
    pub(super) fn give_up(&self) {
        self.silent.cancel();
    }

    /// Waits until a message finds the outbox full.
    pub(super) async fn overflowed(&self) {
        self.overflow.notified().await;
    }

    /// Sends a message, and tells whether it is on its way. A DPU that takes none ends the session,
    /// so that what could not be sent is in its successor's hello.
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
        (Established::new("1".into(), WorkloadNetworkClient::new(channel), outbox), messages)
    }

    #[tokio::test]
    async fn a_dpu_that_takes_no_messages_ends_the_session() {
        let (session, _messages) = session();
        let beat = || host_message::Message::Heartbeat(Heartbeat { sequence: 1 });
        assert!(session.send(beat()));
        assert!(!session.send(beat()), "what does not fit is not on its way");
        within(Duration::from_secs(5), session.overflowed()).await.unwrap();
    }

    #[tokio::test]
    async fn calls_to_a_silent_dpu_are_given_up() {
        let (session, _messages) = session();
        session.give_up();
        let deadline = Instant::now() + Duration::from_secs(60);
        let call = std::future::pending::<Result<Response<()>, Status>>();
        let failure = failure_of(&session.bounded(deadline, call).await.unwrap_err());
        assert_eq!(failure.reason, Reason::DpuUnreachable);
    }
}
