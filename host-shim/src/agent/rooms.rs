//! Builds and runs the parts of the agent.

use std::{fs, future::ready, path::Path, sync::Arc, time::Duration};

use metrics::Endpoint;
use netlink::{LinkMonitor, Netns};
use offload_proto::log_event;
use tokio::{
    runtime::{Builder, Runtime},
    time::timeout,
};
use tokio_util::task::TaskTracker;

use super::{
    config::{Config, VfSourceKind},
    delegates::{Delegates, FOLDER_READERS},
    device_plugin::DevicePlugin,
    dispatcher::Dispatcher,
    dpu::Dpu,
    error::{AgentError, cannot},
    kill_points::KillPoint,
    scrape,
    upkeep::Upkeep,
    verbs::{Doors, VerbPhases},
    vfs::{BLOCKING_THREADS, Furnishing, Originals, PodLocks, Records, Vfs},
    workloads::Workloads,
};
use crate::{
    mover::Announcer,
    vf_source::{PciCards, PciError, VfSource, VirtualCard},
};

/// How long work in progress may take when the agent stops. New calls wait for the next agent: up to
/// [`AGENT_RETURN_TIMEOUT`](crate::protocol::AGENT_RETURN_TIMEOUT), or [`SILENCE`](crate::protocol::SILENCE) where
/// systemd holds the socket.
const LAST_WORK: Duration = Duration::from_secs(3);

/// The agent's runtime: one thread for tasks, because passing work between threads would cost more than the work.
/// Blocking on the kernel or the disk happens on further threads.
pub(super) fn runtime() -> Result<Runtime, AgentError> {
    Builder::new_current_thread()
        .max_blocking_threads(BLOCKING_THREADS + FOLDER_READERS)
        .enable_all()
        .build()
        .map_err(cannot("start the agent's threads"))
}

pub(super) struct Agent {
    pub(super) config: Arc<Config>,
    pub(super) doors: Doors,
    pub(super) upkeep: Upkeep,
    pub(super) device_plugin: Arc<DevicePlugin>,
    pub(super) dispatcher: Dispatcher,
}

impl Agent {
    /// Opens everything that the agent works on, and starts to serve metrics.
    pub(super) fn open(
        config: Config,
        boot_id: String,
        records: Records,
    ) -> Result<Self, AgentError> {
        let netns = Netns::current()?;
        let announcer = Announcer::start().map_err(cannot("start the announcer's thread"))?;
        let originals = Originals::open(config.state_dir.join("vfs.json"), boot_id.clone())?;
        let pods = PodLocks::open(&config.pod_locks);
        let pods = pods.map_err(cannot(format!("open {}", config.pod_locks.display())))?;
        let source = vf_source(&config)?;
        let (config, tasks) = (Arc::new(config), TaskTracker::new());
        let vfs = Arc::new(Vfs::new(Furnishing {
            source,
            netns,
            boot_id: boot_id.clone(),
            records,
            originals,
            pods,
            announcer,
            carrier_limit: config.timeouts.carrier(),
            netns_folders: config.netns_folders(),
            reachable_netns: config.reachable_netns(),
            signals: Arc::default(),
            tasks: tasks.clone(),
        }));
        let dpu = Arc::new(Dpu::new(Arc::clone(&config), boot_id.clone(), Arc::clone(&vfs)));
        let delegates =
            Delegates::open(config.delegates.clone(), config.state_dir.join("delegates"));
        let delegates =
            Arc::new(delegates.map_err(cannot("read the records of other plugins' interfaces"))?);
        let (refusing, phases) = (Arc::default(), VerbPhases::default());
        let timeouts = config.timeouts;
        let doors = Doors { vfs, dpu, delegates, refusing, phases, tasks, timeouts };
        let (warning, host_ports) = (config.certificate_warning, config.host_port.clone());
        let (settings, vfs) = (config.device_plugin.clone(), Arc::clone(&doors.vfs));
        let device_plugin = Arc::new(DevicePlugin::new(settings, vfs));
        let plugin = Arc::clone(&device_plugin);
        let upkeep = Upkeep::new(doors.clone(), boot_id, warning, host_ports, plugin);
        let calls = scrape::calls();
        let (limit, dpu) = (config.limits.connections, Arc::clone(&doors.dpu));
        let dispatcher = Dispatcher::new(doors.tasks.clone(), limit, Arc::clone(&calls), dpu);
        let agent = Self { config, doors, upkeep, device_plugin, dispatcher };
        if let Some(endpoint) = Endpoint::listen(agent.config.metrics.listen) {
            let (config, doors) = (Arc::clone(&agent.config), agent.doors.clone());
            let page = move || ready(scrape::page(&config, &doors, &calls));
            tokio::spawn(endpoint.serve(page));
        }
        Ok(agent)
    }

    /// The entrance for callers without CNI.
    pub(super) fn workloads(&self) -> Workloads {
        let network = self.config.workloads.network.clone();
        Workloads::new(self.doors.clone(), self.dispatcher.clone(), network)
    }

    /// Finishes the previous agent's work before the first call is answered. The returned monitor has all kernel events
    /// since the beginning, for [`keep`](Self::keep).
    pub(super) async fn look_around(&self) -> Result<LinkMonitor, AgentError> {
        // Subscribe before the comparison, so that no event during it is missed.
        let monitor = self.doors.vfs.monitor()?;
        self.doors.vfs.renewer().begin_to_finish();
        self.upkeep.keeper().reconcile_all().await;
        KillPoint::StartReconciled.pass();
        Ok(monitor)
    }

    /// Runs all periodic work until it fails.
    pub(super) async fn keep(&self, monitor: LinkMonitor) -> AgentError {
        let (dpu, records) = (&self.doors.dpu, self.doors.vfs.records());
        let reconcile = self.doors.timeouts.reconcile();
        tokio::select! {
            error = self.upkeep.watcher().watch(monitor) => error.into(),
            never = dpu.keep_session(|event| self.upkeep.act_on(event)) => match never {},
            never = self.upkeep.keeper().keep_agreement() => match never {},
            never = self.upkeep.host_ports().keep() => match never {},
            never = dpu.reports().keep_inventory() => match never {},
            never = dpu.keep_repairs_reported() => match never {},
            never = self.device_plugin.keep() => match never {},
            never = self.device_plugin.keep_unused_reported(dpu, records, reconcile) => match never {},
        }
    }

    /// Waits for work in progress. Unfinished work is finished from the records at the next start.
    pub(super) async fn finish(&self) {
        let tasks = &self.doors.tasks;
        // A tracker's `wait` returns only once it is closed.
        tasks.close();
        if timeout(LAST_WORK, tasks.wait()).await.is_err() {
            tracing::warn!(
                event = log_event::WORK_LEFT,
                tasks = tasks.len(),
                "the agent stops with unfinished work"
            );
        }
    }
}

fn vf_source(config: &Config) -> Result<Arc<dyn VfSource>, PciError> {
    Ok(match config.vf_source.kind {
        VfSourceKind::Virtual => {
            Arc::new(VirtualCard::of_pfs(config.vf_source.pfs.iter().map(|pf| pf.address)))
        }
        VfSourceKind::Pci => Arc::new(PciCards::open(config.pci_settings())?),
    })
}

pub(super) fn boot_id(path: &Path) -> Result<String, AgentError> {
    let text = fs::read_to_string(path)
        .map_err(cannot(format!("read the boot id from {}", path.display())))?;
    match text.trim() {
        "" => Err(AgentError::NoBootId(path.to_owned())),
        id => Ok(id.to_owned()),
    }
}
