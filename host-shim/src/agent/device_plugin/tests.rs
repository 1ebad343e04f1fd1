//! The room beside a kubelet that is made of its two sockets only: a real one takes a cluster.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use offload_proto::{
    Reason,
    kubelet::{
        deviceplugin::{
            AllocateRequest, ContainerAllocateRequest, Device, Empty, ListAndWatchResponse,
            RegisterRequest,
            device_plugin_client::DevicePluginClient,
            registration_server::{Registration, RegistrationServer},
        },
        podresources::{
            ContainerDevices, ContainerResources, GetPodResourcesRequest, GetPodResourcesResponse,
            ListPodResourcesRequest, ListPodResourcesResponse, PodResources,
            pod_resources_lister_server::{PodResourcesLister, PodResourcesListerServer},
        },
    },
    v1::{Pod, PooledVf},
};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{UnixListener, UnixStream},
    sync::mpsc,
    task::yield_now,
    time::timeout,
};
use tokio_stream::wrappers::UnixListenerStream;
use tokio_util::task::AbortOnDropHandle;
use tonic::{
    Request, Response, Status, Streaming,
    transport::{Channel, Endpoint, Server},
};

use super::*;
use crate::protocol::Key;

const LIMIT: Duration = Duration::from_secs(20);

/// The kubelet's own socket in its folder.
struct Registrar {
    /// The version that it speaks.
    version: &'static str,
    heard: mpsc::UnboundedSender<RegisterRequest>,
}

#[tonic::async_trait]
impl Registration for Registrar {
    async fn register(&self, request: Request<RegisterRequest>) -> Result<Response<Empty>, Status> {
        let request = request.into_inner();
        let is_spoken = request.version == self.version;
        self.heard.send(request).unwrap();
        match is_spoken {
            true => Ok(Response::new(Empty {})),
            false => Err(Status::unknown(format!("supported version is {}", self.version))),
        }
    }
}

/// The end of it is the end of its sockets.
struct Kubelet {
    heard: mpsc::UnboundedReceiver<RegisterRequest>,
    _server: AbortOnDropHandle<()>,
}

/// As a kubelet does at its start: what is in its folder is removed, and its own socket made.
fn kubelet(folder: &Path, version: &'static str) -> Kubelet {
    for entry in std::fs::read_dir(folder).unwrap() {
        std::fs::remove_file(entry.unwrap().path()).unwrap();
    }
    let (sender, heard) = mpsc::unbounded_channel();
    let registrar = Registrar { version, heard: sender };
    let listener = UnixListener::bind(folder.join("kubelet.sock")).unwrap();
    let server = Server::builder()
        .add_service(RegistrationServer::new(registrar))
        .serve_with_incoming(UnixListenerStream::new(listener));
    let server = tokio::spawn(async move { server.await.unwrap() });
    Kubelet { heard, _server: AbortOnDropHandle::new(server) }
}

