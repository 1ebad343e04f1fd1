//! A client of the agent's workload service, generated from its proto like any other client.

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

/// Timeout for the end of a connection.
const END: Duration = Duration::from_secs(5);

/// A client without CNI, with one connection that ends with it.
#[derive(Debug)]
pub struct Workloads {
    /// `None` after it ended.
    executor: Option<Runtime>,
    client: WorkloadNetworkingClient<Channel>,
}

/// A call in progress.
#[derive(Debug)]
pub struct Attaching(JoinHandle<Result<Vec<IpAddr>, Status>>);

impl Workloads {
    /// A client that connects to this socket on first use.
    ///
    /// # Panics
    /// If it cannot have a thread.
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
    /// If an address is malformed.
    pub fn attach_by(&self, request: AttachRequest) -> Result<Vec<IpAddr>, Status> {
        self.executor().block_on(attach(self.client.clone(), request))
    }

    /// Attaches a workload with a pod's name to the pod's namespace.
    ///
    /// # Errors
    /// The refusal.
    pub fn attach(&self, pod: &Netns, interface: &str) -> Result<Vec<IpAddr>, Status> {
        self.attach_by(asked(pod, interface))
    }

    /// Starts an attach without waiting.
    #[must_use]
    pub fn begin_attach(&self, pod: &Netns, interface: &str) -> Attaching {
        let request = asked(pod, interface);
        Attaching(self.executor().spawn(attach(self.client.clone(), request)))
    }

    /// Detaches a workload by its ID, and optionally names its namespace.
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

    /// Ends the client with its calls in progress.
    ///
    /// # Panics
    /// If it has ended.
    pub fn end(mut self) {
        self.executor.take().expect("it has not ended").shutdown_timeout(END);
    }
}

impl Attaching {
    /// Waits for the result.
    ///
    /// # Errors
    /// The refusal.
    ///
    /// # Panics
    /// If the call was cancelled.
    pub fn end(self, caller: &Workloads) -> Result<Vec<IpAddr>, Status> {
        caller.executor().block_on(self.0).unwrap()
    }

    /// Cancels the call, like a caller that does not wait any longer.
    pub fn take_back(self) {
        self.0.abort();
    }
}

/// The namespace of a pod's workload.
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
    let reported = client.attach(request).await?.into_inner().ip;
    Ok(reported.iter().map(|bytes| address(bytes)).collect())
}

fn address(bytes: &[u8]) -> IpAddr {
    let four = <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from);
    let six = <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from);
    four.or(six).unwrap_or_else(|| panic!("{bytes:?} is no address"))
}
