//! A session while it lasts: its calls, and its messages to the DPU.

use std::{
    collections::HashMap,
    future::Future,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use offload_proto::v1::{
    HostMessage, host_message, workload_network_client::WorkloadNetworkClient,
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

/// What a DPU that does not answer heartbeats is told as.
pub(super) const SILENCE: &str = "it does not answer heartbeats";

/// A session that the DPU has welcomed.
#[derive(Debug)]
pub(in crate::agent) struct Established {
    /// Names it in `AttachRequest` and `DetachRequest`.
    pub id: String,
    client: WorkloadNetworkClient<Channel>,
    outbox: mpsc::Sender<HostMessage>,
    /// A message found the outbox full.
    overflow: Notify,
    /// The DPU is silent: nothing is to be waited for.
    silent: CancellationToken,
    /// How networks have interfaces' names begin that nobody names, by their names.
    interface_prefixes: Mutex<HashMap<String, String>>,
}

impl Established {
    /// A session of that id, whose calls go by `client` and whose messages by `outbox`.
    pub(super) fn new(
        id: String,
        client: WorkloadNetworkClient<Channel>,
        outbox: mpsc::Sender<HostMessage>,
    ) -> Self {
        let (overflow, silent) = (Notify::new(), CancellationToken::new());
        let interface_prefixes = Mutex::default();
        Self { id, client, outbox, overflow, silent, interface_prefixes }
    }

    /// The same, of a DPU that has told of these networks how they have interfaces' names begin.
    pub(super) fn with_prefixes(self, told: HashMap<String, String>) -> Self {
        Self { interface_prefixes: Mutex::new(told), ..self }
    }

    fn prefixes(&self) -> MutexGuard<'_, HashMap<String, String>> {
        self.interface_prefixes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How a network has interfaces' names begin that nobody names. `None`: it does not say.
    pub(in crate::agent) fn interface_prefix(&self, network: &str) -> Option<String> {
        self.prefixes().get(network).cloned()
    }

    /// The DPU has told it anew. Empty: the network does not say, or is gone.
    pub(in crate::agent) fn note_interface_prefix(&self, network: &str, prefix: &str) {
        match prefix {
            "" => drop(self.prefixes().remove(network)),
            prefix => drop(self.prefixes().insert(network.to_owned(), prefix.to_owned())),
        }
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
    use tokio::time::timeout;
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
        timeout(Duration::from_secs(5), session.overflowed()).await.unwrap();
    }

    #[tokio::test]
    async fn what_networks_say_of_names_is_known_from_the_welcome_on_and_may_change() {
        let told = HashMap::from([("blue".to_owned(), "data".to_owned())]);
        let session = session().0.with_prefixes(told);
        assert_eq!(session.interface_prefix("blue").as_deref(), Some("data"));
        assert_eq!(session.interface_prefix("red"), None);
        for prefix in ["store", ""] {
            session.note_interface_prefix("blue", prefix);
            let said = session.interface_prefix("blue");
            assert_eq!(said.unwrap_or_default(), prefix);
        }
        assert_eq!(session.interface_prefix("blue"), None);
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
