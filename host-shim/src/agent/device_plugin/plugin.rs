//! What the kubelet asks of a resource.

use std::{collections::HashMap, pin::Pin, sync::Arc, time::Duration};

use offload_proto::{
    kubelet::deviceplugin::{
        AllocateRequest, AllocateResponse, ContainerAllocateRequest, ContainerAllocateResponse,
        ContainerPreferredAllocationResponse, Device, DevicePluginOptions, Empty,
        ListAndWatchResponse, NumaNode, PreStartContainerRequest, PreStartContainerResponse,
        PreferredAllocationRequest, PreferredAllocationResponse, TopologyInfo,
        device_plugin_server,
    },
    v1::VfPool,
};
use tokio::{
    sync::{Notify, watch},
    time::{Instant, interval_at},
};
use tokio_stream::{
    Stream, StreamExt,
    wrappers::{IntervalStream, WatchStream},
};
use tonic::{Request, Response, Status};

use super::{
    preference::preferred,
    vfio::{VfioProblems, device_nodes},
};
use crate::agent::vfs::{Cards, Vfs};

/// How often changes on the host alone are reported to a kubelet that listens: a VF that another driver has now is in
/// the same pool.
const LOOK: Duration = Duration::from_secs(10);

/// What kubelets call health.
const HEALTHY: &str = "Healthy";
const UNHEALTHY: &str = "Unhealthy";

/// One pool's resource, as the kubelet sees it.
pub(super) struct Plugin {
    resource: String,
    pool: String,
    pools: watch::Receiver<Vec<VfPool>>,
    vfs: Arc<Vfs>,
    attention: Arc<Attention>,
    problems: Arc<VfioProblems>,
}

/// Whether the kubelet listens to what it is told of the VFs.
#[derive(Debug, Default)]
pub(super) struct Attention {
    /// It has asked for them.
    pub(super) asked: Notify,
    /// It has ended to listen, and asks no more: to it, all VFs are unhealthy.
    pub(super) lost: Notify,
}

/// The kubelet listens. Its end without the pool's is lost attention.
struct Listening {
    pool: String,
    pools: watch::Receiver<Vec<VfPool>>,
    attention: Arc<Attention>,
}

impl Drop for Listening {
    fn drop(&mut self) {
        if self.pools.borrow().iter().any(|pool| pool.name == self.pool) {
            self.attention.lost.notify_one();
        }
    }
}

impl Plugin {
    pub(super) fn new(
        resource: String,
        pool: String,
        pools: watch::Receiver<Vec<VfPool>>,
        vfs: Arc<Vfs>,
        attention: Arc<Attention>,
    ) -> Self {
        Self { resource, pool, pools, vfs, attention, problems: Arc::default() }
    }

    fn has(&self, device: &str) -> bool {
        let pools = self.pools.borrow();
        let pool = pools.iter().find(|pool| pool.name == self.pool);
        pool.is_some_and(|pool| pool.vfs.iter().any(|vf| vf.device == device))
    }

    async fn allocate_one(
        &self,
        chosen: ContainerAllocateRequest,
    ) -> Result<ContainerAllocateResponse, Status> {
        let ids = chosen.devices_i_ds;
        if let Some(unknown) = ids.iter().find(|device| !self.has(device)) {
            let message = format!("{} has no device {unknown}", self.resource);
            return Err(Status::invalid_argument(message));
        }
        let envs = HashMap::from([(variable(&self.resource), ids.join(","))]);
        let given: Vec<_> = ids.into_iter().map(vf_alloc::Device::from).collect();
        let devices = look(&self.vfs, move |cards| device_nodes(cards, &given)).await?;
        let devices = devices.map_err(|error| Status::failed_precondition(error.to_string()))?;
        Ok(ContainerAllocateResponse { envs, devices })
    }
}

/// Options sent at registration.
pub(super) const OPTIONS: DevicePluginOptions =
    DevicePluginOptions { pre_start_required: false, get_preferred_allocation_available: true };

/// Looks at the cards on a thread that may block.
async fn look<T: Send + 'static>(
    vfs: &Arc<Vfs>,
    work: impl FnOnce(Cards<'_>) -> T + Send + 'static,
) -> Result<T, Status> {
    let host = Arc::clone(vfs.host());
    let looked = vfs.host().look(move || work(host.cards())).await;
    looked.map_err(|failure| Status::internal(failure.message))
}

