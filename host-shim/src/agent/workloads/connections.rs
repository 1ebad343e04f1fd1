//! The gRPC connections of the service.

use std::io;

use offload_proto::{
    MESSAGE_LIMIT, workloads::workload_networking_server::WorkloadNetworkingServer,
};
use tokio::{
    io::DuplexStream,
    net::UnixStream,
    sync::mpsc::{self, Sender},
};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tonic::transport::Server;

use super::Workloads;
use crate::agent::authority::with_valid_authority;

#[derive(Clone, Debug)]
pub(in crate::agent) struct Connections {
    tasks: TaskTracker,
    incoming: Sender<io::Result<DuplexStream>>,
}

impl Connections {
    /// Starts to serve connections, each with at most `limit` calls at a time, until the agent is `stopping`. A
    /// connection then ends once all its calls are answered.
    pub(in crate::agent) fn serve(
        workloads: Workloads,
        limit: usize,
        stopping: CancellationToken,
    ) -> Self {
        let tasks = workloads.doors.tasks.clone();
        let (incoming, connections) = mpsc::channel(1);
        let service = WorkloadNetworkingServer::new(workloads);
        let serving = Server::builder()
            .max_concurrent_streams(u32::try_from(limit).unwrap_or(u32::MAX))
            .add_service(service.max_decoding_message_size(MESSAGE_LIMIT))
            .serve_with_incoming_shutdown(
                ReceiverStream::new(connections),
                stopping.cancelled_owned(),
            );
        tasks.spawn(async move {
            if let Err(error) = serving.await {
                tracing::error!(%error, "the gRPC service for workloads ended");
            }
        });
        Self { tasks, incoming }
    }

    /// Passes a connection to the service. It holds the permit until it ends.
    ///
    /// # Errors
    /// The agent is stopping.
    pub(in crate::agent) async fn take(
        &self,
        client: UnixStream,
        permit: impl Send + 'static,
    ) -> io::Result<()> {
        let (served, relay) = with_valid_authority(client);
        let sent = self.incoming.send(Ok(served)).await;
        sent.map_err(|_| io::ErrorKind::ConnectionAborted)?;
        self.tasks.spawn(async move {
            relay.await;
            drop(permit);
        });
        Ok(())
    }
}
