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
    device_plugin::settings::DevicePluginSettings,
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

/// The upper bound of timeouts that no caller waits for, in seconds.
const LONGEST_S: u64 = 3600;
/// The upper bound of an Attach call, in seconds. With the following bounds the plugin is answered before its timeout,
/// even if an attach has to be undone.
const LONGEST_ATTACH_S: u64 = 60;
/// The upper bound of a Detach, Check or Collect call, in seconds.
const LONGEST_DETACH_S: u64 = 15;
const LONGEST_VF_RETURN_S: u64 = 30;
const LONGEST_RECONNECT_MS: u64 = 3000;
const LONGEST_CARRIER_MS: u64 = 5000;

/// The environment variable that configuration files may use: the node's name, by Kubernetes' Downward API.
const NODE_NAME: &str = "NODE_NAME";

/// The agent's configuration. configs/host-shim.toml documents every key.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The path of the agent's socket, in a folder that only the agent writes to.
    #[serde(default = "default_socket")]
    pub socket: PathBuf,
    /// The folder of the agent's records.
    #[serde(default = "default_state_dir")]
    pub state_dir: PathBuf,
    /// How many days before its end the certificate is reported as expiring.
    #[serde(default, rename = "certificate_warning_days")]
    pub certificate_warning: ExpiryWarning,
    /// The file that identifies the host's boot.
    #[serde(default = "default_boot_id_file")]
    pub boot_id_file: PathBuf,
    /// Folders whose entries are network namespaces, or have them as `ns/net`. `dpuctl doctor` searches them for VFs
    /// that no record names. See [`Config::netns_folders`].
    #[serde(default)]
    netns_folders: Option<Vec<PathBuf>>,
    /// The file by which all agents of this host lock pods.
    #[serde(default = "default_pod_locks")]
    pub pod_locks: PathBuf,
    /// The DPU.
    pub dpu: DpuSettings,
    /// The agent's certificate.
    pub tls: TlsSettings,
    /// The log.
    #[serde(default)]
    pub log: LogSettings,
    /// The export of traces.
    #[serde(default)]
    pub tracing: TracingSettings,
    /// The metrics endpoint.
    #[serde(default)]
    pub metrics: MetricsSettings,
    /// The source of VFs.
    #[serde(default)]
    pub vf_source: VfSourceSettings,
    /// Timeouts of calls and waits.
    #[serde(default)]
    pub timeouts: Timeouts,
    /// Limits of the agent's own resources.
    #[serde(default)]
    pub limits: Limits,
    /// The host's own attachments.
    #[serde(default)]
    pub host_port: Vec<HostPort>,
    /// The kubelet's device plugin API. `None`: it is not served.
    #[serde(default)]
    pub device_plugin: Option<DevicePluginSettings>,
    /// Networks of other CNI plugins. `None`: none.
    #[serde(default)]
    pub delegates: Option<DelegateSettings>,
    /// Settings for callers without CNI.
    #[serde(default)]
    pub workloads: WorkloadSettings,
}

/// `[dpu]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DpuSettings {
    /// The DPU's address: `host:port`.
    pub endpoint: String,
    /// The name in the DPU's certificate.
    pub name: String,
}

/// `[vf_source]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct VfSourceSettings {
    /// The kind of card.
    pub kind: VfSourceKind,
    /// Whether the DPU or the PF enforces pods' MAC addresses and VLANs.
    pub mode: VfSourceMode,
    /// The PFs whose VFs are used. Empty: all of the host.
    pub pfs: Vec<PfSettings>,
    /// The DPU's number of this host's controller.
    pub controller: u32,
    /// Whether the kernel probes drivers for new VFs. `None`: leave the card's setting.
    pub probe_drivers: Option<bool>,
    /// The mount point of sysfs.
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

/// The virtual card's PFs have fixed numbers.
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
    /// The PCI address.
    pub address: PciAddress,
    /// The PF's number on the DPU. `None`: the function number of its address.
    #[serde(default)]
    pub number: Option<u16>,
}

impl PfSettings {
    fn number(&self) -> u16 {
        self.number.unwrap_or(self.address.function.into())
    }
}

/// What enforces pods' MAC addresses and VLANs.
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
    /// The virtual card.
    #[default]
    Virtual,
    /// PCI cards with SR-IOV.
    Pci,
}

