//! VFs that a kubelet hands out. It is made of its two sockets: a real one takes a cluster.

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        mpsc::{Receiver, Sender, channel},
    },
    time::Duration,
};

use e2e::{Answer, Call, Lab, Netns, Settings, Timeouts, openmetrics, wait_for};
use offload_proto::kubelet::{
    deviceplugin::{
        Empty, RegisterRequest,
        device_plugin_client::DevicePluginClient,
        registration_server::{Registration, RegistrationServer},
    },
    podresources::{
        ContainerDevices, ContainerResources, GetPodResourcesRequest, GetPodResourcesResponse,
        ListPodResourcesRequest, ListPodResourcesResponse, PodResources,
        pod_resources_lister_server::{PodResourcesLister, PodResourcesListerServer},
    },
};
use tempfile::TempDir;
use tokio::{net::UnixListener, runtime::Runtime};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{
    Request, Response, Status,
    transport::{Endpoint, Server},
};

const LIMIT: Duration = Duration::from_secs(60);
/// How long one look waits for a message.
const LOOK: Duration = Duration::from_millis(100);
/// VFs that are not the kubelet's, and a network on them.
const OURS: &str = r#"
[[pool]]
name = "ours"
select = ["p0#2-3"]
[[network]]
name = "plain"
pool = "ours"
subnets = [{ cidr = "10.77.0.0/24" }]
"#;
const RESOURCE: &str = "dpu-offload.io/default";

/// The devices that pods of the namespace `shop` were given, by the pods' names.
type Given = Arc<Mutex<HashMap<String, String>>>;

/// The kubelet's sockets, for as long as it is there.
struct Kubelet {
    registered: Receiver<RegisterRequest>,
    given: Given,
    /// `None`: it has ended.
    executor: Option<Runtime>,
    folder: TempDir,
}

struct Registrar(Mutex<Sender<RegisterRequest>>);

#[tonic::async_trait]
impl Registration for Registrar {
    async fn register(&self, request: Request<RegisterRequest>) -> Result<Response<Empty>, Status> {
        self.0.lock().unwrap().send(request.into_inner()).unwrap();
        Ok(Response::new(Empty {}))
    }
}

/// As kubelet 1.20 has it: without `Get`.
struct Pods(Given);

#[tonic::async_trait]
impl PodResourcesLister for Pods {
    async fn list(
        &self,
        _request: Request<ListPodResourcesRequest>,
    ) -> Result<Response<ListPodResourcesResponse>, Status> {
        let given = self.0.lock().unwrap();
        let pod = |(name, device): (&String, &String)| {
            let resource_name = RESOURCE.to_owned();
            let devices =
                vec![ContainerDevices { resource_name, device_ids: vec![device.clone()] }];
            let containers = vec![ContainerResources { name: "web".into(), devices }];
            PodResources { name: name.clone(), namespace: "shop".into(), containers }
        };
        let pod_resources = given.iter().map(pod).collect();
        Ok(Response::new(ListPodResourcesResponse { pod_resources }))
    }

    async fn get(
        &self,
        _request: Request<GetPodResourcesRequest>,
    ) -> Result<Response<GetPodResourcesResponse>, Status> {
        Err(Status::unimplemented("unknown method Get"))
    }
}

impl Kubelet {
    fn start() -> Self {
        let folder = tempfile::Builder::new().prefix("offload-kubelet-").tempdir().unwrap();
        let executor = Runtime::new().unwrap();
        let _entered = executor.enter();
        let (sender, registered) = channel();
        let given = Given::default();
        let registrar = RegistrationServer::new(Registrar(Mutex::new(sender)));
        let incoming = listen(&folder.path().join("kubelet.sock"));
        executor.spawn(Server::builder().add_service(registrar).serve_with_incoming(incoming));
        let pods = PodResourcesListerServer::new(Pods(Arc::clone(&given)));
        let incoming = listen(&folder.path().join("pods.sock"));
        executor.spawn(Server::builder().add_service(pods).serve_with_incoming(incoming));
        drop(_entered);
        Self { registered, given, executor: Some(executor), folder }
    }

