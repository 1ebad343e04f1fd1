//! The agent's configuration file.

use std::{
    collections::HashSet,
    env,
    path::{Path, PathBuf},
    time::Duration,
};

use bootstrap::{ConfigError, ConfigFile, LogSettings, TracingSettings};
use mtls::{Connector, ExpiryWarning, TlsSettings};
use serde::Deserialize;
use sriov::PciAddress;

use super::{
    delegates::{self, DelegateSettings},
    device_plugin::{self, DevicePluginSettings},
    error::AgentError,
    host_port::{self, HostPort},
    metrics_settings::MetricsSettings,
    out_of_range::out_of_range,
    workloads::WorkloadSettings,
};
use crate::{
    protocol::DEFAULT_SOCKET,
    vf_source::{PciPf, PciSettings},
};

/// Longest of the timeouts that no caller waits for, in seconds.
const LONGEST_S: u64 = 3600;
/// Longest call of Attach, in seconds. With the next four a call of the plugin is answered before
/// the plugin gives up, also where an attach has to be taken back.
const LONGEST_ATTACH_S: u64 = 60;
/// Longest call of Detach, Check or Collect, in seconds.
const LONGEST_DETACH_S: u64 = 15;
/// Longest wait for a VF that comes back, in seconds.
const LONGEST_VF_RETURN_S: u64 = 30;
/// Longest wait for a session, in milliseconds.
const LONGEST_RECONNECT_MS: u64 = 3000;
/// Longest wait for a carrier, in milliseconds.
const LONGEST_CARRIER_MS: u64 = 5000;

/// The variable of the environment that configuration files may have: the name of the node, by Kubernetes' Downward API.
const NODE_NAME: &str = "NODE_NAME";

/// The agent's configuration. configs/host-shim.toml documents every key.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Where the agent listens for the plugin. Its folder is the agent's own.
    #[serde(default = "default_socket")]
    pub socket: PathBuf,
    /// Where the agent keeps its records.
    #[serde(default = "default_state_dir")]
    pub state_dir: PathBuf,
    /// How many days before its end it is told that the certificate expires.
    #[serde(default, rename = "certificate_warning_days")]
    pub certificate_warning: ExpiryWarning,
    /// What tells one boot of the host from the next.
    #[serde(default = "default_boot_id_file")]
    pub boot_id_file: PathBuf,
    /// Where `dpuctl doctor` looks for VFs that no record names: in the network namespaces that these
    /// folders' entries are, or have as `ns/net`. See [`Config::netns_folders`].
    #[serde(default)]
    netns_folders: Option<Vec<PathBuf>>,
    /// What the agents of this host take turns at a pod by: a file that they share.
    #[serde(default = "default_pod_locks")]
    pub pod_locks: PathBuf,
    /// The DPU.
    pub dpu: DpuSettings,
    /// The agent's certificate.
    pub tls: TlsSettings,
    /// The log.
    #[serde(default)]
    pub log: LogSettings,
    /// Where traces go to.
    #[serde(default)]
    pub tracing: TracingSettings,
    /// Metrics.
    #[serde(default)]
    pub metrics: MetricsSettings,
    /// Where VFs come from.
    #[serde(default)]
    pub vf_source: VfSourceSettings,
    /// How long things may take.
    #[serde(default)]
    pub timeouts: Timeouts,
    /// Bounds.
    #[serde(default)]
    pub limits: Limits,
    /// The host's own attachments.
    #[serde(default)]
    pub host_port: Vec<HostPort>,
    /// The kubelet that hands out VFs. `None`: no kubelet does.
    #[serde(default)]
    pub device_plugin: Option<DevicePluginSettings>,
    /// The networks that other CNI plugins make. `None`: none.
    #[serde(default)]
    pub delegates: Option<DelegateSettings>,
    /// Callers without CNI.
    #[serde(default)]
    pub workloads: WorkloadSettings,
}

