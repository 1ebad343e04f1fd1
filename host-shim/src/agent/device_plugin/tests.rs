//! Tests with a fake kubelet that consists of its two sockets; a real one needs a cluster.

mod devices;
mod pods;
mod raw;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use offload_proto::{
    Reason,
    kubelet::deviceplugin::{
        AllocateRequest, ContainerAllocateRequest, ContainerPreferredAllocationRequest, Device,
        Empty, ListAndWatchResponse, PreferredAllocationRequest, RegisterRequest,
        device_plugin_client::DevicePluginClient,
        registration_server::{Registration, RegistrationServer},
    },
    v1::{Pod, PooledVf},
};
use tempfile::TempDir;
use test_clock::within;
use tokio::{net::UnixListener, sync::mpsc, task::yield_now, time::timeout};
use tokio_stream::wrappers::UnixListenerStream;
use tokio_util::task::AbortOnDropHandle;
use tonic::{
    Request, Response, Status, Streaming,
    transport::{Channel, Endpoint, Server},
};

use super::*;
use crate::{
    agent::vfs::tests::{vfs, vfs_of},
    protocol::Key,
    vf_source::VfSource,
};

const LIMIT: Duration = Duration::from_secs(20);

/// The kubelet's registration socket.
struct Registrar {
    /// The API version that it accepts.
    version: &'static str,
    registrations: mpsc::UnboundedSender<RegisterRequest>,
}

#[tonic::async_trait]
impl Registration for Registrar {
    async fn register(&self, request: Request<RegisterRequest>) -> Result<Response<Empty>, Status> {
        let request = request.into_inner();
        let is_spoken = request.version == self.version;
        self.registrations.send(request).unwrap();
        match is_spoken {
            true => Ok(Response::new(Empty {})),
            false => Err(Status::unknown(format!("supported version is {}", self.version))),
        }
    }
}

/// Dropping it closes its sockets.
struct Kubelet {
    registrations: mpsc::UnboundedReceiver<RegisterRequest>,
    _server: AbortOnDropHandle<()>,
}

/// Starts a kubelet: empties its folder and creates its socket.
fn kubelet(folder: &Path, version: &'static str) -> Kubelet {
    for entry in std::fs::read_dir(folder).unwrap() {
        std::fs::remove_file(entry.unwrap().path()).unwrap();
    }
    let (sender, registrations) = mpsc::unbounded_channel();
    let registrar = Registrar { version, registrations: sender };
    let listener = UnixListener::bind(folder.join("kubelet.sock")).unwrap();
    let server = Server::builder()
        .add_service(RegistrationServer::new(registrar))
        .serve_with_incoming(UnixListenerStream::new(listener));
    let server = tokio::spawn(async move { server.await.unwrap() });
    Kubelet { registrations, _server: AbortOnDropHandle::new(server) }
}

impl Kubelet {
    /// The next registration, accepted or not.
    async fn registered(&mut self) -> RegisterRequest {
        within(LIMIT, self.registrations.recv()).await.expect("no registration").unwrap()
    }
}

fn pool(name: &str, vfs: &[(&str, &str)]) -> VfPool {
    let vf = |&(device, problem): &(&str, &str)| PooledVf {
        device: device.into(),
        problem: problem.into(),
    };
    VfPool { name: name.into(), pinned_only: true, vfs: vfs.iter().map(vf).collect() }
}

fn settings(folder: &Path) -> DevicePluginSettings {
    DevicePluginSettings {
        folder: folder.join("device-plugins"),
        pod_resources: folder.join("pods.sock"),
        answer_ms: 1000,
        ..DevicePluginSettings::default()
    }
}

/// A device plugin that keeps its registrations and knows a healthy and an unhealthy VF, with its kubelet's folder.
struct Stage {
    device_plugin: Arc<DevicePlugin>,
    folder: TempDir,
    _records: TempDir,
    _keeper: AbortOnDropHandle<()>,
}

impl Stage {
    fn new() -> Self {
        Self::with(vfs())
    }

    /// On a host with this VF source.
    fn of(source: impl VfSource + 'static) -> Self {
        Self::with(vfs_of(Arc::new(source)))
    }

    fn with((vfs, _records): (Arc<Vfs>, TempDir)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let device_plugin = Arc::new(DevicePlugin::new(Some(settings(folder.path())), vfs));
        let ours = VfPool { pinned_only: false, ..pool("ours", &[("d000:00:00.3", "")]) };
        let gold = pool("gold", &[("d000:00:00.1", ""), ("d000:00:00.2", "quarantined")]);
        device_plugin.learn(VfPools { pools: vec![ours, gold] });
        let keeper = Arc::clone(&device_plugin);
        let keeper = tokio::spawn(async move { match keeper.keep().await {} });
        Self { device_plugin, folder, _records, _keeper: AbortOnDropHandle::new(keeper) }
    }

