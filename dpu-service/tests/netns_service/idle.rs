//! Idle connected hosts.

use std::fmt::Write as _;

use futures::{StreamExt as _, stream};
use mtls::Role;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use offload_proto::{
    capability,
    v1::{self, dpu_message, host_message, workload_network_client::WorkloadNetworkClient},
};

use crate::{
    service_support::{NETWORKS, Setup},
    session::{Session, hello},
};

pub(crate) const SESSIONS: usize = 1000;

/// Number of sessions opened concurrently.
const TOGETHER: usize = 16;

/// Additional memory of the service with many idle sessions of different hosts, in MiB.
pub(crate) fn growth_by_sessions() -> f64 {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).unwrap();
    let setup = Setup::new();
    let mut hosts = NETWORKS.to_owned();
    for number in 1..=SESSIONS {
        write!(hosts, "[[host]]\nname = 'idle-{number}'\npfs = ['p{number}']\n").unwrap();
    }
    // Long enough that no session ends while others are opened on a busy machine.
    setup.configure("heartbeat_ms = 60_000", &hosts);
    let connector = |number| setup.connector(Role::Host, &format!("idle-{number}"));
    let connectors: Vec<_> = (1..=SESSIONS).map(connector).collect();
    let service = setup.start();
    setup.client(async || {
        let before = service.memory();
        let opening = connectors
            .iter()
            .map(async |connector| idle(WorkloadNetworkClient::new(connector.channel())).await);
        let sessions: Vec<_> = stream::iter(opening).buffer_unordered(TOGETHER).collect().await;
        let growth = service.memory() - before;
        drop(sessions);
        growth
    })
}

/// A session after the messages of an idle agent.
async fn idle(host: WorkloadNetworkClient<tonic::transport::Channel>) -> Session {
    let mut session = Session::by(host).await;
    let host_message::Message::Hello(hello) = hello() else { unreachable!() };
    let capabilities = capability::ALL.iter().map(ToString::to_string).collect();
    session.send(host_message::Message::Hello(v1::Hello { capabilities, ..hello })).await;
    let beat = v1::Heartbeat { sequence: 1 };
    session.send(host_message::Message::Heartbeat(beat)).await;
    while session.receive().await.unwrap() != Some(dpu_message::Message::Heartbeat(beat)) {}
    session
}