/// `[dpu]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DpuSettings {
    /// `host:port`
    pub endpoint: String,
    /// The name that its certificate must have.
    pub name: String,
}

/// `[vf_source]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct VfSourceSettings {
    /// The kind of card.
    pub kind: VfSourceKind,
    /// Who keeps the pods to their MAC addresses and VLANs.
    pub mode: VfSourceMode,
    /// The PFs whose VFs are used. Empty: all that the host has.
    pub pfs: Vec<PfSettings>,
    /// The controller that the DPU knows this host's PFs by.
    pub controller: u32,
    /// Whether the kernel looks for drivers for new VFs. `None`: as the card is set.
    pub probe_drivers: Option<bool>,
    /// Where the kernel shows its devices.
    pub sysfs: PathBuf,
}

impl Default for VfSourceSettings {
    fn default() -> Self {
        Self {
            kind: VfSourceKind::Virtual,
            mode: VfSourceMode::Dpu,
            pfs: Vec::new(),
            controller: 0,
            probe_drivers: None,
            sysfs: "/sys".into(),
        }
    }
}

/// The card made of software tells the numbers of its PFs itself.
const UNNUMBERED: &str = "PFs without `number` unless vf_source.kind is \"pci\"";

impl VfSourceSettings {
    fn check(&self) -> Option<String> {
        let addresses: Vec<_> = self.pfs.iter().map(|pf| pf.address.to_string()).collect();
        let refused =
            |range: &str| Some(out_of_range("vf_source.pfs", addresses.join(", "), range));
        if self.kind == VfSourceKind::Virtual && self.mode == VfSourceMode::Legacy {
            return Some(out_of_range("vf_source.mode", "legacy", "\"dpu\" with the virtual card"));
        }
        if self.kind == VfSourceKind::Virtual {
            let is_numbered = self.pfs.iter().any(|pf| pf.number.is_some());
            return is_numbered.then(|| refused(UNNUMBERED)).flatten();
        }
        let distinct = |count: usize| count == self.pfs.len();
        let addresses: HashSet<_> = self.pfs.iter().map(|pf| pf.address).collect();
        let numbers: HashSet<_> = self.pfs.iter().map(PfSettings::number).collect();
        if !(distinct(addresses.len()) && distinct(numbers.len())) {
            return refused("PFs that differ in address and number: give each its `number`");
        }
        None
    }
}

/// A PF of `[vf_source]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PfSettings {
    /// Where it is.
    pub address: PciAddress,
    /// How the DPU numbers it. `None`: as the function of its address.
    #[serde(default)]
    pub number: Option<u16>,
}

impl PfSettings {
    fn number(&self) -> u16 {
        self.number.unwrap_or(self.address.function.into())
    }
}

/// Who keeps the pods to their MAC addresses and VLANs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum VfSourceMode {
    /// The DPU's eswitch.
    #[default]
    Dpu,
    /// The PFs of a card without a DPU.
    Legacy,
}

/// A kind of card.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum VfSourceKind {
    /// The card made of software.
    #[default]
    Virtual,
    /// PCI cards with SR-IOV.
    Pci,
}

/// `[timeouts]`
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Timeouts {
    /// Longest call of Attach, repetitions included, in seconds.
    pub attach_s: u64,
    /// Longest call of Detach, Check or Collect, in seconds.
    pub detach_s: u64,
    /// Longest wait for a VF that comes back from a namespace that ended, in seconds.
    pub vf_return_s: u64,
    /// How long the DPU may be unreachable before STATUS says so, in seconds.
    pub unreachable_grace_s: u64,
    /// How long a call waits for a session that was lost just now, in milliseconds.
    pub reconnect_ms: u64,
    /// Longest wait for a VF's carrier, in milliseconds.
    pub carrier_ms: u64,
    /// Longest attempt to connect to the DPU, in seconds.
    pub connect_s: u64,
    /// How often records and kernel are compared without a cause, in seconds.
    pub reconcile_s: u64,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            attach_s: 30,
            detach_s: 10,
            vf_return_s: 5,
            unreachable_grace_s: 300,
            reconnect_ms: 1000,
            carrier_ms: 200,
            connect_s: 5,
            reconcile_s: 30,
        }
    }
}