/// `[timeouts]`
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Timeouts {
    /// The timeout of Attach with its retries, in seconds.
    pub attach_s: u64,
    /// The timeout of Detach, Check or Collect, in seconds.
    pub detach_s: u64,
    /// How long to wait for a VF that returns from an ended namespace, in seconds.
    pub vf_return_s: u64,
    /// How long the DPU may be unreachable before STATUS fails, in seconds.
    pub unreachable_grace_s: u64,
    /// How long a call waits for a new session after one was lost, in milliseconds.
    pub reconnect_ms: u64,
    /// How long to wait for a VF's carrier, in milliseconds.
    pub carrier_ms: u64,
    /// The timeout of one connection attempt to the DPU, in seconds.
    pub connect_s: u64,
    /// The interval of comparisons of records with the kernel, in seconds.
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
    /// The number of plugin calls that run at a time; further calls wait.
    pub connections: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { connections: 512 }
    }
}

/// The part of the file that a caller of the agent needs.
#[derive(Deserialize)]
struct CallSocket {
    #[serde(default = "default_socket")]
    socket: PathBuf,
}

/// Replaces `${NODE_NAME}` in the file by the environment variable.
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

/// Where most hosts have network namespaces.
const NETNS_FOLDERS: [&str; 3] = ["/run/netns", "/run/docker/netns", "/proc"];

fn default_boot_id_file() -> PathBuf {
    "/proc/sys/kernel/random/boot_id".into()
}

impl Config {
    /// A configuration for this DPU with the defaults of all other keys.
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

    /// Reads and checks a file. Relative paths of `[tls]` start at its folder; `${NODE_NAME}` is replaced by the
    /// environment variable.
    ///
    /// # Errors
    /// [`AgentError::Config`]: the file cannot be read. [`AgentError::InvalidValues`]: values are invalid.
    pub fn load(path: &Path) -> Result<Self, AgentError> {
        let mut config: Self = with_node_name(ConfigFile::read(path)?)?.parse()?;
        config.tls.anchor(path);
        config.check().map_err(|problems| {
            let line = |problem: &String| format!("{}: {problem}", path.display());
            AgentError::InvalidValues(problems.iter().map(line).collect::<Vec<_>>().join("\n"))
        })?;
        Ok(config)
    }

    /// The socket in the file at `path`. Other keys may be invalid: a running agent keeps the configuration that it
    /// loaded.
    ///
    /// # Errors
    /// [`AgentError::Config`]: the file cannot be read, is no TOML, or the socket is no path.
    pub(crate) fn socket_in(path: &Path) -> Result<PathBuf, AgentError> {
        let file = ConfigFile::read(path)?;
        let CallSocket { socket } = file.parse()?;
        // The variable may be missing in a person's shell; the socket rarely uses it.
        if !socket.to_string_lossy().contains("${") {
            return Ok(socket);
        }
        let CallSocket { socket } = with_node_name(file)?.parse()?;
        Ok(socket)
    }

    /// Where VFs without a record are searched. By default nowhere for the virtual card: all virtual cards use the same
    /// VF names, and another card's VFs would be mistaken for this one's.
    pub(super) fn netns_folders(&self) -> Vec<PathBuf> {
        match (&self.netns_folders, self.vf_source.kind) {
            (Some(folders), _) => folders.clone(),
            (None, VfSourceKind::Pci) => NETNS_FOLDERS.map(Into::into).into(),
            (None, VfSourceKind::Virtual) => Vec::new(),
        }
    }

    /// The folders through which network namespaces are reached to find upper devices of VFs.
    #[must_use]
    pub(super) fn reachable_netns(&self) -> Vec<PathBuf> {
        let named = self.netns_folders.iter().flatten().cloned();
        NETNS_FOLDERS.map(PathBuf::from).into_iter().chain(named).collect()
    }

    /// Checks what the types cannot express.
    ///
    /// # Errors
    /// All invalid values: one sentence each, without a full stop.
    pub fn check(&self) -> Result<(), Vec<String>> {
        let mut problems = self.check_numbers();
        problems.extend(self.check_paths());
        problems.extend(self.log.check().err().map(|error| error.to_string()));
        problems.extend(self.tracing.problems());
        problems.extend(self.check_dpu());
        problems.extend(self.vf_source.check());
        problems.extend(host_port::problems(&self.host_port));
        problems.extend(self.device_plugin.iter().flat_map(DevicePluginSettings::problems));
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
        let check = |(key, value, lowest, highest)| {
            let is_wrong = !(lowest..=highest).contains(&value);
            is_wrong.then(|| out_of_range(key, value, format_args!("{lowest} to {highest}")))
        };
        numbers.into_iter().filter_map(check).collect()
    }

    fn check_paths(&self) -> Vec<String> {
        let paths = [
            ("socket", &self.socket),
            ("state_dir", &self.state_dir),
            ("pod_locks", &self.pod_locks),
            ("vf_source.sysfs", &self.vf_source.sysfs),
        ];
        let relative = paths.into_iter().filter(|(_, path)| !path.is_absolute());
        relative.map(|(key, path)| out_of_range(key, path.display(), "an absolute path")).collect()
    }

