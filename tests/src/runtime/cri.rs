//! A minimal client of Kubernetes' container runtime interface (CRI v1).

use std::{path::Path, time::Duration};

use serde_json::Value;
use tokio::runtime::{Builder, Runtime};
use tonic::{
    Response, Status,
    transport::{Channel, Endpoint},
};

#[allow(unreachable_pub, unused_qualifications, clippy::all, reason = "generated")]
mod api {
    tonic::include_proto!("runtime.v1");
}

use api::runtime_service_client::RuntimeServiceClient;

/// Timeout of a call: that of the kubelet.
const LIMIT: Duration = Duration::from_secs(120);

/// Options of a pod.
#[derive(Clone, Copy, Debug, Default)]
pub struct PodOptions<'a> {
    /// Annotations.
    pub annotations: &'a [(&'a str, &'a str)],
    /// Runtime, as in a RuntimeClass. Empty: the default.
    pub handler: &'a str,
    /// Host ports of TCP with the container's port.
    pub ports: &'a [(u16, u16)],
}

/// A connection that is opened again after the runtime ended.
#[derive(Debug)]
pub(crate) struct Cri {
    executor: Runtime,
    client: RuntimeServiceClient<Channel>,
}

impl Cri {
    pub(crate) fn new(socket: &Path) -> Self {
        let executor = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let address = format!("unix://{}", socket.display());
        let endpoint = Endpoint::from_shared(address).unwrap().timeout(LIMIT);
        let _entered = executor.enter();
        let client = RuntimeServiceClient::new(endpoint.connect_lazy());
        Self { executor, client }
    }

    fn call<T>(
        &self,
        method: impl AsyncFnOnce(RuntimeServiceClient<Channel>) -> Result<Response<T>, Status>,
    ) -> Result<T, String> {
        let answer = self.executor.block_on(method(self.client.clone()));
        answer.map(Response::into_inner).map_err(|status| status.message().to_owned())
    }

    /// Conditions that are true, such as `RuntimeReady` and `NetworkReady`.
    pub(crate) fn conditions(&self) -> Result<Vec<String>, String> {
        let request = api::StatusRequest { verbose: false };
        let answer = self.call(async |mut client| client.status(request).await)?;
        let conditions = answer.status.unwrap_or_default().conditions;
        Ok(conditions.into_iter().filter(|one| one.status).map(|one| one.r#type).collect())
    }

    pub(crate) fn run(
        &self,
        name: &str,
        asked: &PodOptions<'_>,
        cgroup_parent: String,
    ) -> Result<String, String> {
        let metadata = api::PodSandboxMetadata {
            name: name.into(),
            uid: format!("uid-{name}"),
            namespace: "default".into(),
        };
        let pair = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        let mapping = |&(host_port, container_port): &(u16, u16)| api::PortMapping {
            protocol: 0,
            container_port: container_port.into(),
            host_port: host_port.into(),
        };
        let config = api::PodSandboxConfig {
            metadata: Some(metadata),
            port_mappings: asked.ports.iter().map(mapping).collect(),
            annotations: asked.annotations.iter().map(pair).collect(),
            linux: Some(api::LinuxPodSandboxConfig { cgroup_parent }),
        };
        let runtime_handler = asked.handler.into();
        let request = api::RunPodSandboxRequest { config: Some(config), runtime_handler };
        let answer = self.call(async |mut client| client.run_pod_sandbox(request).await)?;
        Ok(answer.pod_sandbox_id)
    }

    pub(crate) fn stop(&self, id: &str) -> Result<(), String> {
        let request = api::StopPodSandboxRequest { pod_sandbox_id: id.into() };
        self.call(async |mut client| client.stop_pod_sandbox(request).await).map(drop)
    }

    pub(crate) fn remove(&self, id: &str) -> Result<(), String> {
        let request = api::RemovePodSandboxRequest { pod_sandbox_id: id.into() };
        self.call(async |mut client| client.remove_pod_sandbox(request).await).map(drop)
    }

    pub(crate) fn ids(&self) -> Result<Vec<String>, String> {
        let request = api::ListPodSandboxRequest {};
        let answer = self.call(async |mut client| client.list_pod_sandbox(request).await)?;
        Ok(answer.items.into_iter().map(|item| item.id).collect())
    }

    /// Path of a pod's network namespace in containerd's verbose status.
    pub(crate) fn netns(&self, id: &str) -> Option<String> {
        let info = self.info(id)?;
        let namespaces = info["runtimeSpec"]["linux"]["namespaces"].as_array()?;
        let netns = namespaces.iter().find(|namespace| namespace["type"] == "network")?;
        Some(netns["path"].as_str()?.to_owned())
    }

    /// containerd's verbose status of a pod.
    pub(crate) fn info(&self, id: &str) -> Option<Value> {
        serde_json::from_str(self.pod(id).ok()?.info.get("info")?).ok()
    }

    /// CNI configurations in containerd's verbose status.
    pub(crate) fn cni_configurations(&self) -> Option<Value> {
        let request = api::StatusRequest { verbose: true };
        let answer = self.call(async |mut client| client.status(request).await).ok()?;
        serde_json::from_str(answer.info.get("cniconfig")?).ok()
    }

    /// Addresses that the runtime reports for a pod.
    pub(crate) fn addresses(&self, id: &str) -> Result<Vec<String>, String> {
        let network = self.pod(id)?.status.unwrap_or_default().network.unwrap_or_default();
        let others = network.additional_ips.into_iter().map(|one| one.ip);
        Ok([network.ip].into_iter().chain(others).collect())
    }

    fn pod(&self, id: &str) -> Result<api::PodSandboxStatusResponse, String> {
        let request = api::PodSandboxStatusRequest { pod_sandbox_id: id.into(), verbose: true };
        self.call(async |mut client| client.pod_sandbox_status(request).await)
    }
}
