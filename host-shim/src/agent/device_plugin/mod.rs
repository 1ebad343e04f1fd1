//! The kubelet's device plugin API, where `[device_plugin]` is configured.
//!
//! The DPU reports which VFs of this host are in which pool, and which pools are `pinned_only`. Each of these is one
//! resource of the kubelet ([`registration`]). The DPU refuses an ADD that names no VF of such a pool; the agent then
//! asks the kubelet's PodResources socket which VF it chose for the pod ([`pod_resources`]). Pods that do not use their
//! VF are reported ([`unused`]). A VF for vfio comes with its device nodes ([`vfio`]).
//!
//! # Locks and races
//!
//! The module records nothing. The DPU's last report is one value that is replaced as a whole. Small mutexes guard the
//! lists in `advertised`, `holders` and `vfio`; none is held across a wait.
//!
//! - *The kubelet chooses a VF while its last pod ends.* The kubelet frees a device once its pod's containers have
//!   ended, perhaps before the DEL. The DPU then refuses the ADD, and the kubelet retries.
//! - *The kubelet restarts.* It empties its folder, our socket included, and creates its own socket. A check every
//!   second notices either, and registers the resource again.
//! - *A VF becomes unhealthy while it is chosen.* The choice stands, the ADD is refused, and the kubelet retries. A
//!   refused Allocate fails the pod for good, so Allocate refuses only VFs that no container could open ([`vfio`]).
//!   Such VFs are reported as unhealthy before. A VF that left its pool recently is not refused ([`advertised`]).
//! - *Two pods get VFs of one IOMMU group.* Allocate gives a group to the first pod ([`holders`]). The kubelet gets a
//!   new list at once. Until then the group's other VFs are preferred last.

mod advertised;
mod checkpoint;
mod holders;
mod plugin;
mod pod_resources;
mod preference;
mod registration;
pub(super) mod settings;
#[cfg(test)]
mod tests;
mod unused;
mod vfio;

use std::{
    collections::HashMap,
    convert::Infallible,
    future::pending,
    sync::Arc,
    time::{Duration, Instant},
};

use offload_proto::{
    Failure, Reason,
    v1::{Pod, VfPool, VfPools},
};
use tokio::{
    sync::watch,
    task::spawn_blocking,
    time::{sleep, timeout_at},
};
use tokio_util::task::AbortOnDropHandle;
use vf_alloc::Device;

use crate::{
    agent::{
        dpu::Dpu,
        vfs::{Records, Vfs},
    },
    protocol::AddRequest,
};
use registration::ResourceRegistration;
pub use settings::DevicePluginSettings;
use unused::{Unused, UnusedVfs, unused};
use vfio::{Choice, choices};

/// Serves the kubelet's device plugin API.
#[derive(Debug)]
pub(super) struct DevicePlugin {
    /// `None`: not configured.
    settings: Option<DevicePluginSettings>,
    /// The `pinned_only` pools of the DPU's last report.
    pools: watch::Sender<Vec<VfPool>>,
    vfs: Arc<Vfs>,
}

impl DevicePlugin {
    /// Creates the module without pools.
    pub(super) fn new(settings: Option<DevicePluginSettings>, vfs: Arc<Vfs>) -> Self {
        Self { settings, pools: watch::Sender::new(Vec::new()), vfs }
    }

    /// Takes the DPU's report of pools.
    pub(super) fn learn(&self, report: VfPools) {
        let handed_out = report.pools.into_iter().filter(|pool| pool.pinned_only);
        self.pools.send_replace(handed_out.collect());
    }

    /// Registers a resource for each pool, forever.
    pub(super) async fn keep(&self) -> Infallible {
        let Some(settings) = &self.settings else { return pending().await };
        let mut pools = self.pools.subscribe();
        let mut registrations: HashMap<String, AbortOnDropHandle<()>> = HashMap::new();
        loop {
            let names: Vec<_> =
                pools.borrow_and_update().iter().map(|it| it.name.clone()).collect();
            registrations.retain(|name, _| names.contains(name));
            for name in names {
                registrations.entry(name.clone()).or_insert_with(|| {
                    let (pools, vfs) = (self.pools.subscribe(), Arc::clone(&self.vfs));
                    let registration =
                        ResourceRegistration::new(settings.clone(), name, pools, vfs);
                    AbortOnDropHandle::new(tokio::spawn(registration.keep()))
                });
            }
            if pools.changed().await.is_err() {
                return pending().await;
            }
        }
    }

