//! An engine with a journal and a card in memory, and one host.

use std::{collections::HashSet, sync::Arc, time::Duration};

use dpu_service::{
    attachments::{AttachmentFilter, Configuration, Depth, Detach, Engine, Settings},
    events::Events,
    host::{
        Asked, Hello, HostTime, Inventory, LiveAttachment, PhysicalFunction, SessionId,
        VfCondition, VirtualFunction,
    },
    records::{Changes, OpenError, Records},
    sessions::{HostCommand, Session},
};
use journal::faulty_disk::{FULL, Fate, FaultyDisk};
use model::{
    AttachSpec, AttachmentKey, AttachmentState, AttachmentView, HostName, InterfaceRequest,
    Network, Record,
};
use mtls::ConnectionNumber;
use offload_proto::{Failure, Reason, v1::Pod};
use tempfile::TempDir;
use test_clock::Stopwatch;
use vf_alloc::{FunctionId, PfId, PoolSpec, VfState};

use crate::fake_kernel::FakeKernel;

pub(crate) const VFS: u16 = 4;

pub(crate) struct World {
    directory: TempDir,
    pub(crate) configuration: Configuration,
    pub(crate) settings: Settings,
    pub(crate) kernel: FakeKernel,
    /// The journal's disk. `None`: the machine's own.
    pub(crate) disk: Option<FaultyDisk>,
    pub(crate) engine: Arc<Engine>,
    pub(crate) session: Session,
    pub(crate) boot_id: String,
}

pub(crate) fn host() -> HostName {
    HostName("node-1".into())
}

pub(crate) fn key(container: &str) -> AttachmentKey {
    AttachmentKey { host: host(), container_id: container.into(), interface_name: "eth0".into() }
}

pub(crate) fn spec(container: &str) -> AttachSpec {
    AttachSpec {
        key: key(container),
        pod: Pod::default(),
        interface: InterfaceRequest::default(),
        offered: None,
        further_leases: Vec::new(),
        group_interface: None,
    }
}

/// `spec` with other requests for its interface.
pub(crate) fn requesting(
    mut spec: AttachSpec,
    change: impl FnOnce(&mut InterfaceRequest),
) -> AttachSpec {
    change(&mut spec.interface);
    spec
}

/// A detach with the VF back, without a time.
pub(crate) fn detach_of(container: &str) -> Detach {
    Detach {
        key: key(container),
        id: None,
        returned: true,
        returned_device: None,
        as_of: HostTime::default(),
        session: None,
        cause: String::new(),
    }
}

pub(crate) fn red() -> Network {
    network(
        "name = 'red'\nvlan = 100\nmtu = 9000\nlink_group = 8\ndefault = true\n\
         [[subnets]]\ncidr = '10.1.0.0/24'\ngateway = '10.1.0.1'\n\
         [[subnets]]\ncidr = 'fd00:1::/64'\ngateway = 'fd00:1::1'\n",
    )
}

pub(crate) fn network(toml: &str) -> Network {
    toml::from_str(toml).unwrap()
}

pub(crate) fn pool(name: &str, select: &str) -> PoolSpec {
    toml::from_str(&format!("name = '{name}'\nselect = ['{select}']")).unwrap()
}

pub(crate) fn configuration() -> Configuration {
    Configuration {
        hosts: vec![
            (host(), vec![PfId::local(0)]),
            (HostName("node-2".into()), vec![PfId::local(1)]),
        ],
        pools: vec![pool("default", "p0")],
        networks: vec![red()],
        ..Configuration::default()
    }
}

pub(crate) fn settings() -> Settings {
    Settings {
        address_cool_down: Duration::ZERO,
        representor_wait: Duration::from_millis(1),
        ..Settings::default()
    }
}

impl World {
    pub(crate) async fn new() -> Self {
        Self::with(configuration(), settings(), VFS).await
    }

    pub(crate) async fn with(configuration: Configuration, settings: Settings, vfs: u16) -> Self {
        Self::on(Some(disk_with_journal()), configuration, settings, vfs).await
    }

