//! The kubelet's device plugin: what `[device_plugin]` of the configuration asks for.
//!
//! The DPU says which of this host's VFs are in which pool, and which pools are only given out by name. Of these the
//! kubelet is told, one resource for each ([`offer`]); and an ADD that the DPU refuses because it names none of them
//! names the VF that the kubelet has chosen for its pod, which the kubelet's other socket tells ([`pod_resources`]).
//! Pods that do not use a VF that they were given so are reported ([`unused`]). A VF that is handed over to programs comes
//! with its device nodes ([`vfio`]).
//!
//! # Who races
//!
//! Nothing of this room is locked, and nothing of it is recorded: what the DPU said last is one value that is
//! replaced as a whole, and everybody looks at it for himself.
//!
//! - *The kubelet's choice with the end of the VF's last pod.* The kubelet takes a device for free once its pod's
//!   containers have ended, which may be before the DEL. The ADD is then refused for a VF that is not free, and the
//!   kubelet tries again; the DPU alone decides.
//! - *The kubelet's restart.* It empties its folder, our socket with it, and makes its own anew. Either is seen in the
//!   next look, a second later at most, and the resource offered again from the start.
//! - *A VF that becomes unhealthy while it is being chosen.* The choice stands, the ADD is refused, and the kubelet tries
//!   it again. Allocate refuses only what no container could open ([`vfio`]), because a refused Allocate ends the pod for
//!   good. Such VFs are reported as unhealthy before. One that has just left its pool is not refused ([`advertised`]).
//! - *Two pods with VFs of one IOMMU group.* Allocate gives a group to the first of them ([`holders`]). The kubelet gets
//!   a new list at once. Until then the group's other VFs are preferred last.

mod advertised;
mod checkpoint;
mod files;
mod holders;
mod offer;
mod plugin;
mod pod_resources;
mod preference;
mod settings;
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

pub use settings::DevicePluginSettings;
#[cfg(test)]
pub(super) use settings::LONGEST_ANSWER_MS;
pub(super) use settings::problems;

use crate::{
    agent::{
        dpu::Dpu,
        vfs::{Records, Vfs},
    },
    protocol::AddRequest,
};
use offer::Offer;
use unused::{Unused, UnusedVfs, unused};
use vfio::{Choice, choices};

/// What the kubelet hands out.
#[derive(Debug)]
pub(super) struct DevicePlugin {
    /// `None`: no kubelet hands out anything.
    settings: Option<DevicePluginSettings>,
    /// The pools that are only given out by name, as the DPU told last.
    pools: watch::Sender<Vec<VfPool>>,
    vfs: Arc<Vfs>,
}

impl DevicePlugin {
    /// One that has heard of no pool yet, for that host's VFs.
    pub(super) fn new(settings: Option<DevicePluginSettings>, vfs: Arc<Vfs>) -> Self {
        Self { settings, pools: watch::Sender::new(Vec::new()), vfs }
    }

    /// The DPU says what pools there are.
    pub(super) fn learn(&self, told: VfPools) {
        let handed_out = told.pools.into_iter().filter(|pool| pool.pinned_only);
        self.pools.send_replace(handed_out.collect());
    }

    /// Keeps a resource of each pool on offer, for ever.
    pub(super) async fn keep(&self) -> Infallible {
        let Some(settings) = &self.settings else { return pending().await };
        let mut pools = self.pools.subscribe();
        let mut offers: HashMap<String, AbortOnDropHandle<()>> = HashMap::new();
        loop {
            let names: Vec<_> =
                pools.borrow_and_update().iter().map(|it| it.name.clone()).collect();
            offers.retain(|name, _| names.contains(name));
            for name in names {
                offers.entry(name.clone()).or_insert_with(|| {
                    let (pools, vfs) = (self.pools.subscribe(), Arc::clone(&self.vfs));
                    let offer = Offer::new(settings.clone(), name, pools, vfs);
                    AbortOnDropHandle::new(tokio::spawn(offer.keep()))
                });
            }
            if pools.changed().await.is_err() {
                return pending().await;
            }
        }
    }

    /// The VF of the refused pool that the kubelet has chosen for a request's pod, if the request names none and there is
    /// one. Of VFs that a program has together it is the first.
    ///
    /// # Errors
    /// [`Reason::KubeletFailed`] when the kubelet does not tell, or tells nonsense; [`Reason::InvalidRequest`] when the pod
    /// has several.
    pub(super) async fn chosen(
        &self,
        refusal: &Failure,
        request: &AddRequest,
        deadline: Instant,
    ) -> Result<Option<Device>, Failure> {
        let Some(settings) = &self.settings else { return Ok(None) };
        let is_of_pod = !request.pod.namespace.is_empty() && !request.pod.name.is_empty();
        let resources = self.refused(settings, refusal);
        if request.device.is_some() || !is_of_pod || resources.is_empty() {
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

    /// The choices among VFs of a pod.
    async fn choices(&self, vfs: Vec<Device>) -> Result<Vec<Choice>, Failure> {
        if vfs.len() < 2 {
            return Ok(vfs.into_iter().map(Choice::from).collect());
        }
        let host = Arc::clone(self.vfs.host());
        self.vfs.host().look(move || choices(host.cards(), vfs)).await
    }

    /// The refusal of an ADD whose pod has no VF by the kubelet's PodResources. Names the container that requests one
    /// by the kubelet's checkpoint: PodResources leaves out ordinary init containers, and no retry changes that.
    pub(super) async fn with_unreported_container(
        &self,
        refusal: Failure,
        request: &AddRequest,
        deadline: Instant,
    ) -> Failure {
        let Some(settings) = &self.settings else { return refusal };
        let (folder, resources) = (settings.folder.clone(), self.refused(settings, &refusal));
        let uid = request.pod.uid.clone();
        // No look at the kernel, whose turns others wait for: the file may be large, and its disk slow.
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

    /// Reports the pods that do not use VFs that the kubelet gave them, for ever.
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
                // The ADDs that need the kubelet's word report it.
                Err(why) => tracing::debug!(%why, "the kubelet did not list the VFs of pods"),
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

    /// The resources of the pool that a refusal names in quotes, or all if it names none.
    fn refused(&self, settings: &DevicePluginSettings, refusal: &Failure) -> Vec<String> {
        let mut resources = self.resources(settings);
        let pools = self.pools.borrow();
        let is_named = |pool: &&VfPool| refusal.message.contains(&format!("{:?}", pool.name));
        if let Some(pool) = pools.iter().find(is_named) {
            resources.retain(|resource| *resource == settings.resource(&pool.name));
        }
        resources
    }

    /// The kubelet's resources.
    fn resources(&self, settings: &DevicePluginSettings) -> Vec<String> {
        self.pools.borrow().iter().map(|pool| settings.resource(&pool.name)).collect()
    }
}

fn several(pod: &Pod, devices: &[Device]) -> Failure {
    let devices: Vec<_> = devices.iter().map(Device::as_str).collect();
    let message = format!(
        "the kubelet gave pod {}/{} several VFs ({}), of which this interface can't tell its own: have the pod ask for \
         one, or name them with deviceID, as Multus does",
        pod.namespace,
        pod.name,
        devices.join(", ")
    );
    Failure::new(Reason::InvalidRequest, message)
}