    fn pods_socket(&self) -> PathBuf {
        self.folder.path().join("pods.sock")
    }

    fn registered(&self) -> RegisterRequest {
        wait_for("the agent to register", LIMIT, || self.registered.recv_timeout(LOOK).ok())
    }

    fn gives(&self, pod: &str, device: &str) {
        self.given.lock().unwrap().insert(pod.into(), device.into());
    }

    /// What it is told at this moment: the devices with their health.
    fn devices(&self, registered: &RegisterRequest) -> Vec<(String, String)> {
        let path = self.folder.path().join(&registered.endpoint);
        let endpoint = Endpoint::from_shared(format!("unix://{}", path.display())).unwrap();
        let list = async || {
            let mut client = DevicePluginClient::new(endpoint.connect().await.ok()?);
            let mut lists = client.list_and_watch(Empty {}).await.ok()?.into_inner();
            Some(lists.message().await.ok()??.devices)
        };
        let executor = self.executor.as_ref().unwrap();
        // It listens for a moment only, so that it may find the resource being offered again.
        let devices = wait_for("the devices", LIMIT, || executor.block_on(list()));
        devices.into_iter().map(|device| (device.id, device.health)).collect()
    }

    /// Likewise, once all are known.
    fn all_devices(&self, registered: &RegisterRequest) -> Vec<(String, String)> {
        wait_for("all four VFs", LIMIT, || {
            Some(self.devices(registered)).filter(|devices| devices.len() == 4)
        })
    }

    fn waits_for(&self, registered: &RegisterRequest, device: &str, health: &str) {
        wait_for(&format!("{device} to be {health}"), LIMIT, || {
            let devices = self.devices(registered);
            devices
                .iter()
                .any(|(id, is)| (id.as_str(), is.as_str()) == (device, health))
                .then_some(())
        });
    }

    fn stop(&mut self) {
        self.executor.take().unwrap().shutdown_background();
        fs::remove_file(self.pods_socket()).unwrap();
    }

    /// A lab whose one pool is this kubelet's.
    fn lab(&self) -> Lab {
        self.lab_with(Settings::default(), "")
    }

    /// A lab whose pool `default` is this kubelet's, and with these sections of the service's configuration.
    fn lab_with(&self, settings: Settings, sections: &str) -> Lab {
        let (folder, pods) = (self.folder.path(), self.pods_socket());
        let others = format!("[device_plugin]\nfolder = {folder:?}\npod_resources = {pods:?}\n");
        let timeouts = Timeouts { others, ..Timeouts::default() };
        // What follows the pool `default` in the file.
        let service = format!("pinned_only = true\n{sections}");
        Lab::start(&Settings { timeouts, service, ..settings })
    }
}

fn listen(path: &Path) -> UnixListenerStream {
    UnixListenerStream::new(UnixListener::bind(path).unwrap())
}

/// ADD for the pod of that name in the namespace `shop`.
fn add(lab: &Lab, pod: &str, netns: &Netns) -> Answer {
    add_to(lab, "blue", "eth0", pod, netns)
}

fn add_to(lab: &Lab, network: &str, interface: &str, pod: &str, netns: &Netns) -> Answer {
    let labels = format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME={pod};K8S_POD_UID=1");
    let call = Call::new("ADD", &lab.configuration(network));
    let call = call.of(netns.name(), Some(&netns.path()), interface);
    lab.execute(&call.with("CNI_ARGS", labels))
}

