//! The gRPC service for one resource, called by the kubelet.

use std::{collections::HashMap, pin::Pin, sync::Arc, time::Duration};

use offload_proto::{
    kubelet::deviceplugin::{
        AllocateRequest, AllocateResponse, ContainerAllocateRequest, ContainerAllocateResponse,
        ContainerPreferredAllocationResponse, Device, DevicePluginOptions, DeviceSpec, Empty,
        ListAndWatchResponse, NumaNode, PreStartContainerRequest, PreStartContainerResponse,
        PreferredAllocationRequest, PreferredAllocationResponse, TopologyInfo,
        device_plugin_server,
    },
    v1::{PooledVf, VfPool},
};
use parking_lot::Mutex;
use sriov::IommuGroup;
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
    advertised::Advertised,
    holders::{GivenVfs, Holders},
    pod_resources,
    preference::preferred,
    settings::DevicePluginSettings,
    vfio::{VfioError, VfioProblems, check_pool, device_nodes, group_of, groups_of, problem_of},
};
use crate::agent::vfs::{Cards, Vfs};

/// How often changes on the host are sent to the kubelet. The DPU does not report them: a VF that was bound to another
/// driver stays in its pool.
const LOOK: Duration = Duration::from_secs(10);

/// The kubelet's words for health.
const HEALTHY: &str = "Healthy";
const UNHEALTHY: &str = "Unhealthy";

pub(super) struct Plugin {
    pool: String,
    pools: watch::Receiver<Vec<VfPool>>,
    attention: Arc<Attention>,
    lister: Arc<Lister>,
}

/// Lists a pool's VFs for the kubelet.
struct Lister {
    settings: DevicePluginSettings,
    resource: String,
    vfs: Arc<Vfs>,
    given: GivenVfs,
    advertised: Mutex<Advertised>,
    problems: VfioProblems,
}

/// The host's view of a VF.
struct Found {
    vf: vf_alloc::Device,
    numa_node: Option<u32>,
    /// `Ok(None)`: the VF is not handed over to programs.
    group: Result<Option<IommuGroup>, VfioError>,
}

/// Whether the kubelet watches the list of VFs.
#[derive(Debug, Default)]
pub(super) struct Attention {
    /// The kubelet started to watch.
    pub(super) asked: Notify,
    /// The kubelet stopped watching and does not start again by itself; it treats all VFs as unhealthy.
    pub(super) lost: Notify,
}

/// The kubelet watches. Its end while the pool still exists is reported as lost.
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
        settings: DevicePluginSettings,
        pool: String,
        pools: watch::Receiver<Vec<VfPool>>,
        vfs: Arc<Vfs>,
        attention: Arc<Attention>,
    ) -> Self {
        let resource = settings.resource(&pool);
        let (given, advertised, problems) = Default::default();
        let lister = Lister { settings, resource, vfs, given, advertised, problems };
        Self { pool, pools, attention, lister: Arc::new(lister) }
    }

    fn current_pool(&self) -> Option<VfPool> {
        self.pools.borrow().iter().find(|pool| pool.name == self.pool).cloned()
    }

    async fn allocate_one(
        &self,
        chosen: ContainerAllocateRequest,
    ) -> Result<ContainerAllocateResponse, Status> {
        let Lister { resource, vfs, advertised, .. } = &*self.lister;
        let ids = chosen.devices_i_ds;
        let pool = self.current_pool().unwrap_or_default();
        // The pool may have changed since the kubelet chose from its list.
        let is_known = |id: &String| {
            pool.vfs.iter().any(|vf| vf.device == *id) || advertised.lock().has(id, Instant::now())
        };
        if let Some(unknown) = ids.iter().find(|id| !is_known(id)) {
            return Err(Status::invalid_argument(format!("{resource} has no device {unknown}")));
        }
        let envs = HashMap::from([(variable(resource), ids.join(","))]);
        let own: Vec<_> = ids.into_iter().map(vf_alloc::Device::from).collect();
        let looked_at = own.clone();
        let groups = look(vfs, move |cards| groups_of(cards, looked_at)).await?;
        let devices = groups.and_then(|groups| self.give(&own, &groups, &pool));
        let devices = devices.map_err(|error| Status::failed_precondition(error.to_string()))?;
        Ok(ContainerAllocateResponse { envs, devices })
    }

    /// Gives a container its `own` VFs with their IOMMU groups. Returns device nodes only for VFs that are handed over
    /// to programs.
    fn give(
        &self,
        own: &[vf_alloc::Device],
        groups: &[(vf_alloc::Device, IommuGroup)],
        pool: &VfPool,
    ) -> Result<Vec<DeviceSpec>, VfioError> {
        if groups.is_empty() {
            return Ok(Vec::new());
        }
        let usable = [own, &healthy(pool)].concat();
        groups.iter().try_for_each(|(vf, group)| check_pool(vf, group, &usable))?;
        let Lister { given, vfs, .. } = &*self.lister;
        given.give(own, groups, vfs.records(), Instant::now())?;
        Ok(device_nodes(groups))
    }
}

