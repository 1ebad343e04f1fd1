//! The configuration file: its keys, defaults and checks.
//!
//! `configs/dpu-service.toml` documents every key; a test loads it.

mod allocation;
mod check;
mod limits;
mod metrics;
mod section;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    time::Duration,
};

use bootstrap::{ConfigFile, LogSettings, TracingSettings, socket_address};
use mtls::{ExpiryWarning, TlsSettings};
use serde::{Deserialize, Deserializer, Serialize, de};
use serde_json::Value;
use vf_alloc::{PfId, PoolSpec};

pub use allocation::{Allocation, MacPrefix};
pub use check::Problems;
pub use limits::Limits;
pub use metrics::Metrics;

use crate::{
    attachments::{Configuration, Settings},
    gateway::GatewaySettings,
};
use drivers::settings::{EswitchSettings, FabricSettings};
use model::{HostName, HostRights, Network};

/// The default path of the file; `--config` overrides it.
pub const DEFAULT_PATH: &str = "/etc/dpu-offload/dpu-service.toml";

#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The address and port that the API listens on.
    #[serde(default = "default_listen", deserialize_with = "socket_address")]
    pub listen: SocketAddr,
    /// The folder of the journal.
    #[serde(default = "default_state_dir")]
    pub state_dir: PathBuf,
    /// How many days before its expiry the certificate is reported as expiring.
    #[serde(default, rename = "certificate_warning_days")]
    pub certificate_warning: ExpiryWarning,
    /// The service's certificate, and the certificate authority that it trusts.
    #[serde(default = "default_tls")]
    pub tls: TlsSettings,
    #[serde(default)]
    pub log: LogSettings,
    /// The destination of traces.
    #[serde(default)]
    pub tracing: TracingSettings,
    #[serde(default)]
    pub metrics: Metrics,
    /// The eswitch driver.
    #[serde(default)]
    pub eswitch: EswitchSettings,
    /// The fabric driver, which joins representors and uplinks.
    #[serde(default)]
    pub fabric: FabricSettings,
    /// The way out of networks whose gateway is this DPU.
    #[serde(default)]
    pub gateway: GatewaySettings,
    /// How VFs, addresses and MAC addresses are allocated.
    #[serde(default)]
    pub allocation: Allocation,
    /// Limits on what clients can make the service do.
    #[serde(default)]
    pub limits: Limits,
    /// The hosts that the card is plugged into.
    #[serde(default, rename = "host", skip_serializing)]
    pub hosts: Vec<Host>,
    /// Pools of VFs.
    #[serde(default, rename = "pool", skip_serializing)]
    pub pools: Vec<PoolSpec>,
    #[serde(default, rename = "network", skip_serializing)]
    pub networks: Vec<Network>,
}

/// A host that the card is plugged into.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Host {
    /// The name in its certificate.
    pub name: String,
    /// Its PFs, such as `p0`.
    #[serde(deserialize_with = "pf_ids")]
    pub pfs: Vec<PfId>,
    /// The numbers of VFs that its PFs should have, such as `{ p0 = 16 }`: 0 to 4096. The host leaves other PFs
    /// unchanged.
    #[serde(default, deserialize_with = "vfs_of_pfs")]
    pub vfs: BTreeMap<PfId, u32>,
    /// The names of the networks that it may use. Empty: all.
    #[serde(default)]
    pub networks: BTreeSet<String>,
    /// Whether it may request MAC addresses outside `allocation.mac_prefix`.
    #[serde(default = "yes")]
    pub any_mac: bool,
    /// Whether it may be away: the condition `HostsConnected` ignores it.
    #[serde(default)]
    pub maintenance: bool,
}

impl Host {
    fn rights(&self) -> (HostName, HostRights) {
        let rights = HostRights { networks: self.networks.clone(), any_mac: self.any_mac };
        (HostName(self.name.as_str().into()), rights)
    }
}

const fn yes() -> bool {
    true
}

/// Why a configuration file can't be used.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file can't be read or parsed.
    #[error("{}", bootstrap::Chain(.0))]
    Form(#[from] bootstrap::ConfigError),
    /// The file's values are invalid.
    #[error("{}", problems.with_path(path))]
    Content { path: PathBuf, problems: Problems },
}

