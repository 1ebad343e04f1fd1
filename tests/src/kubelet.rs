//! A fake kubelet that consists of its two sockets. A real one needs a cluster.

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc,
        mpsc::{Receiver, Sender, channel},
    },
    time::Duration,
};

use offload_proto::kubelet::{
    deviceplugin::{
        AllocateRequest, ContainerAllocateRequest, DeviceSpec, Empty, RegisterRequest,
        device_plugin_client::DevicePluginClient,
        registration_server::{Registration, RegistrationServer},
    },
    podresources::{
        ContainerDevices, ContainerResources, GetPodResourcesRequest, GetPodResourcesResponse,
        ListPodResourcesRequest, ListPodResourcesResponse, PodResources,
        pod_resources_lister_server::{PodResourcesLister, PodResourcesListerServer},
    },
};
use parking_lot::Mutex;
use serde_json::json;
use tempfile::TempDir;
use tokio::{net::UnixListener, runtime::Runtime};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{
    Request, Response, Status,
    transport::{Endpoint, Server},
};

use crate::{Lab, Settings, Timeouts, wait_for};

const LIMIT: Duration = Duration::from_secs(60);
/// Interval between looks.
const LOOK: Duration = Duration::from_millis(100);
const RESOURCE: &str = "dpu-offload.io/default";

/// Devices of pods in the namespace `shop`, by pod name.
type Given = Arc<Mutex<HashMap<String, String>>>;

/// The kubelet's sockets while it runs.
#[derive(Debug)]
pub struct Kubelet {
    registered: Receiver<RegisterRequest>,
    given: Given,
    /// `None` after it ended.
    executor: Option<Runtime>,
    folder: TempDir,
}

struct Registrar(Mutex<Sender<RegisterRequest>>);

#[tonic::async_trait]
impl Registration for Registrar {
    async fn register(&self, request: Request<RegisterRequest>) -> Result<Response<Empty>, Status> {
        self.0.lock().send(request.into_inner()).unwrap();
        Ok(Response::new(Empty {}))
    }
}

/// The PodResources service of kubelet 1.20, without `Get`.
struct Pods(Given);