    fn plugins(&self) -> PathBuf {
        self.folder.path().join("device-plugins")
    }

    fn with_folder(self) -> Self {
        std::fs::create_dir(self.plugins()).unwrap();
        self
    }

    /// Connects as the kubelet calls back.
    async fn dial(&self, registered: &RegisterRequest) -> DevicePluginClient<Channel> {
        let address = format!("unix://{}", self.plugins().join(&registered.endpoint).display());
        let channel = Endpoint::from_shared(address).unwrap().connect().await.unwrap();
        DevicePluginClient::new(channel)
    }

    async fn chosen(&self) -> Result<Option<String>, Failure> {
        let deadline = Instant::now() + LIMIT;
        let chosen = self.device_plugin.chosen(&refusal_of("gold"), &request(), deadline).await?;
        Ok(chosen.map(|device| device.to_string()))
    }
}

/// The DPU's refusal of an ADD that names no VF of a pool.
fn refusal_of(pool: &str) -> Failure {
    Failure::new(Reason::PoolPinnedOnly, format!("VF pool {pool:?}"))
}

fn request() -> AddRequest {
    let key = Key { container_id: "c".into(), interface_name: "eth0".into() };
    AddRequest {
        pod: Pod { namespace: "shop".into(), name: "cart-0".into(), uid: String::new() },
        ..AddRequest::plain(key, "/n".into(), "blue".into())
    }
}

async fn next(lists: &mut Streaming<ListAndWatchResponse>) -> Option<Vec<(String, String)>> {
    let list = within(LIMIT, lists.message()).await.expect("no list").unwrap()?;
    Some(list.devices.into_iter().map(|Device { id, health, .. }| (id, health)).collect())
}

fn listed(list: &[(&str, &str)]) -> Option<Vec<(String, String)>> {
    Some(list.iter().map(|&(id, health)| (id.to_owned(), health.to_owned())).collect())
}

#[tokio::test]
async fn kubelet_gets_vfs_and_health_of_pools() {
    let stage = Stage::new().with_folder();
    let mut kubelet = kubelet(&stage.plugins(), "v1beta1");
    let registered = kubelet.registered().await;
    assert_eq!(registered.resource_name, "dpu-offload.io/gold");
    let mut client = stage.dial(&registered).await;
    let options = client.get_device_plugin_options(Empty {}).await.unwrap().into_inner();
    assert!(!options.pre_start_required && options.get_preferred_allocation_available);
    let mut lists = client.list_and_watch(Empty {}).await.unwrap().into_inner();
    let first = [("d000:00:00.1", "Healthy"), ("d000:00:00.2", "Unhealthy")];
    assert_eq!(next(&mut lists).await, listed(&first));
    let gold = pool("gold", &[("d000:00:00.1", "the host can't find it"), ("d000:00:00.2", "")]);
    stage.device_plugin.learn(VfPools { pools: vec![gold] });
    let second = [("d000:00:00.1", "Unhealthy"), ("d000:00:00.2", "Healthy")];
    assert_eq!(next(&mut lists).await, listed(&second));
    stage.device_plugin.learn(VfPools::default());
    assert_eq!(next(&mut lists).await, None, "the pool is removed");
    assert!(kubelet.registrations.try_recv().is_err(), "one resource, registered once");
}

#[tokio::test]
async fn allocate_returns_vf_and_refuses_unknown_one() {
    let stage = Stage::new().with_folder();
    let mut kubelet = kubelet(&stage.plugins(), "v1beta1");
    let mut client = stage.dial(&kubelet.registered().await).await;
    let of = |id: &str| AllocateRequest {
        container_requests: vec![ContainerAllocateRequest { devices_i_ds: vec![id.into()] }],
    };
    let answer = client.allocate(of("d000:00:00.1")).await.unwrap().into_inner();
    let envs = &answer.container_responses[0].envs;
    assert_eq!(envs["PCIDEVICE_DPU_OFFLOAD_IO_GOLD"], "d000:00:00.1");
    let refused = client.allocate(of("d000:00:00.3")).await.unwrap_err();
    assert_eq!(refused.message(), "dpu-offload.io/gold has no device d000:00:00.3");
}