#[test]
fn a_pod_gets_the_vf_that_the_kubelet_chose_and_one_without_gets_none() {
    let mut kubelet = Kubelet::start();
    let lab = kubelet.lab();
    let registered = kubelet.registered();
    assert_eq!(registered.resource_name, RESOURCE);
    let devices = kubelet.all_devices(&registered);
    let (chosen, _) = &devices[2];
    kubelet.waits_for(&registered, chosen, "Healthy");
    kubelet.gives("cart-0", chosen);

    let (cart, greedy) = (Netns::new("cart"), Netns::new("greedy"));
    let result = add(&lab, "cart-0", &cart).result();
    assert_eq!(result["interfaces"][0]["pciID"], chosen.as_str());
    assert_eq!(add(&lab, "cart-0", &cart).result(), result, "likewise when it is repeated");
    let refused = ["VF pool \"default\" ", "dpu-offload.io/default", "POOL_PINNED_ONLY"];
    add(&lab, "greedy-0", &greedy).fails(140, &refused);
    lab.add("blue", &greedy, "eth0").fails(140, &refused);
    // The kubelet lies: it is the other pod's.
    kubelet.gives("greedy-0", chosen);
    add(&lab, "greedy-0", &greedy).fails(108, &[chosen, "is attached"]);

    kubelet.stop();
    let socket = kubelet.pods_socket();
    add(&lab, "greedy-0", &greedy).fails(11, &["KUBELET_FAILED", socket.to_str().unwrap()]);
    lab.assert_invariants();
    lab.del("blue", &cart, "eth0").nothing();
    lab.assert_clean_slate();
}

/// Each is asked for twice, first without the VF, which the DPU refuses.
#[test]
fn the_kubelets_vfs_are_moved_before_the_dpu_has_answered() {
    let kubelet = Kubelet::start();
    let lab = kubelet.lab_with(Settings { has_metrics: true, ..Settings::default() }, "");
    let registered = kubelet.registered();
    let devices = kubelet.all_devices(&registered);
    let pods = [("cart-0", Netns::new("cart")), ("till-0", Netns::new("till"))];
    for ((name, netns), (device, _)) in pods.iter().zip(&devices) {
        kubelet.waits_for(&registered, device, "Healthy");
        kubelet.gives(name, device);
        let _ = add(&lab, name, netns).result();
    }
    let page = openmetrics::scrape(&lab.card.host).unwrap();
    let labels = [("outcome", "right")];
    let right = openmetrics::value(&page, "dpu_offload_agent_guesses", "_total", &labels);
    assert_eq!(right, Some(2.0));
    lab.assert_invariants();
}

#[test]
fn a_vf_that_the_host_uses_itself_is_unhealthy_for_so_long() {
    let kubelet = Kubelet::start();
    let lab = kubelet.lab();
    let registered = kubelet.registered();
    let device = kubelet.all_devices(&registered)[1].0.clone();
    kubelet.waits_for(&registered, &device, "Healthy");
    let links = lab.card.host.json("ip", &["link"]);
    let has_device = |link: &&serde_json::Value| {
        link["ifalias"].as_str().is_some_and(|alias| alias.split(' ').any(|word| word == device))
    };
    let name = links.iter().find(has_device).unwrap()["ifname"].as_str().unwrap();
    lab.card.host.ip(&["address", "add", "192.0.2.1/24", "dev", name]);
    lab.card.host.ip(&["link", "set", name, "up"]);
    kubelet.waits_for(&registered, &device, "Unhealthy");
    lab.card.host.ip(&["address", "flush", "dev", name]);
    lab.card.host.ip(&["link", "set", name, "down"]);
    kubelet.waits_for(&registered, &device, "Healthy");
}

/// As Multus calls: the default network first, whose pool is not the kubelet's.
#[test]
fn the_kubelets_vf_is_for_the_interface_whose_network_is_on_its_pool() {
    let kubelet = Kubelet::start();
    let lab = kubelet.lab_with(Settings { pool: 2, ..Settings::default() }, OURS);
    let registered = kubelet.registered();
    let chosen = wait_for("both VFs of the kubelet's", LIMIT, || {
        let devices = kubelet.devices(&registered);
        (devices.len() == 2).then(|| devices[0].0.clone())
    });
    kubelet.waits_for(&registered, &chosen, "Healthy");
    kubelet.gives("cart-0", &chosen);
    let cart = Netns::new("cart");
    let first = add_to(&lab, "plain", "eth0", "cart-0", &cart).result();
    assert_ne!(first["interfaces"][0]["pciID"], chosen.as_str());
    let second = add_to(&lab, "blue", "net1", "cart-0", &cart).result();
    assert_eq!(second["interfaces"][0]["pciID"], chosen.as_str());
    lab.assert_invariants();
}