#[tonic::async_trait]
impl PodResourcesLister for Pods {
    async fn list(
        &self,
        _request: Request<ListPodResourcesRequest>,
    ) -> Result<Response<ListPodResourcesResponse>, Status> {
        let given = self.0.lock();
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
    /// Starts a kubelet that has assigned no devices.
    ///
    /// # Panics
    /// If it cannot listen.
    #[must_use]
    pub fn start() -> Self {
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

    /// The PodResources socket.
    #[must_use]
    pub fn pods_socket(&self) -> PathBuf {
        self.folder.path().join("pods.sock")
    }

    /// Waits for the next registration of an agent.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn registered(&self) -> RegisterRequest {
        wait_for("the agent to register", LIMIT, || self.registered.recv_timeout(LOOK).ok())
    }

    /// Adds a container to the kubelet's checkpoint that PodResources does not list: an init container that alone
    /// requests a VF.
    ///
    /// # Panics
    /// If it cannot be written.
    pub fn add_unreported_container(&self, uid: &str, container: &str) {
        let entry = json!({"PodUID": uid, "ContainerName": container, "ResourceName": RESOURCE});
        let checkpoint = json!({"Data": {"PodDeviceEntries": [entry]}, "Checksum": 1});
        let path = self.folder.path().join("kubelet_internal_checkpoint");
        fs::write(path, checkpoint.to_string()).unwrap();
    }

    /// Takes the device of a pod back.
    ///
    /// # Panics
    /// If a call of the agent panicked.
    pub fn take_back(&self, pod: &str) {
        self.given.lock().remove(pod);
    }

    /// Sections of an agent's configuration for this kubelet.
    #[must_use]
    pub fn section(&self) -> String {
        let (folder, pods) = (self.folder.path(), self.pods_socket());
        format!("[device_plugin]\nfolder = {folder:?}\npod_resources = {pods:?}\n")
    }

    /// Calls Allocate with these devices for a container, and returns its device nodes.
    ///
    /// # Errors
    /// The agent's refusal.
    ///
    /// # Panics
    /// If the agent cannot be called.
    pub fn allocate(
        &self,
        registered: &RegisterRequest,
        devices: &[&str],
    ) -> Result<Vec<DeviceSpec>, Status> {
        let path = self.folder.path().join(&registered.endpoint);
        let endpoint = Endpoint::from_shared(format!("unix://{}", path.display())).unwrap();
        let devices_i_ds = devices.iter().map(ToString::to_string).collect();
        let container_requests = vec![ContainerAllocateRequest { devices_i_ds }];
        let executor = self.executor.as_ref().unwrap();
        // The agent registers again while no kubelet listens, and has no socket for a moment.
        let channel = wait_for("the agent's socket", LIMIT, || {
            executor.block_on(async { endpoint.connect().await.ok() })
        });
        let request = AllocateRequest { container_requests };
        let answer = executor.block_on(DevicePluginClient::new(channel).allocate(request))?;
        let answer = answer.into_inner();
        Ok(answer.container_responses.into_iter().flat_map(|it| it.devices).collect())
    }

    /// Assigns a device to a pod.
    ///
    /// # Panics
    /// If a call of the agent panicked.
    pub fn assign(&self, pod: &str, device: &str) {
        self.given.lock().insert(pod.into(), device.into());
    }

    /// Devices that the plugin lists now, with their health.
    ///
    /// # Panics
    /// If the plugin lists nothing.
    #[must_use]
    pub fn devices(&self, registered: &RegisterRequest) -> Vec<(String, String)> {
        let path = self.folder.path().join(&registered.endpoint);
        let endpoint = Endpoint::from_shared(format!("unix://{}", path.display())).unwrap();
        let list = async || {
            let mut client = DevicePluginClient::new(endpoint.connect().await.ok()?);
            let mut lists = client.list_and_watch(Empty {}).await.ok()?.into_inner();
            Some(lists.message().await.ok()??.devices)
        };
        let executor = self.executor.as_ref().unwrap();
        // Each call listens only for a moment, so a new registration may be in progress.
        let devices = wait_for("the devices", LIMIT, || executor.block_on(list()));
        devices.into_iter().map(|device| (device.id, device.health)).collect()
    }

    /// Waits until all four devices of a lab are listed.
    ///
    /// # Panics
    /// If they do not become known.
    pub fn all_devices(&self, registered: &RegisterRequest) -> Vec<(String, String)> {
        wait_for("all four VFs", LIMIT, || {
            Some(self.devices(registered)).filter(|devices| devices.len() == 4)
        })
    }

    /// Waits until the plugin lists a device with this health.
    ///
    /// # Panics
    /// If that does not happen in time.
    pub fn wait_for_device(&self, registered: &RegisterRequest, device: &str, health: &str) {
        wait_for(&format!("{device} to be {health}"), LIMIT, || {
            let devices = self.devices(registered);
            devices
                .iter()
                .any(|(id, is)| (id.as_str(), is.as_str()) == (device, health))
                .then_some(())
        });
    }

    /// Ends the kubelet.
    ///
    /// # Panics
    /// If it has ended.
    pub fn stop(&mut self) {
        self.executor.take().unwrap().shutdown_background();
        fs::remove_file(self.pods_socket()).unwrap();
    }

    /// A lab whose only pool belongs to this kubelet.
    #[must_use]
    pub fn lab(&self) -> Lab {
        self.lab_with(Settings::default(), "")
    }

    /// A lab whose pool `default` belongs to this kubelet, with further sections of the service's configuration.
    #[must_use]
    pub fn lab_with(&self, settings: Settings, sections: &str) -> Lab {
        let others = format!("reconcile_s = 1\n{}", self.section());
        let timeouts = Timeouts { others, ..Timeouts::default() };
        // The sections after the pool `default` in the file.
        let service = format!("pinned_only = true\n{sections}");
        Lab::start(&Settings { timeouts, service, ..settings })
    }
}

fn listen(path: &Path) -> UnixListenerStream {
    UnixListenerStream::new(UnixListener::bind(path).unwrap())
}