impl Config {
    /// Reads and checks the file at `path`.
    pub fn load(path: &Path) -> Result<Self, LoadError> {
        Self::of(&ConfigFile::read(path)?, path)
    }

    /// Reads and checks the content of the file at `path`.
    pub fn of(file: &ConfigFile, path: &Path) -> Result<Self, LoadError> {
        let mut config: Self = file.parse()?;
        config.tls.anchor(path);
        let content = |problems| LoadError::Content { path: path.to_owned(), problems };
        config.check().map_err(content)?;
        Ok(config)
    }

    /// The part that the engine applies while it runs.
    pub(crate) fn for_engine(&self) -> Configuration {
        let host = |host: &Host| (HostName(host.name.as_str().into()), host.pfs.clone());
        Configuration {
            hosts: self.hosts.iter().map(host).collect(),
            rights: self.hosts.iter().map(Host::rights).collect(),
            vfs: self.hosts.iter().flat_map(|host| host.vfs.clone()).collect(),
            pools: self.pools.clone(),
            networks: self.networks.clone(),
        }
    }

    pub(crate) fn under_maintenance(&self) -> BTreeSet<HostName> {
        let hosts = self.hosts.iter().filter(|host| host.maintenance);
        hosts.map(|host| HostName(host.name.as_str().into())).collect()
    }

    /// The part that the engine gets once.
    pub(crate) fn engine_settings(&self) -> Settings {
        Settings {
            address_cool_down: Duration::from_secs(self.allocation.address_cool_down_s),
            mac_prefix: self.allocation.mac_prefix.bytes().to_vec(),
            quarantine_after: self.allocation.quarantine_after,
            attachments: self.limits.attachments,
            networks: self.limits.networks,
            fabric: self.fabric.driver,
            bridges: self.fabric.bridge_names(),
            gateway: self.gateway.clone(),
            own_ports: [self.listen].into_iter().chain(self.metrics.listen).collect(),
            ..Settings::default()
        }
    }

    /// The names of the changed keys that need a restart.
    pub(crate) fn fixed_differences(&self, next: &Self) -> Vec<String> {
        let (mut keys, next) = (self.fixed_keys(), next.fixed_keys());
        keys.retain(|key, value| next.get(key) != Some(value));
        keys.into_keys().collect()
    }

    /// The keys that need a restart, with their values. Keys that apply at once are not serialised, except the log
    /// level.
    fn fixed_keys(&self) -> BTreeMap<String, Value> {
        // Never fails: all paths come from text.
        let file = serde_json::to_value(self).unwrap_or_default();
        let mut keys = BTreeMap::new();
        for (name, value) in file.as_object().into_iter().flatten() {
            match value {
                Value::Object(section) => keys.extend(
                    section.iter().map(|(key, value)| (format!("{name}.{key}"), value.clone())),
                ),
                value => drop(keys.insert(name.clone(), value.clone())),
            }
        }
        keys.remove("log.level");
        keys
    }
}

fn default_listen() -> SocketAddr {
    (Ipv4Addr::UNSPECIFIED, 7443).into()
}

fn default_state_dir() -> PathBuf {
    "/var/lib/dpu-offload/service".into()
}

fn default_tls() -> TlsSettings {
    TlsSettings {
        ca: "/etc/dpu-offload/tls/ca.crt".into(),
        certificate: "/etc/dpu-offload/tls/dpu.crt".into(),
        key: "/etc/dpu-offload/tls/dpu.key".into(),
        trust_domain: "dpu-offload.local".into(),
    }
}

fn pf_ids<'de, D: Deserializer<'de>>(input: D) -> Result<Vec<PfId>, D::Error> {
    let texts = Vec::<String>::deserialize(input)?;
    texts.iter().map(|text| text.parse().map_err(de::Error::custom)).collect()
}