    /// The VF of the refused pool that the kubelet chose for the request's pod. `None` if the request names a VF or
    /// there is none. Of VFs in one IOMMU group it is the first.
    ///
    /// # Errors
    /// [`Reason::KubeletFailed`]: the kubelet does not answer, or its answer is invalid. [`Reason::InvalidRequest`]:
    /// the pod has several VFs.
    pub(super) async fn chosen(
        &self,
        refusal: &Failure,
        request: &AddRequest,
        deadline: Instant,
    ) -> Result<Option<Device>, Failure> {
        let Some(settings) = &self.settings else { return Ok(None) };
        let is_of_pod = !request.pod.namespace.is_empty() && !request.pod.name.is_empty();
        let resources = self.refused(settings, refusal);
        if request.interface.device.is_some() || !is_of_pod || resources.is_empty() {
            return Ok(None);
        }
        let devices =
            pod_resources::devices_of(settings, &request.pod, &resources, deadline).await?;
        match &self.choices(devices.clone()).await?[..] {
            [] => Ok(None),
            [Choice { vf, .. }] => Ok(Some(vf.clone())),
            _ => Err(several(&request.pod, &devices)),
        }
    }

    /// Groups a pod's VFs into choices.
    async fn choices(&self, vfs: Vec<Device>) -> Result<Vec<Choice>, Failure> {
        if vfs.len() < 2 {
            return Ok(vfs.into_iter().map(Choice::from).collect());
        }
        let host = Arc::clone(self.vfs.host());
        self.vfs.host().look(move || choices(host.cards(), vfs)).await
    }

    /// Completes the refusal of an ADD whose pod has no VF in PodResources: the kubelet's checkpoint names the
    /// container that requests one. PodResources omits ordinary init containers, and no retry changes that.
    pub(super) async fn with_unreported_container(
        &self,
        refusal: Failure,
        request: &AddRequest,
        deadline: Instant,
    ) -> Failure {
        let Some(settings) = &self.settings else { return refusal };
        let (folder, resources) = (settings.folder.clone(), self.refused(settings, &refusal));
        let uid = request.pod.uid.clone();
        // On the plain blocking pool: the file may be large and its disk slow, and the threads for the kernel are few.
        let reading = spawn_blocking(move || checkpoint::container_of(&folder, &uid, &resources));
        let Ok(Ok(Some(found))) = timeout_at(deadline.into(), reading).await else {
            return refusal;
        };
        let message = format!(
            "{refusal}; container {} of pod {}/{} requests {}, and the kubelet does not report it: if that is an init \
             container, request the VF in an app container or a sidecar, too",
            found.container_name, request.pod.namespace, request.pod.name, found.resource_name
        );
        Failure::new(refusal.reason, message)
    }

    /// Reports pods that do not use VFs that the kubelet gave them, forever.
    pub(super) async fn keep_unused_reported(
        &self,
        dpu: &Dpu,
        records: &Records,
        every: Duration,
    ) -> Infallible {
        let Some(settings) = &self.settings else { return pending().await };
        let mut vfs = UnusedVfs::default();
        loop {
            sleep(every).await;
            match self.unused(settings, records).await {
                Ok(found) => dpu.report_unused_vfs(vfs.learn(found)),
                // ADDs that need the kubelet report its failure; this is only logged.
                Err(why) => {
                    tracing::debug!(error = %why, "the kubelet did not list the VFs of pods");
                }
            }
        }
    }

    async fn unused(
        &self,
        settings: &DevicePluginSettings,
        records: &Records,
    ) -> Result<Unused, Failure> {
        if records.all().is_empty() {
            return Ok(Unused::new());
        }
        let mut given = Vec::new();
        let listed = pod_resources::all_devices(settings).await;
        let listed = listed.map_err(|why| Failure::new(Reason::KubeletFailed, why.to_string()));
        for (pod, vfs) in listed? {
            given.push((pod, self.choices(vfs).await?));
        }
        Ok(unused(&given, &records.all()))
    }

    /// The resource of the pool that a refusal names in quotes, or all resources if it names none.
    fn refused(&self, settings: &DevicePluginSettings, refusal: &Failure) -> Vec<String> {
        let pools = self.pools.borrow();
        let is_named = |pool: &&VfPool| refusal.message.contains(&format!("{:?}", pool.name));
        match pools.iter().find(is_named) {
            Some(pool) => vec![settings.resource(&pool.name)],
            None => pools.iter().map(|pool| settings.resource(&pool.name)).collect(),
        }
    }
}

fn several(pod: &Pod, devices: &[Device]) -> Failure {
    let devices: Vec<_> = devices.iter().map(Device::as_str).collect();
    let message = format!(
        "the kubelet gave pod {}/{} several VFs ({}), and the agent cannot tell which is for this interface: request one \
         VF per pod, or name the VFs with deviceID, as Multus does",
        pod.namespace,
        pod.name,
        devices.join(", ")
    );
    Failure::new(Reason::InvalidRequest, message)
}
