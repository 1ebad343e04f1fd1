//! A client of the agent's workload service, made from its description as others' are.

use std::{net::IpAddr, path::Path, time::Duration};

use offload_proto::workloads::{
    AttachRequest, DetachRequest, NetNsAttachment, StatusRequest,
    workload_networking_client::WorkloadNetworkingClient,
};
use tokio::{
    runtime::{Builder, Runtime},
    task::JoinHandle,
};
use tonic::{
    Status,
    transport::{Channel, Endpoint},
};

use crate::{Netns, TIME_LIMIT};

/// How long an end of a connection may take.
const END: Duration = Duration::from_secs(5);

/// A caller without CNI, with one connection. It ends with it.
#[derive(Debug)]
pub struct Workloads {
    /// `None`: it has ended.
    executor: Option<Runtime>,
    client: WorkloadNetworkingClient<Channel>,
}

/// A call that is under way.
#[derive(Debug)]
pub struct Attaching(JoinHandle<Result<Vec<IpAddr>, Status>>);

impl Workloads {
    /// One that calls on this socket once it is used.
    ///
    /// # Panics
    /// When it can't have a thread.
    #[must_use]
    pub fn on(socket: &Path) -> Self {
        let executor = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display())).unwrap();
        let _entered = executor.enter();
        let channel = endpoint.timeout(TIME_LIMIT).connect_lazy();
        drop(_entered);
        Self { executor: Some(executor), client: WorkloadNetworkingClient::new(channel) }
    }

    fn executor(&self) -> &Runtime {
        self.executor.as_ref().expect("it has not ended")
    }

    /// Attaches a workload by this request.
    ///
    /// # Errors
    /// The refusal.
    ///
    /// # Panics
    /// When an address is none.
    pub fn attach_by(&self, request: AttachRequest) -> Result<Vec<IpAddr>, Status> {
        self.executor().block_on(attach(self.client.clone(), request))
    }

    /// Attaches the workload that has a pod's name, in it.
    ///
    /// # Errors
    /// The refusal.
    pub fn attach(&self, pod: &Netns, interface: &str) -> Result<Vec<IpAddr>, Status> {
        self.attach_by(asked(pod, interface))
    }

    /// Begins to.
    #[must_use]
    pub fn begin_attach(&self, pod: &Netns, interface: &str) -> Attaching {
        let request = asked(pod, interface);
        Attaching(self.executor().spawn(attach(self.client.clone(), request)))
    }

    /// Detaches the workload of that id, and names its namespace if it is told.
    ///
    /// # Errors
    /// The refusal.
    pub fn detach(&self, id: &str, netns: Option<NetNsAttachment>) -> Result<(), Status> {
        let request = DetachRequest { workload_id: id.into(), netns };
        let mut client = self.client.clone();
        self.executor().block_on(client.detach(request)).map(drop)
    }

    /// Whether workloads can be attached.
    ///
    /// # Errors
    /// The refusal.
    pub fn status(&self) -> Result<(), Status> {
        let mut client = self.client.clone();
        self.executor().block_on(client.status(StatusRequest {})).map(drop)
    }

    /// Ends, with calls under way.
    ///
    /// # Panics
    /// When it has ended.
    pub fn end(mut self) {
        self.executor.take().expect("it has not ended").shutdown_timeout(END);
    }
}

impl Attaching {
    /// What comes of it.
    ///
    /// # Errors
    /// The refusal.
    ///
    /// # Panics
    /// When it was taken back.
    pub fn end(self, caller: &Workloads) -> Result<Vec<IpAddr>, Status> {
        caller.executor().block_on(self.0).unwrap()
    }

    /// Takes the call back, as whoever waits no longer.
    pub fn take_back(self) {
        self.0.abort();
    }
}

/// Where a pod's workload is attached.
#[must_use]
pub fn netns_of(pod: &Netns, interface: &str) -> NetNsAttachment {
    let netns_path = pod.path().to_str().expect("UTF-8").to_owned();
    NetNsAttachment { netns_path, if_name: interface.into() }
}

fn asked(pod: &Netns, interface: &str) -> AttachRequest {
    AttachRequest { workload_id: pod.name().into(), netns: Some(netns_of(pod, interface)) }
}

async fn attach(
    mut client: WorkloadNetworkingClient<Channel>,
    request: AttachRequest,
) -> Result<Vec<IpAddr>, Status> {
    let told = client.attach(request).await?.into_inner().ip;
    Ok(told.iter().map(|bytes| address(bytes)).collect())
}

fn address(bytes: &[u8]) -> IpAddr {
    let four = <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from);
    let six = <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from);
    four.or(six).unwrap_or_else(|| panic!("{bytes:?} is no address"))
}
