//! Settings of a lab, and the configuration files made from them.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use crate::{OpenVswitch, Pki, SlowService, outside};

/// Networks of most tests: blue, green, wire and tiny.
const NETWORKS: &str = include_str!("../fixtures/networks.toml");

/// The DPU's end of the management link of a controller's card.
pub(crate) fn dpu_address(controller: u32) -> String {
    format!("192.168.{}.2", 100 + controller)
}

/// Position of a card: its DPU and its host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CardPosition {
    pub(crate) host: &'static str,
    pub(crate) dpu: &'static str,
    /// The host's controller on the DPU.
    pub(crate) controller: u32,
}

impl CardPosition {
    /// The position in a lab with one host and one DPU.
    pub(crate) const ONLY: Self = Self { host: "node-1", dpu: "dpu-1", controller: 0 };

    /// Name of a PF on the DPU.
    fn pf(&self, number: u32) -> String {
        match self.controller {
            0 => format!("p{number}"),
            controller => format!("c{controller}p{number}"),
        }
    }

    fn host_section(&self, pfs: u32) -> String {
        let pfs: Vec<_> = (0..pfs).map(|number| self.pf(number)).collect();
        format!("[[host]]\nname = {:?}\npfs = {pfs:?}\n", self.host)
    }

    /// Address of the service on the host.
    pub(crate) fn endpoint(&self) -> String {
        format!("{}:7443", dpu_address(self.controller))
    }
}

/// Address of a proxy to the service, in the host's namespace.
pub const PROXY: &str = "127.0.0.1:7444";

/// Address of the metrics, in the namespace of either program.
pub const METRICS: &str = "127.0.0.1:9464";

/// Technique of a lab's card.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CardKind {
    /// Veth pairs, on any kernel.
    #[default]
    Veth,
    /// The kernel's simulated switchdev card.
    Netdevsim,
}

impl CardKind {
    /// Name for `virtual-nic plug --kind`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Veth => "veth",
            Self::Netdevsim => "netdevsim",
        }
    }

    /// Eswitch driver for the card.
    #[must_use]
    pub fn driver(self) -> &'static str {
        match self {
            Self::Veth => "veth",
            Self::Netdevsim => "devlink",
        }
    }
}

/// Fabric of a lab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FabricKind {
    /// A Linux bridge.
    Bridge,
    /// Open vSwitch.
    OpenVswitch,
}

impl Default for FabricKind {
    /// The fabric in `OFFLOAD_TEST_FABRIC`: the same scenarios run on each.
    fn default() -> Self {
        match std::env::var("OFFLOAD_TEST_FABRIC").as_deref() {
            Ok("ovs") => Self::OpenVswitch,
            Ok("bridge") | Err(_) => Self::Bridge,
            Ok(other) => panic!("OFFLOAD_TEST_FABRIC={other} is no fabric: bridge, ovs"),
        }
    }
}

/// Settings of a lab's card.
#[derive(Clone, Copy, Debug)]
pub struct CardSettings {
    /// Technique.
    pub kind: CardKind,
    /// Whether the service programs the eswitch. Without, it leaves the VFs to the host.
    pub has_eswitch: bool,
    /// Controller of a lab's host on the DPU: 0, or 1 as on a BlueField.
    pub controller: u32,
    /// Physical functions.
    pub pfs: u32,
}

impl Default for CardSettings {
    fn default() -> Self {
        let (kind, controller) = (CardKind::default(), CardPosition::ONLY.controller);
        Self { kind, has_eswitch: true, controller, pfs: 1 }
    }
}

/// Link to the Open vSwitch sockets of the DPU with this folder.
pub(crate) fn vswitch_link(folder: &Path) -> PathBuf {
    folder.join("vswitch")
}

/// The agent's `[timeouts]`.
#[derive(Clone, Debug)]
pub struct Timeouts {
    /// Seconds for which STATUS succeeds without the DPU.
    pub grace: u32,
    /// Milliseconds that an attach waits for its VF's carrier at most.
    pub carrier_ms: u32,
    /// Further keys.
    pub others: String,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self { grace: 10, carrier_ms: 200, others: String::new() }
    }
}

/// Default timeouts with further keys.
impl From<&str> for Timeouts {
    fn from(others: &str) -> Self {
        Self { others: others.into(), ..Self::default() }
    }
}

/// Settings of a lab.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The card.
    pub card: CardSettings,
    /// The fabric of a card with an eswitch.
    pub kind_of_fabric: FabricKind,
    /// VFs of each PF.
    pub vfs: u32,
    /// VFs of each host's PF 0 in the pool `default`.
    pub pool: u32,
    /// `[[network]]` sections of the service.
    pub networks: String,
    /// Cool-down of a released address, in seconds.
    pub cool_down: u32,
    /// Failed attaches in a row until a VF is quarantined.
    pub quarantine_after: u32,
    /// Further keys of the service's `[fabric]`.
    pub fabric: String,
    /// Further sections of the service's configuration.
    pub service: String,
    /// Further sections of the agent's configuration.
    pub agent: String,
    /// The agent's timeouts.
    pub timeouts: Timeouts,
    /// Whether both programs serve their metrics on [`METRICS`].
    pub has_metrics: bool,
    /// Whether the service has metrics for each attachment.
    pub has_attachment_metrics: bool,
    /// Whether the agent reaches the DPU through a [`crate::Proxy`].
    pub proxied: bool,
    /// Whether the test itself relays at [`PROXY`]. Then a lab's start does not wait until STATUS succeeds.
    pub relayed: bool,
    /// Makes the service as slow as on a real DPU.
    pub slow: Option<Arc<SlowService>>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            card: CardSettings::default(),
            kind_of_fabric: FabricKind::default(),
            vfs: 4,
            pool: 4,
            networks: NETWORKS.into(),
            cool_down: 60,
            quarantine_after: 3,
            fabric: String::new(),
            service: String::new(),
            agent: String::new(),
            timeouts: Timeouts::default(),
            has_metrics: false,
            has_attachment_metrics: false,
            proxied: false,
            relayed: false,
            slow: None,
        }
    }
}