/// `[limits]`
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Calls of the plugin that are answered at the same time; more wait.
    pub connections: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { connections: 512 }
    }
}

/// The one key of the file that a caller needs.
#[derive(Deserialize)]
struct CallSocket {
    #[serde(default = "default_socket")]
    socket: PathBuf,
}

/// The file with `${NODE_NAME}` replaced by that variable of the environment.
fn with_node_name(file: ConfigFile) -> Result<ConfigFile, ConfigError> {
    let node = env::var_os(NODE_NAME).map(|name| name.to_string_lossy().into_owned());
    file.with_variable(NODE_NAME, node.as_deref())
}

fn default_socket() -> PathBuf {
    DEFAULT_SOCKET.into()
}

fn default_state_dir() -> PathBuf {
    "/var/lib/dpu-offload/agent".into()
}

fn default_pod_locks() -> PathBuf {
    "/run/dpu-offload/pods.lock".into()
}

/// Where network namespaces are found on most hosts.
const NETNS_FOLDERS: [&str; 3] = ["/run/netns", "/run/docker/netns", "/proc"];

fn default_boot_id_file() -> PathBuf {
    "/proc/sys/kernel/random/boot_id".into()
}

impl Config {
    /// That of an agent of this DPU, with every other key as it is where a file leaves it out.
    #[must_use]
    pub fn new(dpu: DpuSettings, tls: TlsSettings) -> Self {
        Self {
            socket: default_socket(),
            state_dir: default_state_dir(),
            certificate_warning: ExpiryWarning::default(),
            boot_id_file: default_boot_id_file(),
            netns_folders: None,
            pod_locks: default_pod_locks(),
            dpu,
            tls,
            log: LogSettings::default(),
            tracing: TracingSettings::default(),
            metrics: MetricsSettings::default(),
            vf_source: VfSourceSettings::default(),
            timeouts: Timeouts::default(),
            limits: Limits::default(),
            host_port: Vec::new(),
            device_plugin: None,
            delegates: None,
            workloads: WorkloadSettings::default(),
        }
    }

    /// Reads and checks a file, at whose folder relative paths of `[tls]` begin. `${NODE_NAME}` in it is that variable of
    /// the environment.
    ///
    /// # Errors
    /// [`AgentError::Config`] if it can't be read, [`AgentError::Senseless`] if it makes no sense.
    pub fn load(path: &Path) -> Result<Self, AgentError> {
        let mut config: Self = with_node_name(ConfigFile::read(path)?)?.parse()?;
        config.tls.anchor(path);
        config.check().map_err(|problems| {
            let line = |problem: &String| format!("{}: {problem}", path.display());
            AgentError::Senseless(problems.iter().map(line).collect::<Vec<_>>().join("\n"))
        })?;
        Ok(config)
    }

    /// The socket on which the agent with the file at `path` takes calls. The rest of the file may be wrong: an agent goes
    /// on with what it read before.
    ///
    /// # Errors
    /// [`AgentError::Config`], if the file can't be read, is no TOML, or names no path.
    pub(crate) fn socket_in(path: &Path) -> Result<PathBuf, AgentError> {
        let file = ConfigFile::read(path)?;
        let CallSocket { socket } = file.parse()?;
        // A person's shell need not have the variable for the other keys.
        if !socket.to_string_lossy().contains("${") {
            return Ok(socket);
        }
        let CallSocket { socket } = with_node_name(file)?.parse()?;
        Ok(socket)
    }

