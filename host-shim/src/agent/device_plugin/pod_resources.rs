//! Asks the kubelet which VFs it chose for pods: a container runtime does not pass that on.

use std::time::Instant;

use offload_proto::{
    Failure, Reason, form,
    kubelet::podresources::{
        GetPodResourcesRequest, ListPodResourcesRequest, PodResources,
        pod_resources_lister_client::PodResourcesListerClient,
    },
    v1::Pod,
};
use tokio::time::{timeout, timeout_at};
use tonic::{
    Status,
    transport::{self, Channel, Endpoint},
};
use vf_alloc::Device;

use super::settings::DevicePluginSettings;

/// The longest answer that is read, in bytes: more than all pods of a node need.
const LONGEST: usize = 4 * 1024 * 1024;

/// Why the kubelet's answer is unavailable.
#[derive(Debug, thiserror::Error)]
pub(super) enum PodResourcesError {
    #[error("did not answer within {0} ms")]
    Silent(u64),
    #[error("can't be called: {0}")]
    NoAddress(transport::Error),
    #[error("can't be reached: {}", bootstrap::Chain(.0))]
    Unreachable(transport::Error),
    #[error("refused: {}", .0.message())]
    Refused(Box<Status>),
    #[error("speaks of pod {namespace}/{name} instead")]
    OfAnother { namespace: String, name: String },
    #[error("names {0:?}, which is no VF")]
    NoVf(String),
}

impl From<Status> for PodResourcesError {
    fn from(refusal: Status) -> Self {
        Self::Refused(Box::new(refusal))
    }
}

/// The devices of these resources that the pod has.
///
/// # Errors
/// [`Reason::KubeletFailed`]: the kubelet does not answer in time, or its answer is invalid.
pub(super) async fn devices_of(
    settings: &DevicePluginSettings,
    pod: &Pod,
    resources: &[String],
    deadline: Instant,
) -> Result<Vec<Device>, Failure> {
    let until = deadline.min(Instant::now() + settings.answer());
    let answer = match timeout_at(until.into(), ask(settings, pod)).await {
        Ok(answer) => answer,
        Err(_) => Err(PodResourcesError::Silent(settings.answer_ms)),
    };
    let is_asked_for = |resource: &str| resources.iter().any(|it| it == resource);
    let chosen = answer.and_then(|found| chosen(found, is_asked_for));
    chosen.map_err(|why| {
        let (Pod { namespace, name, .. }, socket) = (pod, settings.pod_resources.display());
        let message = format!(
            "which VF the kubelet chose for pod {namespace}/{name} is not known: at {socket} it {why}"
        );
        Failure::new(Reason::KubeletFailed, message)
    })
}

/// The VFs of all pods that have any. Pods keep VFs of a removed pool.
///
/// # Errors
/// The kubelet does not answer in time, or its answer is invalid.
pub(super) async fn all_devices(
    settings: &DevicePluginSettings,
) -> Result<Vec<(Pod, Vec<Device>)>, PodResourcesError> {
    let listing = async {
        let answer = client(settings).await?.list(ListPodResourcesRequest {}).await?;
        Ok::<_, PodResourcesError>(answer.into_inner().pod_resources)
    };
    let listed = timeout(settings.answer(), listing).await;
    let mut pods = Vec::new();
    for found in listed.map_err(|_| PodResourcesError::Silent(settings.answer_ms))?? {
        let (namespace, name) = (found.namespace.clone(), found.name.clone());
        let devices = chosen(Some(found), |resource| settings.is_ours(resource))?;
        if !devices.is_empty() {
            pods.push((Pod { namespace, name, uid: String::new() }, devices));
        }
    }
    Ok(pods)
}

/// Connects for one request. A kept connection could belong to an ended kubelet, and the first pod after its restart
/// would be refused.
async fn client(
    settings: &DevicePluginSettings,
) -> Result<PodResourcesListerClient<Channel>, PodResourcesError> {
    let address = format!("unix://{}", settings.pod_resources.display());
    let endpoint = Endpoint::from_shared(address).map_err(PodResourcesError::NoAddress)?;
    let channel = endpoint.connect().await.map_err(PodResourcesError::Unreachable)?;
    Ok(PodResourcesListerClient::new(channel).max_decoding_message_size(LONGEST))
}

/// The resources of the pod. `None`: the kubelet does not list the pod.
async fn ask(
    settings: &DevicePluginSettings,
    pod: &Pod,
) -> Result<Option<PodResources>, PodResourcesError> {
    let mut client = client(settings).await?;
    // Older kubelets lack `Get` or have it disabled. For an unknown pod its error is no better than the list.
    match get(&mut client, pod).await {
        Err(PodResourcesError::Refused(_)) => list(&mut client, pod).await,
        answer => answer,
    }
}

async fn get(
    client: &mut PodResourcesListerClient<Channel>,
    pod: &Pod,
) -> Result<Option<PodResources>, PodResourcesError> {
    let request =
        GetPodResourcesRequest { pod_name: pod.name.clone(), pod_namespace: pod.namespace.clone() };
    let answer = client.get(request).await?.into_inner();
    let found = answer.pod_resources.ok_or_else(|| Status::unknown("an empty answer"))?;
    match is_of(pod, &found) {
        true => Ok(Some(found)),
        false => Err(PodResourcesError::OfAnother { namespace: found.namespace, name: found.name }),
    }
}

async fn list(
    client: &mut PodResourcesListerClient<Channel>,
    pod: &Pod,
) -> Result<Option<PodResources>, PodResourcesError> {
    let answer = client.list(ListPodResourcesRequest {}).await?;
    Ok(answer.into_inner().pod_resources.into_iter().find(|found| is_of(pod, found)))
}

fn is_of(pod: &Pod, found: &PodResources) -> bool {
    (&found.namespace, &found.name) == (&pod.namespace, &pod.name)
}

fn chosen(
    found: Option<PodResources>,
    is_wanted: impl Fn(&str) -> bool,
) -> Result<Vec<Device>, PodResourcesError> {
    let containers = found.into_iter().flat_map(|pod| pod.containers);
    let given = containers.flat_map(|container| container.devices);
    let wanted = given.filter(|given| is_wanted(&given.resource_name));
    let mut devices = Vec::new();
    for id in wanted.flat_map(|given| given.device_ids) {
        let device = form::device(&id);
        devices.push(Device::from(device.ok_or(PodResourcesError::NoVf(id))?));
    }
    // Kubelets list a device once for each NUMA node.
    devices.sort();
    devices.dedup();
    Ok(devices)
}