impl Settings {
    /// A card with this many VFs, all in the pool.
    #[must_use]
    pub fn with_vfs(vfs: u32) -> Self {
        Self { vfs, pool: vfs, ..Self::default() }
    }

    /// Networks with the DPU as gateway, and the uplink `out`, which [`crate::outside_of`] creates.
    #[must_use]
    pub fn with_gateways() -> Self {
        Self { networks: outside::NETWORKS.into(), ..Self::default() }
    }

    /// The kernel's simulated switchdev card, which `hack/vm`'s virtual machine has.
    #[must_use]
    pub fn netdevsim() -> Self {
        let card = CardSettings { kind: CardKind::Netdevsim, ..CardSettings::default() };
        Self { card, ..Self::default() }
    }

    /// `None`: a card without an eswitch has no fabric.
    pub(crate) fn fabric_kind(&self) -> Option<FabricKind> {
        self.card.has_eswitch.then_some(self.kind_of_fabric)
    }

    fn metrics(&self) -> String {
        if self.has_metrics { format!("[metrics]\nlisten = {METRICS:?}\n") } else { String::new() }
    }

    fn attachment_metrics(&self) -> &str {
        if self.has_attachment_metrics { "attachments = true" } else { "" }
    }

    /// Address of the service, as a lab's host reaches it.
    #[must_use]
    pub fn endpoint(&self) -> String {
        self.position().endpoint()
    }

    /// Position of a lab's card.
    pub(crate) fn position(&self) -> CardPosition {
        CardPosition { controller: self.card.controller, ..CardPosition::ONLY }
    }

    /// The service's configuration file.
    #[must_use]
    pub fn service_file(&self, folder: &Path, pki: &Pki) -> String {
        self.service_file_of(&[self.position()], folder, pki)
    }

    /// The service's configuration file for a DPU with these cards, at least one.
    pub(crate) fn service_file_of(
        &self,
        positions: &[CardPosition],
        folder: &Path,
        pki: &Pki,
    ) -> String {
        let hosts: String =
            positions.iter().map(|position| position.host_section(self.card.pfs)).collect();
        let select: Vec<_> = positions
            .iter()
            .map(|position| format!("{}#0-{}", position.pf(0), self.pool - 1))
            .collect();
        let state = folder.join("service");
        let eswitch = if self.card.has_eswitch { self.card.kind.driver() } else { "none" };
        let fabric = match self.fabric_kind() {
            None => "driver = \"none\"".to_owned(),
            Some(FabricKind::Bridge) => "driver = \"bridge\"".to_owned(),
            Some(FabricKind::OpenVswitch) => {
                let socket = vswitch_link(folder).join("db.sock");
                let datapath = OpenVswitch::datapath();
                format!("driver = \"ovs\"\ndatapath = {datapath:?}\ndatabase = {socket:?}")
            }
        };
        format!(
            r#"listen = "0.0.0.0:7443"
state_dir = {state:?}
{tls}
{metrics}
[eswitch]
driver = "{eswitch}"
[fabric]
{fabric}
bridge = "br-offload"
{fabric_keys}
[allocation]
address_cool_down_s = {cool_down}
quarantine_after = {quarantine_after}
{hosts}
[[pool]]
name = "default"
select = {select:?}
{service}
{networks}"#,
            tls = pki.section("dpu", positions[0].dpu),
            fabric_keys = self.fabric,
            metrics = self.metrics() + self.attachment_metrics(),
            cool_down = self.cool_down,
            quarantine_after = self.quarantine_after,
            service = self.service,
            networks = self.networks,
        )
    }

    /// The agent's configuration file.
    #[must_use]
    pub fn agent_file(&self, folder: &Path, pki: &Pki) -> String {
        self.agent_file_of(&self.position(), "", folder, pki)
    }

    /// The configuration file of a card's agent, with further keys of `[vf_source]`.
    pub(crate) fn agent_file_of(
        &self,
        position: &CardPosition,
        vf_source: &str,
        folder: &Path,
        pki: &Pki,
    ) -> String {
        format!(
            r#"socket = {socket:?}
state_dir = {state:?}
boot_id_file = {boot_id:?}
netns_folders = [{netns:?}]
[dpu]
endpoint = "{endpoint}"
name = "{dpu}"
{tls}
{metrics}
[vf_source]
kind = "virtual"
{vf_source}
[timeouts]
unreachable_grace_s = {grace}
carrier_ms = {carrier_ms}
{timeouts}
{agent}
"#,
            endpoint =
                if self.proxied || self.relayed { PROXY.into() } else { position.endpoint() },
            dpu = position.dpu,
            timeouts = self.timeouts.others,
            agent = self.agent,
            socket = folder.join("agent.sock"),
            state = folder.join("agent"),
            boot_id = folder.join("boot-id"),
            netns = folder.join("netns"),
            tls = pki.section("host", position.host),
            metrics = self.metrics(),
            grace = self.timeouts.grace,
            carrier_ms = self.timeouts.carrier_ms,
        )
    }
}