    /// Where VFs are looked for that no record names. Nowhere for the card made of software, unless
    /// told: all such cards have the same names for their VFs, and another's would be taken for its own.
    pub(super) fn netns_folders(&self) -> Vec<PathBuf> {
        match (&self.netns_folders, self.vf_source.kind) {
            (Some(folders), _) => folders.clone(),
            (None, VfSourceKind::Pci) => NETNS_FOLDERS.map(Into::into).into(),
            (None, VfSourceKind::Virtual) => Vec::new(),
        }
    }

    /// The folders through which network namespaces can be reached, to look at what is stacked on VFs.
    #[must_use]
    pub(super) fn reachable_netns(&self) -> Vec<PathBuf> {
        let named = self.netns_folders.iter().flatten().cloned();
        NETNS_FOLDERS.map(PathBuf::from).into_iter().chain(named).collect()
    }

    /// Checks what the types don't.
    ///
    /// # Errors
    /// All that makes no sense: one sentence each, without a final stop.
    pub fn check(&self) -> Result<(), Vec<String>> {
        let mut problems = self.check_numbers();
        problems.extend(self.check_paths());
        problems.extend(self.log.check().err().map(|error| error.to_string()));
        problems.extend(self.tracing.problems());
        problems.extend(self.check_dpu());
        problems.extend(self.vf_source.check());
        problems.extend(host_port::problems(&self.host_port));
        problems.extend(device_plugin::problems(self.device_plugin.as_ref()));
        problems.extend(delegates::problems(self.delegates.as_ref()));
        if problems.is_empty() { Ok(()) } else { Err(problems) }
    }

    fn check_numbers(&self) -> Vec<String> {
        let timeouts = &self.timeouts;
        let numbers = [
            ("timeouts.attach_s", timeouts.attach_s, 1, LONGEST_ATTACH_S),
            ("timeouts.detach_s", timeouts.detach_s, 1, LONGEST_DETACH_S),
            ("timeouts.vf_return_s", timeouts.vf_return_s, 0, LONGEST_VF_RETURN_S),
            ("timeouts.unreachable_grace_s", timeouts.unreachable_grace_s, 0, LONGEST_S),
            ("timeouts.reconnect_ms", timeouts.reconnect_ms, 0, LONGEST_RECONNECT_MS),
            ("timeouts.carrier_ms", timeouts.carrier_ms, 0, LONGEST_CARRIER_MS),
            ("timeouts.connect_s", timeouts.connect_s, 1, LONGEST_S),
            ("timeouts.reconcile_s", timeouts.reconcile_s, 1, LONGEST_S),
            ("limits.connections", self.limits.connections as u64, 1, 65_536),
        ];
        let wrong = numbers
            .into_iter()
            .filter(|(_, value, lowest, highest)| !(*lowest..=*highest).contains(value));
        wrong
            .map(|(key, value, lowest, highest)| {
                out_of_range(key, value, format_args!("{lowest} to {highest}"))
            })
            .collect()
    }

    fn check_paths(&self) -> Vec<String> {
        let sysfs = &self.vf_source.sysfs;
        let paths = [
            ("socket", &self.socket),
            ("state_dir", &self.state_dir),
            ("pod_locks", &self.pod_locks),
            ("vf_source.sysfs", sysfs),
        ];
        let relative = paths.into_iter().filter(|(_, path)| !path.is_absolute());
        relative.map(|(key, path)| out_of_range(key, path.display(), "an absolute path")).collect()
    }

    fn check_dpu(&self) -> Option<String> {
        let DpuSettings { endpoint, name } = &self.dpu;
        let refused = Connector::check(&self.tls.trust_domain, endpoint, name).err()?;
        Some(format!("`dpu`: {refused}"))
    }
}

impl Config {
    /// What the VFs of PCI cards are looked for by.
    #[must_use]
    pub fn pci_settings(&self) -> PciSettings {
        let settings = &self.vf_source;
        let numbered = |pf: &PfSettings| PciPf { address: pf.address, number: pf.number() };
        PciSettings {
            sysfs: settings.sysfs.clone(),
            pfs: settings.pfs.iter().map(numbered).collect(),
            controller: settings.controller,
            probe_drivers: settings.probe_drivers,
            is_legacy: settings.mode == VfSourceMode::Legacy,
        }
    }
}