/// A refused Allocate would fail the pod for good.
#[tokio::test]
async fn vf_that_just_left_its_pool_is_allocated() {
    let stage = Stage::new().with_folder();
    let mut kubelet = kubelet(&stage.plugins(), "v1beta1");
    let mut client = stage.dial(&kubelet.registered().await).await;
    let mut lists = client.list_and_watch(Empty {}).await.unwrap().into_inner();
    assert!(next(&mut lists).await.is_some());
    stage.device_plugin.learn(VfPools { pools: vec![pool("gold", &[("d000:00:00.2", "")])] });
    assert_eq!(next(&mut lists).await, listed(&[("d000:00:00.2", "Healthy")]));
    let mut allocate = async |id: &str| {
        let container_requests = vec![ContainerAllocateRequest { devices_i_ds: vec![id.into()] }];
        client.allocate(AllocateRequest { container_requests }).await.is_ok()
    };
    assert!(allocate("d000:00:00.1").await);
    assert!(!allocate("d000:00:00.9").await, "it was in no list");
}

#[tokio::test(start_paused = true)]
async fn restarted_kubelet_gets_a_new_registration() {
    let stage = Stage::new().with_folder();
    let mut first = kubelet(&stage.plugins(), "v1beta1");
    first.registered().await;
    drop(first);
    let mut second = kubelet(&stage.plugins(), "v1beta1");
    let registered = second.registered().await;
    let mut client = stage.dial(&registered).await;
    let mut lists = client.list_and_watch(Empty {}).await.unwrap().into_inner();
    assert!(next(&mut lists).await.is_some());
    // Only the plugin's socket is removed, for example by a person who cleans up.
    std::fs::remove_file(stage.plugins().join(&registered.endpoint)).unwrap();
    second.registered().await;
    stage.dial(&registered).await;
}

#[tokio::test(start_paused = true)]
async fn registration_without_watch_is_repeated() {
    let stage = Stage::new().with_folder();
    let mut kubelet = kubelet(&stage.plugins(), "v1beta1");
    let first = kubelet.registered().await;
    assert_eq!(kubelet.registered().await, first);
}

#[tokio::test(start_paused = true)]
async fn registration_is_repeated_after_watch_ends() {
    let stage = Stage::new().with_folder();
    let mut kubelet = kubelet(&stage.plugins(), "v1beta1");
    let registered = kubelet.registered().await;
    let mut client = stage.dial(&registered).await;
    let mut lists = client.list_and_watch(Empty {}).await.unwrap().into_inner();
    assert!(next(&mut lists).await.is_some());
    drop((lists, client));
    assert_eq!(kubelet.registered().await, registered);
}

#[tokio::test]
async fn registration_removes_only_its_own_socket() {
    let stage = Stage::new().with_folder();
    let mut kubelet = kubelet(&stage.plugins(), "v1beta1");
    let path = stage.plugins().join(kubelet.registered().await.endpoint);
    let gone = async || {
        while path.exists() {
            yield_now().await;
        }
    };
    stage.device_plugin.learn(VfPools::default());
    within(LIMIT, gone()).await.expect("the socket stays");
    stage.device_plugin.learn(VfPools { pools: vec![pool("gold", &[])] });
    kubelet.registered().await;
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, "another's").unwrap();
    let Stage { _keeper, folder: _folder, .. } = stage;
    drop(_keeper);
    for _ in 0..10 {
        yield_now().await;
    }
    assert!(path.exists());
}

#[tokio::test(start_paused = true)]
async fn absent_or_incompatible_kubelet_is_waited_for() {
    let stage = Stage::new();
    for _ in 0..10 {
        yield_now().await;
    }
    let stage = stage.with_folder();
    let mut other = kubelet(&stage.plugins(), "v2");
    other.registered().await;
    drop(other);
    kubelet(&stage.plugins(), "v1beta1").registered().await;
}

#[tokio::test(start_paused = true)]
async fn registration_obstacle_is_one_sentence() {
    let stage = Stage::new();
    let (settings, pools) = (settings(stage.folder.path()), stage.device_plugin.pools.subscribe());
    let registration = ResourceRegistration::new(
        settings,
        "gold".into(),
        pools,
        Arc::clone(&stage.device_plugin.vfs),
    );
    let folder = stage.plugins();
    let error = registration.listen().unwrap_err();
    assert!(error.contains(&format!(" {}: ", folder.display())), "{error}");
    let stage = stage.with_folder();
    assert!(registration.listen().unwrap_err().ends_with("kubelet.sock yet"));
    let other = kubelet(&stage.plugins(), "v2");
    let error = registration.register().await.unwrap_err();
    assert!(error.contains("version v1beta1") && error.ends_with(" v2"), "{error}");
    drop(other);
    std::fs::remove_file(stage.plugins().join("kubelet.sock")).unwrap();
    // A suspended kubelet.
    let _silent = UnixListener::bind(stage.plugins().join("kubelet.sock")).unwrap();
    let error = timeout(LIMIT, registration.register()).await.unwrap().unwrap_err();
    assert!(error.ends_with("within 1000 ms"), "{error}");
}