    pub(crate) async fn on(
        disk: Option<FaultyDisk>,
        configuration: Configuration,
        settings: Settings,
        vfs: u16,
    ) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let kernel = FakeKernel::with_vfs(vfs);
        let engine = open(&directory, &configuration, &settings, &kernel, &disk);
        let boot_id = "boot-1".to_owned();
        let hello = hello(&kernel, &boot_id, &[]);
        let session = engine.hosts().hello(host(), hello).await.unwrap();
        Self { directory, configuration, settings, kernel, disk, engine, session, boot_id }
    }

    /// Sentences of all faults although Attach can be served.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let operators = self.engine.operators();
        let of_others = [operators.network_faults(), operators.driver_faults()].concat();
        let of_others = of_others.into_iter().map(|fault| fault.message);
        of_others.chain(self.attachment_warnings()).collect()
    }

    /// Sentences of the faults of attachments and their VFs.
    pub(crate) fn attachment_warnings(&self) -> Vec<String> {
        let faults = self.engine.operators().attachment_faults().into_iter();
        faults.map(|fault| fault.message).collect()
    }

    pub(crate) fn set_full(&self, is_full: bool) {
        self.disk.as_ref().unwrap().fail_writes(is_full.then_some(FULL));
    }

    /// The service dies and restarts; the host has not connected yet.
    pub(crate) async fn restart(&mut self) {
        self.stop().await;
        self.start();
    }

    /// Time from the start until kernel and journal were compared.
    pub(crate) async fn time_of_restart(&mut self) -> Duration {
        self.stop().await;
        let begun = Stopwatch::start();
        self.start();
        self.engine.reconcile(Depth::Thorough).await;
        begun.unstalled()
    }

    /// The power fails and the service restarts. `fate` decides what happens to unsynced writes.
    pub(crate) async fn restart_after_power_cut(&mut self, fate: impl FnMut() -> Fate) {
        self.stop().await;
        self.disk.as_ref().unwrap().power_on(fate);
        self.start();
    }

    /// The service restarts with these additional records in its journal.
    pub(crate) async fn restart_with(&mut self, records: &[Record]) {
        self.stop().await;
        let journal = open_records(&self.directory, &self.disk);
        let changes = records.iter().fold(Changes::default(), Changes::put_attachment);
        journal.commit(changes).await.unwrap();
        drop(journal);
        self.start();
    }

    /// Why the service does not start with this record in its journal.
    pub(crate) async fn refusal_with(&mut self, record: &Record) -> OpenError {
        self.stop().await;
        let Self { directory, configuration, settings, kernel, disk, .. } = &*self;
        let records = open_records(directory, disk);
        records.commit(Changes::default().put_attachment(record)).await.unwrap();
        let (events, programmer) = (|| open_events(directory), kernel.programmer());
        Engine::open(records, events, programmer, configuration.clone(), settings.clone())
            .unwrap_err()
    }

    /// Number of starts in the file of events.
    pub(crate) fn recorded_starts(&self) -> usize {
        let file = self.directory.path().join("events.jsonl");
        std::fs::read_to_string(file).unwrap().matches("ServiceStarted").count()
    }

    /// Waits for the last reference to the engine: until then the journal's file is locked.
    async fn stop(&mut self) {
        let spare = tempfile::tempdir().unwrap();
        let nothing = &FakeKernel::default();
        let disk = Some(disk_with_journal());
        let placeholder = open(&spare, &self.configuration, &self.settings, nothing, &disk);
        let engine = std::mem::replace(&mut self.engine, placeholder);
        let events = Arc::clone(engine.events());
        engine.close().await;
        events.close();
    }

    fn start(&mut self) {
        let Self { directory, configuration, settings, kernel, disk, .. } = &*self;
        self.engine = open(directory, configuration, settings, kernel, disk);
    }

    /// The host opens a new session. VFs of `live` attachments are in use.
    pub(crate) async fn hello(&mut self, live: &[LiveAttachment]) {
        let in_use = self.vfs_of(live);
        let hello = Hello { live: live.to_vec(), ..hello(&self.kernel, &self.boot_id, &in_use) };
        self.connect(hello).await;
    }

    pub(crate) async fn connect(&mut self, hello: Hello) {
        self.session = self.engine.hosts().hello(host(), hello).await.unwrap();
    }

    /// Sends an inventory and waits for its consequences.
    pub(crate) async fn send_inventory(&self, inventory: &Inventory) {
        let session = self.session_id();
        self.engine.hosts().inventory(&host(), session, inventory).unwrap().await.unwrap();
    }

    fn vfs_of(&self, live: &[LiveAttachment]) -> Vec<FunctionId> {
        let views = self.list();
        let is_live = |view: &&AttachmentView| live.iter().any(|live| live.id == view.record.id);
        views.iter().filter(is_live).map(|view| view.record.vf).collect()
    }

    pub(crate) fn session_id(&self) -> SessionId {
        self.session.id
    }

    pub(crate) async fn attach(&self, spec: AttachSpec) -> Result<AttachmentView, Failure> {
        let asked = Asked { session: self.session.id, as_of: HostTime::default() };
        self.engine.attach(spec, asked).await
    }

    pub(crate) async fn attached(&self, container: &str) -> AttachmentView {
        let view = self.attach(spec(container)).await.unwrap();
        self.engine.hosts().attached(&host(), self.session.id, view.record.id);
        view
    }

    pub(crate) async fn refused(&self, spec: AttachSpec) -> Reason {
        self.attach(spec).await.unwrap_err().reason
    }

    pub(crate) async fn detach(&self, container: &str) {
        self.engine.detach(detach_of(container)).await.unwrap();
    }

    pub(crate) fn list(&self) -> Vec<AttachmentView> {
        self.engine.operators().attachments(&AttachmentFilter::default())
    }

    pub(crate) fn state(&self, container: &str) -> Option<AttachmentState> {
        let views = self.list();
        let view = views.into_iter().find(|view| view.record.key == key(container));
        view.map(|view| view.state)
    }

    pub(crate) fn command(&mut self) -> Option<HostCommand> {
        self.session.commands.try_recv().ok()
    }

    /// Invariants that hold after every step of every test.
    pub(crate) fn check(&self) {
        let views = self.list();
        assert_eq!(
            views.len(),
            self.engine.operators().attachment_count(),
            "no reservation is left over"
        );
        for (state, number) in self.engine.operators().attachments_by_state() {
            assert_eq!(
                views.iter().filter(|view| view.state == state).count(),
                number,
                "{state:?}"
            );
        }
        let is_unique = |what: Vec<String>| what.iter().collect::<HashSet<_>>().len() == what.len();
        assert!(is_unique(views.iter().map(|view| view.record.vf.to_string()).collect()));
        assert!(is_unique(views.iter().map(|view| view.record.mac.to_string()).collect()));
        let leases = views.iter().flat_map(|view| {
            let Record { leases, network, .. } = &*view.record;
            let domain = (&network.bridge, network.vlan);
            leases.iter().map(move |lease| format!("{} in {domain:?}", lease.address.ip()))
        });
        assert!(is_unique(leases.collect()));
        for port in self.kernel.ports() {
            let held = views.iter().find(|view| {
                view.record.vf == port.representor.vf && view.state != AttachmentState::Releasing
            });
            match held {
                Some(view) => assert!(port.serves(&view.record.port_settings()), "{port:?}"),
                None => assert!(port.is_idle(), "{port:?}"),
            }
        }
    }
}