    fn check_dpu(&self) -> Option<String> {
        let DpuSettings { endpoint, name } = &self.dpu;
        let refused = Connector::check(&self.tls.trust_domain, endpoint, name).err()?;
        Some(format!("`dpu`: {refused}"))
    }

    /// The settings of the PCI source.
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
    pub const fn attach(&self) -> Duration {
        Duration::from_secs(self.attach_s)
    }

    pub const fn detach(&self) -> Duration {
        Duration::from_secs(self.detach_s)
    }

    pub const fn vf_return(&self) -> Duration {
        Duration::from_secs(self.vf_return_s)
    }

    pub const fn unreachable_grace(&self) -> Duration {
        Duration::from_secs(self.unreachable_grace_s)
    }

    pub const fn reconnect(&self) -> Duration {
        Duration::from_millis(self.reconnect_ms)
    }

    pub const fn carrier(&self) -> Duration {
        Duration::from_millis(self.carrier_ms)
    }

    pub const fn connect(&self) -> Duration {
        Duration::from_secs(self.connect_s)
    }

    pub const fn reconcile(&self) -> Duration {
        Duration::from_secs(self.reconcile_s)
    }
}

#[cfg(test)]
mod tests {
    use bootstrap::load_config;

    use super::*;
    use crate::{
        agent::device_plugin::settings::LONGEST_ANSWER_MS,
        cni::{environment::Verb, request::call_timeout},
    };

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
    fn minimal_configuration_has_valid_defaults() {
        let config = config("");
        assert_eq!(config.check(), Ok(()));
        assert_eq!(config.socket, Path::new(DEFAULT_SOCKET));
        assert_eq!(config.timeouts.unreachable_grace(), Duration::from_secs(300));
    }

    #[test]
    fn built_configuration_equals_minimal_file() {
        let file = config("");
        let made = Config::new(file.dpu.clone(), file.tls.clone());
        assert_eq!(format!("{made:?}"), format!("{file:?}"));
    }

    #[test]
    fn shipped_agent_configuration_has_the_defaults() {
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
    fn virtual_vfs_are_searched_only_where_configured() {
        assert!(config("").netns_folders().is_empty());
        let pci = config("[vf_source]\nkind = 'pci'");
        assert!(pci.netns_folders().contains(&"/run/netns".into()));
        let config = config("netns_folders = ['/run/pods']");
        assert_eq!(config.netns_folders(), [PathBuf::from("/run/pods")]);
    }

    #[test]
    fn pf_number_defaults_to_its_function() {
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
    fn virtual_pfs_take_no_number() {
        let named = config("[vf_source]\npfs = [{ address = 'd010:00:00.0' }]");
        assert_eq!(named.check(), Ok(()));
        let error = config("[vf_source]\npfs = [{ address = 'd010:00:00.0', number = 1 }]")
            .check()
            .unwrap_err();
        assert!(error[0].ends_with("unless vf_source.kind is \"pci\""), "{error:?}");
    }

    #[test]
    fn longest_call_ends_before_plugin_timeout() {
        let seconds = |verb| call_timeout(verb).as_secs();
        let waits = LONGEST_DETACH_S + LONGEST_RECONNECT_MS / 1000;
        let take_back = LONGEST_CARRIER_MS / 1000 + waits;
        let before = LONGEST_ANSWER_MS / 1000 + LONGEST_RECONNECT_MS / 1000;
        assert!(before + LONGEST_ATTACH_S + take_back < seconds(Verb::Add));
        assert!(LONGEST_VF_RETURN_S + waits < seconds(Verb::Del));
        assert!(waits < seconds(Verb::Check));
        assert!(waits < seconds(Verb::Gc));
    }

    #[test]
    fn agent_values_out_of_range_are_refused() {
        let all = "socket = 'agent.sock'\ntimeouts.attach_s = 0\nlog.level = 'mtls=loud'";
        let problems = config(all).check().unwrap_err();
        assert_eq!(problems[0], "`timeouts.attach_s` is 0, but must be 1 to 60");
        assert!(problems[1].starts_with("`socket` is agent.sock, "), "{problems:?}");
        assert!(
            problems.len() == 3 && problems[2].starts_with("`log.level` holds"),
            "{problems:?}"
        );
    }

    #[test]
    fn malformed_dpu_settings_are_refused() {
        for (good, bad) in [("192.168.100.2:7443", "192.168.100.2"), ("'dpu-1'", "'DPU 1'")] {
            let text = LEAST.replace(good, bad);
            let config: Config = bootstrap::parse_config(&text, Path::new("/c.toml")).unwrap();
            let problems = config.check().unwrap_err();
            assert!(problems.len() == 1 && problems[0].starts_with("`dpu`: \""), "{problems:?}");
        }
    }
}