impl Kubelet {
    /// What is asked of it next, be it refused or not.
    async fn registered(&mut self) -> RegisterRequest {
        timeout(LIMIT, self.heard.recv()).await.expect("nobody registers").unwrap()
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

/// A room that keeps its offers, and knows a healthy VF and a bad one; and its kubelet's folder.
struct Stage {
    room: Arc<DevicePlugin>,
    folder: TempDir,
    _keeper: AbortOnDropHandle<()>,
}

impl Stage {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let room = Arc::new(DevicePlugin::new(Some(settings(folder.path()))));
        let ours = VfPool { pinned_only: false, ..pool("ours", &[("d000:00:00.3", "")]) };
        let gold = pool("gold", &[("d000:00:00.1", ""), ("d000:00:00.2", "quarantined")]);
        room.learn(VfPools { pools: vec![ours, gold] });
        let keeper = Arc::clone(&room);
        let keeper = tokio::spawn(async move { match keeper.keep().await {} });
        Self { room, folder, _keeper: AbortOnDropHandle::new(keeper) }
    }

    fn plugins(&self) -> PathBuf {
        self.folder.path().join("device-plugins")
    }

    fn with_folder(self) -> Self {
        std::fs::create_dir(self.plugins()).unwrap();
        self
    }

    /// As the kubelet calls back.
    async fn dial(&self, registered: &RegisterRequest) -> DevicePluginClient<Channel> {
        let address = format!("unix://{}", self.plugins().join(&registered.endpoint).display());
        let channel = Endpoint::from_shared(address).unwrap().connect().await.unwrap();
        DevicePluginClient::new(channel)
    }

    async fn complete(&self) -> Result<Option<String>, Failure> {
        let deadline = Instant::now() + LIMIT;
        let completed = self.room.complete(request(), deadline).await?;
        Ok(completed.device.map(|device| device.to_string()))
    }
}

fn request() -> AddRequest {
    AddRequest {
        key: Key { container_id: "c".into(), interface_name: "eth0".into() },
        netns: "/n".into(),
        configuration: "blue".into(),
        network: "blue".into(),
        pod: Pod { namespace: "shop".into(), name: "cart-0".into(), uid: String::new() },
        device: None,
        mac: None,
        addresses: Vec::new(),
        bandwidth: Default::default(),
        device_info_file: None,
    }
}

async fn next(lists: &mut Streaming<ListAndWatchResponse>) -> Option<Vec<(String, String)>> {
    let list = timeout(LIMIT, lists.message()).await.expect("no list").unwrap()?;
    Some(list.devices.into_iter().map(|Device { id, health }| (id, health)).collect())
}

fn told(list: &[(&str, &str)]) -> Option<Vec<(String, String)>> {
    Some(list.iter().map(|&(id, health)| (id.to_owned(), health.to_owned())).collect())
}

#[tokio::test]
async fn the_kubelet_is_told_the_vfs_of_its_pools_and_their_health() {
    let stage = Stage::new().with_folder();
    let mut kubelet = kubelet(&stage.plugins(), "v1beta1");
    let registered = kubelet.registered().await;
    assert_eq!(registered.resource_name, "dpu-offload.io/gold");
    let mut client = stage.dial(&registered).await;
    let options = client.get_device_plugin_options(Empty {}).await.unwrap().into_inner();
    assert!(!options.pre_start_required && !options.get_preferred_allocation_available);
    let mut lists = client.list_and_watch(Empty {}).await.unwrap().into_inner();
    let first = [("d000:00:00.1", "Healthy"), ("d000:00:00.2", "Unhealthy")];
    assert_eq!(next(&mut lists).await, told(&first));
    let gold = pool("gold", &[("d000:00:00.1", "the host can't find it"), ("d000:00:00.2", "")]);
    stage.room.learn(VfPools { pools: vec![gold] });
    let second = [("d000:00:00.1", "Unhealthy"), ("d000:00:00.2", "Healthy")];
    assert_eq!(next(&mut lists).await, told(&second));
    stage.room.learn(VfPools::default());
    assert_eq!(next(&mut lists).await, None, "the pool is no more");
    assert!(kubelet.heard.try_recv().is_err(), "one resource, registered once");
}

#[tokio::test]
async fn a_container_is_told_its_vf_and_one_that_is_none_is_refused() {
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

#[tokio::test]
async fn a_kubelet_that_begins_anew_is_told_anew() {
    let stage = Stage::new().with_folder();
    let mut first = kubelet(&stage.plugins(), "v1beta1");
    first.registered().await;
    drop(first);
    let mut second = kubelet(&stage.plugins(), "v1beta1");
    let registered = second.registered().await;
    let mut client = stage.dial(&registered).await;
    let mut lists = client.list_and_watch(Empty {}).await.unwrap().into_inner();
    assert!(next(&mut lists).await.is_some());
    // Only its socket is removed, as by a hand that cleans up.
    std::fs::remove_file(stage.plugins().join(&registered.endpoint)).unwrap();
    second.registered().await;
    stage.dial(&registered).await;
}

#[tokio::test]
async fn a_kubelet_that_comes_late_or_speaks_another_version_is_waited_for() {
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

/// The kubelet's other socket.
#[derive(Default)]
struct Pods {
    /// Whether it has `Get`, or is older.
    has_get: bool,
    hangs: bool,
    pods: Vec<PodResources>,
}

#[tonic::async_trait]
impl PodResourcesLister for Pods {
    async fn list(
        &self,
        _request: Request<ListPodResourcesRequest>,
    ) -> Result<Response<ListPodResourcesResponse>, Status> {
        assert!(!self.has_get, "it would have been asked for the one");
        if self.hangs {
            pending::<()>().await;
        }
        Ok(Response::new(ListPodResourcesResponse { pod_resources: self.pods.clone() }))
    }

    async fn get(
        &self,
        _request: Request<GetPodResourcesRequest>,
    ) -> Result<Response<GetPodResourcesResponse>, Status> {
        if !self.has_get {
            return Err(Status::unimplemented("unknown method Get"));
        }
        Ok(Response::new(GetPodResourcesResponse { pod_resources: self.pods.first().cloned() }))
    }
}

fn pod(name: &str, resource: &str, devices: &[&str]) -> PodResources {
    let device_ids = devices.iter().map(ToString::to_string).collect();
    let devices = vec![ContainerDevices { resource_name: resource.into(), device_ids }];
    let container = ContainerResources { name: "web".into(), devices };
    PodResources { name: name.into(), namespace: "shop".into(), containers: vec![container] }
}

fn serve(stage: &Stage, pods: Pods) -> AbortOnDropHandle<()> {
    let path = stage.folder.path().join("pods.sock");
    let _ = std::fs::remove_file(&path);
    let listener = UnixListener::bind(path).unwrap();
    let server = Server::builder()
        .add_service(PodResourcesListerServer::new(pods))
        .serve_with_incoming(UnixListenerStream::new(listener));
    AbortOnDropHandle::new(tokio::spawn(async move { server.await.unwrap() }))
}

const GOLD: &str = "dpu-offload.io/gold";

#[tokio::test]
async fn a_pod_gets_the_vf_that_the_kubelet_chose_also_of_an_older_kubelet() {
    let stage = Stage::new();
    let cart = pod("cart-0", GOLD, &["D000:00:00.1"]);
    let chosen = Some("d000:00:00.1".to_owned());
    let one = Pods { has_get: true, pods: vec![cart.clone()], ..Pods::default() };
    let server = serve(&stage, one);
    assert_eq!(stage.complete().await, Ok(chosen.clone()));
    drop(server);
    let other = pod("cart-1", GOLD, &["d000:00:00.2"]);
    let _server = serve(&stage, Pods { pods: vec![other, cart], ..Pods::default() });
    assert_eq!(stage.complete().await, Ok(chosen));
}

#[tokio::test]
async fn a_pod_without_our_resource_gets_no_vf_named() {
    let stage = Stage::new();
    let cart = pod("cart-0", "example.com/card", &["card-1"]);
    let server = serve(&stage, Pods { pods: vec![cart], ..Pods::default() });
    assert_eq!(stage.complete().await, Ok(None));
    drop(server);
    let _server = serve(&stage, Pods::default());
    assert_eq!(stage.complete().await, Ok(None));
}

#[tokio::test]
async fn a_kubelet_that_hangs_lies_or_is_away_is_told_by_its_socket_in_time() {
    let stage = Stage::new();
    let failure = stage.complete().await.unwrap_err();
    assert_eq!(failure.reason, Reason::KubeletFailed);
    assert!(failure.message.contains("pod shop/cart-0") && failure.message.contains("pods.sock"));
    let tried = [
        (Pods { hangs: true, ..Pods::default() }, "did not answer within 1000 ms"),
        (
            Pods { has_get: true, pods: vec![pod("other", GOLD, &[])], ..Pods::default() },
            "speaks of pod shop/other instead",
        ),
        (
            Pods { pods: vec![pod("cart-0", GOLD, &["vf3"])], ..Pods::default() },
            "names \"vf3\", which is no VF",
        ),
    ];
    for (pods, words) in tried {
        let _server = serve(&stage, pods);
        let failure = timeout(LIMIT, stage.complete()).await.unwrap().unwrap_err();
        assert_eq!(failure.reason, Reason::KubeletFailed);
        assert!(failure.message.ends_with(words), "{failure}");
    }
}

#[tokio::test]
async fn a_pod_with_several_vfs_is_asked_to_name_them() {
    let stage = Stage::new();
    let cart = pod("cart-0", GOLD, &["d000:00:00.1", "d000:00:00.2"]);
    let _server = serve(&stage, Pods { pods: vec![cart], ..Pods::default() });
    let failure = stage.complete().await.unwrap_err();
    assert_eq!(failure.reason, Reason::InvalidRequest);
    assert!(failure.message.contains("several VFs (d000:00:00.1, d000:00:00.2)"), "{failure}");
}

/// Nobody listens where the kubelet would be asked.
#[tokio::test]
async fn who_names_a_vf_or_is_no_pod_or_has_no_kubelet_asks_nobody() {
    let stage = Stage::new();
    let deadline = Instant::now() + LIMIT;
    let named = AddRequest { device: Some("d000:00:00.9".into()), ..request() };
    let completed = stage.room.complete(named.clone(), deadline).await.unwrap();
    assert_eq!(completed.device, named.device);
    let bare = AddRequest { pod: Pod::default(), ..request() };
    assert_eq!(stage.room.complete(bare, deadline).await.unwrap().device, None);
    stage.room.learn(VfPools::default());
    assert_eq!(stage.complete().await, Ok(None));
    let without = DevicePlugin::new(None);
    without.learn(VfPools { pools: vec![pool("gold", &[])] });
    assert_eq!(without.complete(request(), deadline).await.unwrap().device, None);
}

/// A frame of HTTP/2.
fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let length = u8::try_from(payload.len()).unwrap();
    [&[0, 0, length, kind, flags, 0, 0, 0, stream], payload].concat()
}

/// The types of the frames on a stream until it ends.
async fn frames_of(stream: u8, connection: &mut UnixStream) -> Vec<u8> {
    let mut kinds = Vec::new();
    loop {
        let mut head = [0; 9];
        connection.read_exact(&mut head).await.unwrap();
        let mut payload = vec![0; usize::from(head[1]) << 8 | usize::from(head[2])];
        connection.read_exact(&mut payload).await.unwrap();
        if head[8] == stream {
            kinds.push(head[3]);
            if head[3] == RESET || head[4] & END_STREAM != 0 {
                return kinds;
            }
        }
    }
}

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RESET: u8 = 3;
const SETTINGS: u8 = 4;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// Kubelet 1.20 is such a one; later calls name by number what the first one said.
#[tokio::test]
async fn a_kubelet_that_calls_our_socket_by_its_path_is_answered() {
    let stage = Stage::new().with_folder();
    let registered = kubelet(&stage.plugins(), "v1beta1").registered().await;
    let path = stage.plugins().join(&registered.endpoint);
    let mut connection = UnixStream::connect(path).await.unwrap();
    let text = |text: &str| [&[u8::try_from(text.len()).unwrap()], text.as_bytes()].concat();
    let first = [
        b"\x83\x86\x44".as_slice(),
        &text("/v1beta1.DevicePlugin/GetDevicePluginOptions"),
        b"\x41",
        &text("/var/lib/kubelet/device-plugins/dpu-offload.io_gold.sock"),
        b"\x5f",
        &text("application/grpc"),
        b"\x40",
        &text("te"),
        &text("trailers"),
    ]
    .concat();
    let empty = [0; 5];
    let begun = [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
        frame(SETTINGS, 0, 0, &[]),
        frame(HEADERS, END_HEADERS, 1, &first),
        frame(DATA, END_STREAM, 1, &empty),
    ];
    connection.write_all(&begun.concat()).await.unwrap();
    let answer = timeout(LIMIT, frames_of(1, &mut connection)).await.unwrap();
    assert_eq!(answer, [HEADERS, DATA, HEADERS]);
    let again = b"\x83\x86\xc1\xc0\xbf\xbe";
    let more = [frame(HEADERS, END_HEADERS, 3, again), frame(DATA, END_STREAM, 3, &empty)];
    connection.write_all(&more.concat()).await.unwrap();
    let answer = timeout(LIMIT, frames_of(3, &mut connection)).await.unwrap();
    assert_eq!(answer, [HEADERS, DATA, HEADERS]);
}