impl Timeouts {
    /// Longest call of Attach, repetitions included.
    #[must_use]
    pub const fn attach(&self) -> Duration {
        Duration::from_secs(self.attach_s)
    }

    /// Longest call of Detach, Check or Collect.
    #[must_use]
    pub const fn detach(&self) -> Duration {
        Duration::from_secs(self.detach_s)
    }

    /// Longest wait for a VF that comes back.
    #[must_use]
    pub const fn vf_return(&self) -> Duration {
        Duration::from_secs(self.vf_return_s)
    }

    /// How long the DPU may be unreachable before STATUS says so.
    #[must_use]
    pub const fn unreachable_grace(&self) -> Duration {
        Duration::from_secs(self.unreachable_grace_s)
    }

    /// How long a call waits for a session that was lost just now.
    #[must_use]
    pub const fn reconnect(&self) -> Duration {
        Duration::from_millis(self.reconnect_ms)
    }

    /// Longest wait for a carrier.
    #[must_use]
    pub const fn carrier(&self) -> Duration {
        Duration::from_millis(self.carrier_ms)
    }

    /// Longest attempt to connect.
    #[must_use]
    pub const fn connect(&self) -> Duration {
        Duration::from_secs(self.connect_s)
    }

    /// How often records and kernel are compared without a cause.
    #[must_use]
    pub const fn reconcile(&self) -> Duration {
        Duration::from_secs(self.reconcile_s)
    }
}

#[cfg(test)]
mod tests {
    use bootstrap::load_config;

    use super::*;
    use crate::cni::{environment::Verb, request::call_timeout};

    const LEAST: &str = "
        [dpu]
        endpoint = '192.168.100.2:7443'
        name = 'dpu-1'
        [tls]
        ca = '/etc/dpu-offload/ca.pem'
        certificate = '/etc/dpu-offload/host.pem'
        key = '/etc/dpu-offload/host.key'
    ";

    fn config(more: &str) -> Config {
        bootstrap::parse_config(&format!("{more}\n{LEAST}"), Path::new("/c.toml")).unwrap()
    }