/// The variable that tells a container its devices, as other device plugins of network cards name it.
fn variable(resource: &str) -> String {
    let in_capitals = |letter: char| match letter.is_ascii_alphanumeric() {
        true => letter.to_ascii_uppercase(),
        false => '_',
    };
    format!("PCIDEVICE_{}", resource.chars().map(in_capitals).collect::<String>())
}

/// The pool's VFs with their health. A VF that Allocate would refuse is unhealthy: the kubelet ends a pod for good whose
/// Allocate is refused, and a Deployment makes the next one.
fn devices(cards: Cards<'_>, pool: &VfPool, problems: &VfioProblems) -> ListAndWatchResponse {
    let has_no_problem = pool.vfs.iter().filter(|vf| vf.problem.is_empty());
    let healthy: Vec<_> =
        has_no_problem.map(|vf| vf_alloc::Device::from(vf.device.as_str())).collect();
    let devices = pool.vfs.iter().map(|vf| {
        let device = vf_alloc::Device::from(vf.device.as_str());
        let is_healthy = vf.problem.is_empty() && problems.can_be_opened(cards, &device, &healthy);
        let node = cards.placement(&device).numa_node;
        Device {
            id: vf.device.clone(),
            health: if is_healthy { HEALTHY } else { UNHEALTHY }.into(),
            topology: node.map(|node| TopologyInfo { nodes: vec![NumaNode { id: node.into() }] }),
        }
    });
    ListAndWatchResponse { devices: devices.collect() }
}

#[tonic::async_trait]
impl device_plugin_server::DevicePlugin for Plugin {
    async fn get_device_plugin_options(
        &self,
        _request: Request<Empty>,
    ) -> Result<Response<DevicePluginOptions>, Status> {
        Ok(Response::new(OPTIONS))
    }

    type ListAndWatchStream =
        Pin<Box<dyn Stream<Item = Result<ListAndWatchResponse, Status>> + Send>>;

    async fn list_and_watch(
        &self,
        _request: Request<Empty>,
    ) -> Result<Response<Self::ListAndWatchStream>, Status> {
        self.attention.asked.notify_one();
        let (pools, attention) = (self.pools.clone(), Arc::clone(&self.attention));
        let listening = Listening { pool: self.pool.clone(), pools, attention };
        let pool = move |()| {
            let pools = listening.pools.borrow();
            pools.iter().find(|pool| pool.name == listening.pool).cloned()
        };
        let looks = IntervalStream::new(interval_at(Instant::now() + LOOK, LOOK)).map(|_| ());
        let reports = WatchStream::new(self.pools.clone()).map(|_| ());
        // A pool that is no more ends it, and with it the kubelet's hope.
        let pools = reports.merge(looks).map(pool).take_while(Option::is_some);
        let (vfs, problems) = (Arc::clone(&self.vfs), Arc::clone(&self.problems));
        let lists = pools.then(move |pool| {
            let (vfs, problems) = (Arc::clone(&vfs), Arc::clone(&problems));
            let list = move |cards: Cards<'_>| devices(cards, &pool.unwrap_or_default(), &problems);
            async move { look(&vfs, list).await }
        });
        let mut latest = None;
        let news = lists.filter(move |list| match list {
            Ok(list) => latest.replace(list.clone()).as_ref() != Some(list),
            Err(_) => true,
        });
        Ok(Response::new(Box::pin(news)))
    }

    async fn get_preferred_allocation(
        &self,
        request: Request<PreferredAllocationRequest>,
    ) -> Result<Response<PreferredAllocationResponse>, Status> {
        let mut container_responses = Vec::new();
        for asked in request.into_inner().container_requests {
            let device_i_ds = look(&self.vfs, move |cards| preferred(cards, asked)).await?;
            container_responses.push(ContainerPreferredAllocationResponse { device_i_ds });
        }
        Ok(Response::new(PreferredAllocationResponse { container_responses }))
    }

    async fn allocate(
        &self,
        request: Request<AllocateRequest>,
    ) -> Result<Response<AllocateResponse>, Status> {
        let mut container_responses = Vec::new();
        for chosen in request.into_inner().container_requests {
            container_responses.push(self.allocate_one(chosen).await?);
        }
        Ok(Response::new(AllocateResponse { container_responses }))
    }

    async fn pre_start_container(
        &self,
        _request: Request<PreStartContainerRequest>,
    ) -> Result<Response<PreStartContainerResponse>, Status> {
        Err(Status::unimplemented("nothing is to be done before a container starts"))
    }
}