/// An in-memory disk with an empty journal.
fn disk_with_journal() -> FaultyDisk {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("journal");
    drop(Records::open(&path).unwrap());
    FaultyDisk::holding(std::fs::read(path).unwrap())
}

fn open(
    directory: &TempDir,
    configuration: &Configuration,
    settings: &Settings,
    kernel: &FakeKernel,
    disk: &Option<FaultyDisk>,
) -> Arc<Engine> {
    let records = open_records(directory, disk);
    let (events, programmer) = (|| open_events(directory), kernel.programmer());
    Engine::open(records, events, programmer, configuration.clone(), settings.clone()).unwrap()
}

fn open_events(directory: &TempDir) -> Arc<Events> {
    Arc::new(Events::open(directory.path()))
}

fn open_records(directory: &TempDir, disk: &Option<FaultyDisk>) -> Records {
    let path = directory.path().join("journal");
    let records = match disk.clone() {
        None => Records::open(&path),
        Some(disk) => Records::open_with(&path, move |_| disk.clone()),
    };
    records.unwrap()
}

/// A hello with all of PF 0's VFs that have a representor; those in `in_use` are in use, the others clean.
pub(crate) fn hello(kernel: &FakeKernel, boot_id: &str, in_use: &[FunctionId]) -> Hello {
    Hello {
        connection: ConnectionNumber::default(),
        agent_version: "1".into(),
        boot_id: boot_id.into(),
        capabilities: Vec::new(),
        inventory: inventory(kernel, in_use),
        live: Vec::new(),
        pending: Vec::new(),
        renewed: None,
    }
}

pub(crate) fn inventory(kernel: &FakeKernel, in_use: &[FunctionId]) -> Inventory {
    let function = |vf: FunctionId| VirtualFunction {
        number: vf.vf,
        device: format!("d000:00:00.{}", vf.vf + 1).into(),
        condition: if in_use.contains(&vf) { VfCondition::InUse } else { VfCondition::Clean },
    };
    let vfs = kernel.ports().into_iter().map(|port| function(port.representor.vf)).collect();
    let pf = PhysicalFunction { id: PfId::local(0), vendor_id: 0x1d0f, device_id: 1, vfs };
    Inventory { as_of: HostTime::default(), pfs: vec![pf] }
}

/// An inventory without one VF.
pub(crate) fn without(world: &World, vf: FunctionId) -> Inventory {
    let mut inventory = inventory(&world.kernel, &[]);
    inventory.pfs[0].vfs.retain(|function| function.number != vf.vf);
    inventory
}

pub(crate) async fn free_vfs(world: &World) -> usize {
    let vfs = world.engine.operators().vfs().await.unwrap();
    vfs.iter().filter(|view| view.state == VfState::Free).count()
}

pub(crate) fn live(view: &AttachmentView, in_pod: bool) -> LiveAttachment {
    LiveAttachment { id: view.record.id, in_pod }
}