fn vfs_of_pfs<'de, D: Deserializer<'de>>(input: D) -> Result<BTreeMap<PfId, u32>, D::Error> {
    let texts = BTreeMap::<String, u32>::deserialize(input)?;
    let numbers = texts.into_iter().map(|(pf, vfs)| Ok((pf.parse()?, vfs)));
    let numbers: Result<_, vf_alloc::ParseIdError> = numbers.collect();
    numbers.map_err(de::Error::custom)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Config, String> {
        bootstrap::parse_config(text, Path::new("f.toml")).map_err(|error| error.to_string())
    }

    #[track_caller]
    fn assert_refused(text: &str, expected: &str) {
        let error = parse(text).unwrap_err();
        assert!(error.contains(expected), "{error} does not tell {expected:?}");
    }

    /// The keys that are valid at the top or in a section, taken from the error about an invalid one.
    fn keys(section: &str) -> Vec<String> {
        let head = if section.is_empty() { String::new() } else { format!("[{section}]\n") };
        let error = toml::from_str::<Config>(&format!("{head}nothing = 1")).unwrap_err();
        error.message().split('`').skip(3).step_by(2).map(ToOwned::to_owned).collect()
    }

    fn every_key() -> BTreeSet<String> {
        let sections = [
            "tls",
            "log",
            "tracing",
            "metrics",
            "eswitch",
            "fabric",
            "gateway",
            "allocation",
            "limits",
        ];
        let mut all: BTreeSet<_> = keys("").into_iter().collect();
        for section in sections {
            assert!(all.remove(section), "{section}");
            all.extend(keys(section).iter().map(|key| format!("{section}.{key}")));
        }
        all
    }

    #[test]
    fn restart_keys_are_all_compared() {
        let mut compared: BTreeSet<_> = parse("").unwrap().fixed_keys().into_keys().collect();
        compared.extend(["log.level", "host", "pool", "network"].map(ToOwned::to_owned));
        assert_eq!(compared, every_key());
    }

    #[test]
    fn changed_restart_keys_are_named() {
        let changes = [
            ("listen = '0.0.0.0:1'", "listen"),
            ("state_dir = '/s'", "state_dir"),
            ("certificate_warning_days = 1", "certificate_warning_days"),
            ("log.format = 'json'", "log.format"),
            ("tracing.otlp_endpoint = 'http://c:4317'", "tracing.otlp_endpoint"),
            ("tracing.sampling_ratio = 0.5", "tracing.sampling_ratio"),
            ("metrics.listen = '0.0.0.0:2'", "metrics.listen"),
            ("metrics.attachments = true", "metrics.attachments"),
            ("eswitch.driver = 'devlink'", "eswitch.driver"),
            ("eswitch.devices = ['pci/1']", "eswitch.devices"),
            ("eswitch.mode = 'switchdev'", "eswitch.mode"),
            ("fabric.uplinks = ['u']", "fabric.uplinks"),
            ("fabric.keep = ['k']", "fabric.keep"),
            ("fabric.bridges = [{ name = 'b' }]", "fabric.bridges"),
            ("gateway.uplinks = ['u']", "gateway.uplinks"),
            ("allocation.mac_prefix = '06'", "allocation.mac_prefix"),
            ("limits.watchers = 1", "limits.watchers"),
        ];
        let started = parse("").unwrap();
        for (change, key) in changes {
            assert_eq!(started.fixed_differences(&parse(change).unwrap()), [key]);
        }
        let of_tls = "tls = { ca = '/a', certificate = '/c', key = '/k', trust_domain = 't' }";
        let named = started.fixed_differences(&parse(of_tls).unwrap());
        assert_eq!(named, ["tls.ca", "tls.certificate", "tls.key", "tls.trust_domain"]);
        let at_once = "log.level = 'debug'\n[[pool]]\nname = 'a'\nselect = ['p0']\n\
                       [[host]]\nname = 'a'\npfs = ['p0']\n[[network]]\nname = 'a'";
        assert_eq!(started.fixed_differences(&parse(at_once).unwrap()), [""; 0]);
    }

    #[test]
    fn every_key_is_documented() {
        let file = include_str!("../../configs/dpu-service.toml");
        let table = include_str!("../../docs/CONFIGURATION.md");
        let keys = every_key();
        for key in keys.iter().filter(|key| !["host", "pool", "network"].contains(&key.as_str())) {
            let name = key.rsplit('.').next().unwrap();
            let is_it =
                |line: &str| line.trim_start_matches("# ").starts_with(&format!("{name} = "));
            assert!(file.lines().any(is_it), "{key}");
            assert!(table.contains(&format!("`{key}`")), "{key}");
        }
    }

    #[test]
    fn certificates_are_looked_for_beside_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("dpu-service.toml");
        let tls = "host = [{ name = \"a\", pfs = [\"p0\"] }]\n[tls]\nca = \"ca.crt\"\ncertificate = \"pki/dpu.crt\"\nkey = \"/k\"";
        std::fs::write(&path, tls).unwrap();
        let tls = Config::load(&path).unwrap().tls;
        assert_eq!(tls.ca, folder.path().join("ca.crt"));
        assert_eq!(tls.certificate, folder.path().join("pki/dpu.crt"));
        assert_eq!(tls.key, Path::new("/k"));
    }

    #[test]
    fn every_key_has_a_default() {
        let config = parse("").unwrap();
        assert_eq!(config.listen.to_string(), "0.0.0.0:7443");
        assert_eq!(config.allocation.mac_prefix.bytes(), [0x02]);
        assert_eq!(config.limits, Limits::default());
    }

    #[test]
    fn documented_file_states_the_defaults() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../configs/dpu-service.toml");
        let config: Config = bootstrap::load_config(&path).unwrap();
        config.check().unwrap();
        let (hosts, pools, networks) = Default::default();
        assert_eq!(Config { hosts, pools, networks, ..config }, parse("").unwrap());
    }

    #[test]
    fn unknown_keys_are_refused_with_nearest_key() {
        assert_refused("lisen = \"x\"", "f.toml:1:1: unknown key `lisen`: did you mean `listen`?");
        assert_refused(
            "\n[limits]\nconection = 1",
            "f.toml:3:1: unknown key `limits.conection`: did you mean `connections`?",
        );
        assert_refused("[[network]]\nname = \"a\"\nvlans = 1", "did you mean `vlan`?");
        assert_refused("[[pool]]\nname = \"a\"\nselcet = []", "did you mean `select`?");
        assert_refused("[metrics]\nlisen = \"\"", "did you mean `listen`?");
    }

    #[test]
    fn malformed_values_are_refused_with_a_way_out() {
        let cases = [
            ("listen = \"7443\"", "`listen`: \"7443\" is not an address and port: write"),
            ("listen = \"dpu:7443\"", "\"dpu:7443\" is not an address and port"),
            (
                "[metrics]\nlisten = \":9464\"",
                "`metrics.listen`: \":9464\" is not an address and port: write an IP address and a port, \
                 such as \"127.0.0.1:9464\"",
            ),
            ("[[host]]\nname = \"a\"\npfs = [\"eth0\"]", "\"eth0\" does not name a PF, such as p0"),
            ("[[host]]\nname = \"a\"\npfs = []\nvfs = { eth0 = 1 }", "\"eth0\" does not name a PF"),
            ("[allocation]\nmac_prefix = \"00:11\"", "`allocation.mac_prefix`: \"00:11\" is not a"),
            ("[allocation]\nmac_prefix = \"03:11\"", "locally administered and unicast"),
            ("[allocation]\nmac_prefix = \"02:00:00:00:00:00\"", "write 1 to 5 hexadecimal bytes"),
            ("[eswitch]\ndriver = \"vet\"", "unknown value `vet`: did you mean `veth`?"),
            ("[eswitch]\ndevices = [\"0000:03:00.0\"]", "\"0000:03:00.0\" does not name a devlink"),
            ("[eswitch]\nmode = \"legacy\"", "`eswitch.mode`: unknown value `legacy`"),
            ("[[pool]]\nname = \"a\"\nselect = [\"p0#0-70000\"]", "\"p0#0-70000\" selects no VFs"),
            ("[[network]]\nname = \"a\"\nvlan = 70000", "`network[0].vlan`: "),
            (
                "[[network]]\nname = \"a\"\nsubnets = [{ cidr = \"10.1/16\" }]",
                "`network[0].subnets[0]",
            ),
        ];
        for (text, expected) in cases {
            assert_refused(text, expected);
        }
    }
}
