//! The parts of upkeep, and what the DPU may ask of them.

use std::sync::Arc;

use mtls::ExpiryWarning;
use offload_proto::v1::{Release, dpu_message::Message, host_message};

use super::{
    examine::Examiner, host_ports::HostPorts, keeper::Keeper, provide::Provider, watcher::Watcher,
};
use crate::agent::{
    device_plugin::DevicePlugin,
    dpu::FromDpu,
    host_port::HostPort,
    verbs::{Doors, release_on_request},
};

/// What the agent does unasked, and for the DPU.
#[derive(Debug)]
pub(in crate::agent) struct Upkeep {
    doors: Doors,
    provider: Arc<Provider>,
    keeper: Arc<Keeper>,
    host_ports: Arc<HostPorts>,
    watcher: Arc<Watcher>,
    examiner: Arc<Examiner>,
    device_plugin: Arc<DevicePlugin>,
}

impl Upkeep {
    /// `warning`: when an examination reports the expiring certificate. `host_ports`: the configured host ports.
    /// `device_plugin`: gets the DPU's pools.
    pub(in crate::agent) fn new(
        doors: Doors,
        boot_id: String,
        warning: ExpiryWarning,
        host_ports: Vec<HostPort>,
        device_plugin: Arc<DevicePlugin>,
    ) -> Self {
        let provider = Arc::new(Provider::new(Arc::clone(&doors.vfs)));
        let keeper = Arc::new(Keeper::new(doors.clone(), Arc::clone(&provider), boot_id));
        let host_ports = Arc::new(HostPorts::new(doors.clone(), host_ports));
        let examiner =
            Examiner::new(doors.clone(), Arc::clone(&keeper), Arc::clone(&host_ports), warning);
        let examiner = Arc::new(examiner);
        let watcher = Watcher::new(Arc::clone(&doors.vfs), Arc::clone(&keeper), doors.timeouts);
        let watcher = Arc::new(watcher);
        Self { doors, provider, keeper, host_ports, watcher, examiner, device_plugin }
    }

    /// What keeps records and kernel in agreement.
    pub(in crate::agent) fn keeper(&self) -> &Arc<Keeper> {
        &self.keeper
    }

    /// What keeps the host's own ports.
    pub(in crate::agent) fn host_ports(&self) -> &Arc<HostPorts> {
        &self.host_ports
    }

    /// What tells the keeper of the kernel's changes.
    pub(in crate::agent) fn watcher(&self) -> &Arc<Watcher> {
        &self.watcher
    }

    /// Acts on what the DPU says. What takes time is only begun.
    pub(in crate::agent) fn act_on(&self, said: FromDpu) {
        match said {
            FromDpu::SessionBegan => {
                // The DPU repeats its requests in each session.
                self.provider.forget();
                self.doors.vfs.signals().ask_for_pass();
            }
            FromDpu::Message(message) => self.act_on_message(*message),
        }
    }

    fn act_on_message(&self, message: Message) {
        match message {
            Message::Reattach(reattach) => {
                self.compare_again(reattach.attachment.unwrap_or_default().id);
            }
            Message::Release(wanted) => self.release(wanted),
            Message::Draining(draining) => {
                tracing::warn!(reason = draining.reason, "the DPU takes no new attachments");
            }
            Message::NetworkChanged(changed) => {
                tracing::info!(
                    network = changed.network,
                    deleted = changed.deleted,
                    "the DPU changed a network"
                );
                self.doors.vfs.signals().look_at_host_ports();
            }
            Message::WantedVfs(wanted) => self.provider.want(&wanted),
            Message::VfPools(pools) => self.device_plugin.learn(pools),
            Message::Examine(request) => {
                if let Err(busy) = self.examiner.begin(request) {
                    self.doors.dpu.session().send(host_message::Message::Examination(busy));
                }
            }
            // The session handles these itself, and a second hello_reply asks for nothing.
            Message::HelloReply(_)
            | Message::Heartbeat(_)
            | Message::VfOffers(_)
            | Message::Unrecorded(_) => {}
        }
    }

    /// The DPU has heard that a VF is not in its pod: what to do about that the kernel tells.
    fn compare_again(&self, id: String) {
        let keeper = Arc::clone(&self.keeper);
        self.doors.tasks.spawn(async move { keeper.reconcile(&id).await });
    }

    fn release(&self, wanted: Release) {
        let doors = self.doors.clone();
        self.doors.tasks.spawn(async move { release_on_request(&doors, wanted).await });
    }
}
