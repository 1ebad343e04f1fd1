//! The listener and the services on it.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use metrics::Calls;
use mtls::{LiveCredentials, RefusedPeer, Server, incoming};
use offload_proto::{
    MESSAGE_LIMIT,
    v1::{
        DESCRIPTORS, operator_server::OperatorServer,
        workload_network_server::WorkloadNetworkServer,
    },
};
use tokio::{
    net::{TcpListener, TcpSocket},
    sync::mpsc,
    time::interval,
};
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use tonic_health::{ServingStatus, server::HealthReporter};
use tower::Layer;

use crate::{
    api::{Authorise, Count, Finish, OperatorApi, WorkloadApi},
    config::{Config, Limits},
    shared::Shared,
    transport,
};

/// How often the health service is updated.
const HEALTH_PERIOD: Duration = Duration::from_secs(1);

/// Capacity of the queue of refused connections.
const REFUSALS_WAITING: usize = 16;

const WORKLOAD: &str = "offload.v1.WorkloadNetwork";
const OPERATOR: &str = "offload.v1.Operator";

#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("can't listen on {address}")]
    Listen { address: SocketAddr, source: io::Error },
    /// Reflection cannot serve the API's descriptors.
    #[error("the API's descriptors can't be read")]
    Descriptors(#[from] tonic_reflection::server::Error),
}

/// How long connections may stay open after all calls have ended.
pub(crate) const LAST_ANSWERS: Duration = Duration::from_secs(1);

/// Serves until `stop`, and then until all calls and connections have ended.
pub(crate) async fn serve(
    listener: TcpListener,
    credentials: LiveCredentials,
    shared: Arc<Shared>,
    calls: Arc<Calls>,
    limits: Limits,
    stop: CancellationToken,
) -> Result<(), ServeError> {
    let deadline = Duration::from_secs(limits.handshake_timeout_s);
    let (refused, refusals) = mpsc::channel(REFUSALS_WAITING);
    let server = Server::new(credentials, deadline).reporting(refused);
    let connections = incoming(listener, server, connection_limits(&limits));
    tokio::spawn(note_refusals(refusals, shared.clone()));
    let (reporter, health) = tonic_health::server::health_reporter();
    tokio::spawn(report_health(reporter, shared.clone(), stop.clone()));
    let workload = WorkloadNetworkServer::new(WorkloadApi(shared.clone()));
    let operator = OperatorServer::new(OperatorApi(shared.clone()));
    let routes = Routes::new(workload.max_decoding_message_size(MESSAGE_LIMIT))
        .add_service(operator.max_decoding_message_size(MESSAGE_LIMIT))
        .add_service(health)
        .add_service(reflection().build_v1()?)
        .add_service(reflection().build_v1alpha()?);
    let authorised = Authorise::new(shared, &limits).layer(routes.prepare());
    // `Finish` is outermost: it runs every call to its end, so that `Count` sees the outcome of cancelled ones.
    let service = Finish.layer(Count(calls).layer(authorised));
    transport::serve(connections, service, &limits, stop).await;
    Ok(())
}

pub(crate) fn listen(config: &Config) -> Result<TcpListener, ServeError> {
    let address = config.listen;
    let listener = bind(address).map_err(|source| ServeError::Listen { address, source })?;
    tracing::info!(%address, version = env!("CARGO_PKG_VERSION"), "listening");
    Ok(listener)
}

/// Length of the kernel's accept queue. When it is full, the kernel drops SYNs, which clients repeat after a second.
/// The usual 128 overflow when all hosts reconnect at once.
const BACKLOG: u32 = 4096;

fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // A restart must not wait for connections in TIME_WAIT.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Notes refused connections. Ends with the listener.
async fn note_refusals(mut refusals: mpsc::Receiver<RefusedPeer>, shared: Arc<Shared>) {
    while let Some(RefusedPeer { holder, address, reason }) = refusals.recv().await {
        shared.note_refused(address.ip(), holder.as_ref(), &reason);
    }
}

fn reflection() -> tonic_reflection::server::Builder<'static> {
    tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(DESCRIPTORS)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
}

/// Reports the server and the operators' service as serving while they run, and the hosts' service while Attach can be
/// served.
async fn report_health(reporter: HealthReporter, shared: Arc<Shared>, stop: CancellationToken) {
    reporter.set_service_status(OPERATOR, ServingStatus::Serving).await;
    let mut ticks = interval(HEALTH_PERIOD);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = stop.cancelled() => break,
        }
        let status = match shared.status().is_empty() {
            true => ServingStatus::Serving,
            false => ServingStatus::NotServing,
        };
        reporter.set_service_status(WORKLOAD, status).await;
    }
    for service in ["", OPERATOR, WORKLOAD] {
        reporter.set_service_status(service, ServingStatus::NotServing).await;
    }
}

pub(crate) fn connection_limits(limits: &Limits) -> mtls::Limits {
    mtls::Limits {
        handshakes: limits.handshakes,
        connections: limits.connections,
        connections_per_identity: limits.connections_per_identity,
        unread: limits.unread(),
    }
}