    #[test]
    fn socket_is_read_beside_mistakes() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let socket = |text: &str| {
            std::fs::write(file.path(), text).unwrap();
            Config::socket_in(file.path())
        };
        assert_eq!(socket("sockt = 1\n").unwrap(), Path::new(DEFAULT_SOCKET));
        let beside = "socket = '/run/a.sock'\ndpu.endpoint = '${NODE_NAME}'\nsockt = 1\n";
        assert_eq!(socket(beside).unwrap(), Path::new("/run/a.sock"));
        assert!(socket("socket = 7\n").is_err() && socket("socket = ").is_err());
    }

    #[test]
    fn the_least_configuration_has_good_defaults() {
        let config = config("");
        assert_eq!(config.check(), Ok(()));
        assert_eq!(config.socket, Path::new(DEFAULT_SOCKET));
        assert_eq!(config.timeouts.unreachable_grace(), Duration::from_secs(300));
    }

    #[test]
    fn what_a_program_makes_is_what_the_least_file_says() {
        let file = config("");
        let made = Config::new(file.dpu.clone(), file.tls.clone());
        assert_eq!(format!("{made:?}"), format!("{file:?}"));
    }

    #[test]
    fn the_shipped_configuration_is_good_and_says_the_defaults() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../configs/host-shim.toml");
        let shipped: Config = load_config(&path).unwrap();
        assert_eq!(shipped.check(), Ok(()));
        let default = config("");
        assert_eq!(format!("{:?}", shipped.timeouts), format!("{:?}", default.timeouts));
        assert_eq!(shipped.socket, default.socket);
        assert_eq!(shipped.state_dir, default.state_dir);
        assert_eq!(shipped.pod_locks, default.pod_locks);
        assert_eq!(shipped.boot_id_file, default.boot_id_file);
        assert_eq!(shipped.certificate_warning, default.certificate_warning);
        assert_eq!(shipped.metrics, default.metrics);
        assert_eq!(shipped.netns_folders(), default.netns_folders());
        assert_eq!(format!("{:?}", shipped.vf_source), format!("{:?}", default.vf_source));
    }

    /// Two labs on one machine have VFs of the same names.
    #[test]
    fn a_software_cards_vfs_are_looked_for_only_where_the_configuration_says() {
        assert!(config("").netns_folders().is_empty());
        let pci = config("[vf_source]\nkind = 'pci'");
        assert!(pci.netns_folders().contains(&"/run/netns".into()));
        let told = config("netns_folders = ['/run/pods']");
        assert_eq!(told.netns_folders(), [PathBuf::from("/run/pods")]);
    }

    #[test]
    fn pfs_are_numbered_by_their_function_or_by_hand() {
        let pfs = |pfs: &str| config(&format!("[vf_source]\nkind = 'pci'\npfs = [{pfs}]"));
        let config = pfs("{ address = '0000:03:00.1' }, { address = '0000:04:00.1', number = 7 }");
        assert_eq!(config.check(), Ok(()));
        let numbers: Vec<_> = config.pci_settings().pfs.iter().map(|pf| pf.number).collect();
        assert_eq!(numbers, [1, 7]);
        let alike = pfs("{ address = '0000:03:00.1' }, { address = '0000:04:00.1' }");
        let error = alike.check().unwrap_err().concat();
        assert!(error.contains("`vf_source.pfs` is 0000:03:00.1, 0000:04:00.1, but"), "{error}");
    }

    #[test]
    fn the_virtual_cards_pfs_have_their_numbers() {
        let named = config("[vf_source]\npfs = [{ address = 'd010:00:00.0' }]");
        assert_eq!(named.check(), Ok(()));
        let error = config("[vf_source]\npfs = [{ address = 'd010:00:00.0', number = 1 }]")
            .check()
            .unwrap_err();
        assert!(error[0].ends_with("unless vf_source.kind is \"pci\""), "{error:?}");
    }

    #[test]
    fn the_longest_call_ends_before_the_plugin_gives_up() {
        let seconds = |verb| call_timeout(verb).as_secs();
        let waits = LONGEST_DETACH_S + LONGEST_RECONNECT_MS / 1000;
        let take_back = LONGEST_CARRIER_MS / 1000 + waits;
        let before = device_plugin::LONGEST_ANSWER_MS / 1000 + LONGEST_RECONNECT_MS / 1000;
        assert!(before + LONGEST_ATTACH_S + take_back < seconds(Verb::Add));
        assert!(LONGEST_VF_RETURN_S + waits < seconds(Verb::Del));
        assert!(waits < seconds(Verb::Check));
        assert!(waits < seconds(Verb::Gc));
    }

    #[test]
    fn values_out_of_range_are_refused_by_key() {
        let all = "socket = 'agent.sock'\ntimeouts.attach_s = 0\nlog.level = 'mtls=loud'";
        let told = config(all).check().unwrap_err();
        assert_eq!(told[0], "`timeouts.attach_s` is 0, but must be 1 to 60");
        assert!(told[1].starts_with("`socket` is agent.sock, "), "{told:?}");
        assert!(told.len() == 3 && told[2].starts_with("`log.level` holds"), "{told:?}");
    }

    #[test]
    fn a_dpu_that_can_not_be_is_refused() {
        for (good, bad) in [("192.168.100.2:7443", "192.168.100.2"), ("'dpu-1'", "'DPU 1'")] {
            let text = LEAST.replace(good, bad);
            let config: Config = bootstrap::parse_config(&text, Path::new("/c.toml")).unwrap();
            let told = config.check().unwrap_err();
            assert!(told.len() == 1 && told[0].starts_with("`dpu`: \""), "{told:?}");
        }
    }
}