pub(super) const OPTIONS: DevicePluginOptions =
    DevicePluginOptions { pre_start_required: false, get_preferred_allocation_available: true };

/// Reads the cards on a thread that may block.
async fn look<T: Send + 'static>(
    vfs: &Arc<Vfs>,
    work: impl FnOnce(Cards<'_>) -> T + Send + 'static,
) -> Result<T, Status> {
    let host = Arc::clone(vfs.host());
    let looked = vfs.host().look(move || work(host.cards())).await;
    looked.map_err(|failure| Status::internal(failure.message))
}

/// The environment variable with a container's devices, named as other SR-IOV device plugins name it.
fn variable(resource: &str) -> String {
    let in_capitals = |letter: char| match letter.is_ascii_alphanumeric() {
        true => letter.to_ascii_uppercase(),
        false => '_',
    };
    format!("PCIDEVICE_{}", resource.chars().map(in_capitals).collect::<String>())
}

impl Lister {
    /// The pool's VFs with their health. VFs that Allocate would refuse are unhealthy: a refused Allocate fails the pod
    /// for good, and a Deployment replaces it endlessly.
    async fn list(&self, pool: VfPool) -> Result<ListAndWatchResponse, Status> {
        let of_pool: Vec<_> = pool.vfs.iter().map(device).collect();
        let find = move |cards: Cards<'_>| {
            of_pool.into_iter().map(|vf| Found::of(cards, vf)).collect::<Vec<_>>()
        };
        let found = look(&self.vfs, find).await?;
        // Only shared groups need the kubelet's list of pods, which costs a call per update.
        if found.iter().any(Found::shares_its_group) {
            self.ask_kubelet().await;
        }
        let ids = pool.vfs.iter().map(|vf| vf.device.clone()).collect();
        self.advertised.lock().learn(ids, Instant::now());
        let (holders, healthy) = (self.given.holders(self.vfs.records()), healthy(&pool));
        let devices = found.into_iter().map(|found| {
            let is_usable =
                healthy.contains(&found.vf) && self.can_be_opened(&found, &healthy, &holders);
            Device {
                id: found.vf.to_string(),
                health: if is_usable { HEALTHY } else { UNHEALTHY }.into(),
                topology: found.numa_node.map(on_node),
            }
        });
        Ok(ListAndWatchResponse { devices: devices.collect() })
    }

    /// Whether a container can open the VF now, if it is handed over to programs.
    fn can_be_opened(
        &self,
        Found { vf, group, .. }: &Found,
        healthy: &[vf_alloc::Device],
        holders: &Holders,
    ) -> bool {
        let shared = match group {
            Ok(group) => group.as_ref().and_then(|it| problem_of(vf, it, healthy, holders)),
            Err(_) => None,
        };
        let problem = group.as_ref().err().or(shared.as_ref());
        self.problems.note(vf, problem);
        problem.is_none()
    }

    /// Asks the kubelet which VFs pods have, unless it was asked recently.
    async fn ask_kubelet(&self) {
        let asked = Instant::now();
        if !self.given.is_outdated(asked) {
            return;
        }
        let listed = pod_resources::all_devices(&self.settings).await;
        let listed = listed.map(|pods| pods.into_iter().map(|(_, vfs)| vfs).collect());
        self.given.learn(listed.map_err(|why| why.to_string()), asked);
    }
}

impl Found {
    fn of(cards: Cards<'_>, vf: vf_alloc::Device) -> Self {
        let group = group_of(cards, &vf);
        Self { numa_node: cards.placement(&vf).numa_node, group, vf }
    }

    fn shares_its_group(&self) -> bool {
        matches!(&self.group, Ok(Some(group)) if group.devices.len() > 1)
    }
}

fn device(vf: &PooledVf) -> vf_alloc::Device {
    vf.device.as_str().into()
}

/// The VFs that the pool can allocate.
fn healthy(pool: &VfPool) -> Vec<vf_alloc::Device> {
    pool.vfs.iter().filter(|vf| vf.problem.is_empty()).map(device).collect()
}

fn on_node(node: u32) -> TopologyInfo {
    TopologyInfo { nodes: vec![NumaNode { id: node.into() }] }
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
        // After a pod got a VF, the kubelet must not choose another one of the same group.
        let given = WatchStream::from_changes(self.lister.given.subscribe());
        // A removed pool ends the stream, and with it the resource.
        let news = reports.merge(looks).merge(given);
        let pools = news.map(pool).take_while(Option::is_some);
        let lister = Arc::clone(&self.lister);
        let lists = pools.then(move |pool| {
            let lister = Arc::clone(&lister);
            async move { lister.list(pool.unwrap_or_default()).await }
        });
        // The kubelet only gets lists that differ from the last one.
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
        let Lister { vfs, given, .. } = &*self.lister;
        for asked in request.into_inner().container_requests {
            let holders = given.holders(vfs.records());
            let device_i_ds = look(vfs, move |cards| preferred(cards, &holders, asked)).await?;
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
