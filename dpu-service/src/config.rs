//! The configuration file: its keys, their defaults and what makes sense together.
//!
//! `configs/dpu-service.toml` documents every key; a test loads it.

mod check;
mod networks;

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    time::Duration,
};

use bootstrap::{LogSettings, socket_address};
use metrics::MetricsSettings;
use mtls::{ExpiryWarning, TlsSettings};
use serde::{Deserialize, Deserializer, de};
use vf_alloc::{PfId, PoolSpec};

pub use check::Problems;
pub(crate) use networks::{LimitsOf, check_bandwidth, is_label};
pub use networks::{check_network, check_networks};

use crate::{
    attachments::{Configuration, Settings},
    drivers::{EswitchSettings, FabricSettings},
    model::{HostName, Network},
};

/// Where the file is unless `--config` says otherwise.
pub const DEFAULT_PATH: &str = "/etc/dpu-offload/dpu-service.toml";

/// The whole file.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The address and port that the API listens on.
    #[serde(default = "default_listen", deserialize_with = "socket_address")]
    pub listen: SocketAddr,
    /// Where the journal is kept.
    #[serde(default = "default_state_dir")]
    pub state_dir: PathBuf,
    /// How many days before its end it is told that the certificate expires.
    #[serde(default, rename = "certificate_warning_days")]
    pub certificate_warning: ExpiryWarning,
    /// The service's certificate, and whom it trusts.
    #[serde(default = "default_tls")]
    pub tls: TlsSettings,
    /// Logs.
    #[serde(default)]
    pub log: LogSettings,
    /// Metrics.
    #[serde(default)]
    pub metrics: MetricsSettings,
    /// How VFs' representors are reached.
    #[serde(default)]
    pub eswitch: EswitchSettings,
    /// What joins representors and uplinks.
    #[serde(default)]
    pub fabric: FabricSettings,
    /// How VFs, addresses and MAC addresses are handed out.
    #[serde(default)]
    pub allocation: Allocation,
    /// Limits on what clients can make the service do.
    #[serde(default)]
    pub limits: Limits,
    /// The hosts that the card is plugged into.
    #[serde(default, rename = "host")]
    pub hosts: Vec<Host>,
    /// Pools of VFs.
    #[serde(default, rename = "pool")]
    pub pools: Vec<PoolSpec>,
    /// Networks.
    #[serde(default, rename = "network")]
    pub networks: Vec<Network>,
}

/// How VFs, addresses and MAC addresses are handed out.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Allocation {
    /// How long an address rests before it is handed out again, in seconds: 0 to 86400.
    pub address_cool_down_s: u64,
    /// The first bytes of the MAC addresses handed out: 1 to 5, locally administered unicast.
    #[serde(deserialize_with = "mac_prefix")]
    pub mac_prefix: MacPrefix,
    /// Failures in a row after which a VF is quarantined: 1 to 100.
    pub quarantine_after: u32,
}

/// The first bytes of MAC addresses: 1 to 5.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MacPrefix(Vec<u8>);

impl MacPrefix {
    /// The bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Limits on what clients can make the service do. Where one is reached, the call or connection is
/// refused; nothing that runs is harmed.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Connections with a verified certificate: 1 to 65536.
    pub connections: usize,
    /// Of these, of one identity: 1 to 65536.
    pub connections_per_identity: usize,
    /// TLS handshakes under way. One more drops the oldest: 1 to 65536.
    pub handshakes: usize,
    /// How long a handshake may take, in seconds: 1 to 60.
    pub handshake_timeout_s: u64,
    /// Calls under way on one connection: 1 to 65536.
    pub streams_per_connection: u32,
    /// Calls under way on all connections: 1 to 65536. Open `Session` and `Watch` streams don't count.
    pub in_flight: usize,
    /// Request headers of one call, in bytes: 1024 to 1048576.
    pub header_bytes: u32,
    /// Open `Watch` streams: 1 to 4096.
    pub watchers: usize,
    /// Attachments of all hosts: 1 to 65536.
    pub attachments: usize,
    /// Networks, from this file and through the API: 1 to 4096.
    pub networks: usize,
    /// How often an agent sends its heartbeat, in milliseconds: 100 to 60000. Three missed ones end
    /// its session.
    pub heartbeat_ms: u32,
    /// How often an idle connection is checked, in seconds: 1 to 3600.
    pub keepalive_s: u64,
    /// How long calls under way may take to finish when the service stops, in seconds: 0 to 300.
    pub shutdown_s: u64,
}

/// A host that the card is plugged into.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Host {
    /// Its name, as in its certificate.
    pub name: String,
    /// The PFs that it has, such as `p0`.
    #[serde(deserialize_with = "pf_ids")]
    pub pfs: Vec<PfId>,
    /// How many VFs PFs shall have, such as `{ p0 = 16 }`: 0 to 4096. The host leaves the others as
    /// they are.
    #[serde(default, deserialize_with = "vfs_of_pfs")]
    pub vfs: BTreeMap<PfId, u32>,
}

impl Default for Allocation {
    fn default() -> Self {
        Self { address_cool_down_s: 60, mac_prefix: MacPrefix(vec![0x02]), quarantine_after: 3 }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 1024,
            connections_per_identity: 16,
            handshakes: 256,
            handshake_timeout_s: 5,
            streams_per_connection: 256,
            in_flight: 512,
            header_bytes: 16 * 1024,
            watchers: 64,
            attachments: 4096,
            networks: 1024,
            heartbeat_ms: 2000,
            keepalive_s: 20,
            shutdown_s: 10,
        }
    }
}

/// Why a configuration file can't be used.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// It can't be read, or its form is wrong.
    #[error("{}", bootstrap::Chain(.0))]
    Form(#[from] bootstrap::ConfigError),
    /// It makes no sense.
    #[error("{}", problems.told_of(path))]
    Content {
        /// The file.
        path: PathBuf,
        /// All that is wrong.
        problems: Problems,
    },
}

impl Config {
    /// Reads and checks the file at `path`.
    ///
    /// # Errors
    /// See [`LoadError`].
    pub fn load(path: &Path) -> Result<Self, LoadError> {
        let mut config: Self = bootstrap::load_config(path)?;
        config.tls.anchor(path);
        let content = |problems| LoadError::Content { path: path.to_owned(), problems };
        config.check().map_err(content)?;
        Ok(config)
    }

    /// What the engine takes over while it runs.
    pub(crate) fn for_engine(&self) -> Configuration {
        let host = |host: &Host| (HostName(host.name.as_str().into()), host.pfs.clone());
        Configuration {
            hosts: self.hosts.iter().map(host).collect(),
            vfs: self.hosts.iter().flat_map(|host| host.vfs.clone()).collect(),
            pools: self.pools.clone(),
            networks: self.networks.clone(),
        }
    }

    /// What the engine is given once.
    pub(crate) fn engine_settings(&self) -> Settings {
        Settings {
            address_cool_down: Duration::from_secs(self.allocation.address_cool_down_s),
            mac_prefix: self.allocation.mac_prefix.bytes().to_vec(),
            quarantine_after: self.allocation.quarantine_after,
            attachments: self.limits.attachments,
            networks: self.limits.networks,
            ..Settings::default()
        }
    }

    /// The keys that differ and that only a restart takes over.
    pub(crate) fn fixed_differences(&self, next: &Self) -> Vec<&'static str> {
        let differing = |pairs: &[(&'static str, bool)]| -> Vec<_> {
            pairs.iter().filter(|(_, differs)| *differs).map(|(key, _)| *key).collect()
        };
        macro_rules! compare {
            ($($key:literal: $($field:ident).+),+ $(,)?) => {
                differing(&[$(($key, self.$($field).+ != next.$($field).+)),+])
            };
        }
        compare! {
            "listen": listen,
            "state_dir": state_dir,
            "certificate_warning_days": certificate_warning,
            "tls.ca": tls.ca,
            "tls.certificate": tls.certificate,
            "tls.key": tls.key,
            "tls.trust_domain": tls.trust_domain,
            "log.format": log.format,
            "metrics.listen": metrics.listen,
            "eswitch.driver": eswitch.driver,
            "eswitch.devices": eswitch.devices,
            "eswitch.mode": eswitch.mode,
            "fabric.driver": fabric.driver,
            "fabric.bridge": fabric.bridge,
            "fabric.uplinks": fabric.uplinks,
            "allocation.address_cool_down_s": allocation.address_cool_down_s,
            "allocation.mac_prefix": allocation.mac_prefix,
            "allocation.quarantine_after": allocation.quarantine_after,
            "limits.connections": limits.connections,
            "limits.connections_per_identity": limits.connections_per_identity,
            "limits.handshakes": limits.handshakes,
            "limits.handshake_timeout_s": limits.handshake_timeout_s,
            "limits.streams_per_connection": limits.streams_per_connection,
            "limits.in_flight": limits.in_flight,
            "limits.header_bytes": limits.header_bytes,
            "limits.watchers": limits.watchers,
            "limits.attachments": limits.attachments,
            "limits.networks": limits.networks,
            "limits.heartbeat_ms": limits.heartbeat_ms,
            "limits.keepalive_s": limits.keepalive_s,
            "limits.shutdown_s": limits.shutdown_s,
        }
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

fn mac_prefix<'de, D: Deserializer<'de>>(input: D) -> Result<MacPrefix, D::Error> {
    let text = String::deserialize(input)?;
    parse_mac_prefix(&text).ok_or_else(|| {
        de::Error::custom(format!(
            "{text:?} is not a prefix for MAC addresses: write 1 to 5 hexadecimal bytes with colons, \
             the first of them locally administered and unicast (x2, x6, xa or xe), such as \
             \"02:5e\""
        ))
    })
}

fn parse_mac_prefix(text: &str) -> Option<MacPrefix> {
    let byte = |part: &str| {
        let is_hex = part.len() == 2 && part.bytes().all(|b| b.is_ascii_hexdigit());
        is_hex.then(|| u8::from_str_radix(part, 16).ok()).flatten()
    };
    let bytes = text.split(':').map(byte).collect::<Option<Vec<u8>>>()?;
    let is_local_unicast = bytes.first().is_some_and(|first| first & 0b11 == 0b10);
    (bytes.len() <= 5 && is_local_unicast).then_some(MacPrefix(bytes))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn parse(text: &str) -> Result<Config, String> {
        bootstrap::parse_config(text, Path::new("f.toml")).map_err(|error| error.to_string())
    }

    #[track_caller]
    fn assert_refused(text: &str, expected: &str) {
        let error = parse(text).unwrap_err();
        assert!(error.contains(expected), "{error} does not tell {expected:?}");
    }

    /// The keys that may stand at the top or in a section, by what is said of one that may not.
    fn keys(section: &str) -> Vec<String> {
        let head = if section.is_empty() { String::new() } else { format!("[{section}]\n") };
        let error = toml::from_str::<Config>(&format!("{head}nothing = 1")).unwrap_err();
        error.message().split('`').skip(3).step_by(2).map(ToOwned::to_owned).collect()
    }

    fn every_key() -> BTreeSet<String> {
        let sections = ["tls", "log", "metrics", "eswitch", "fabric", "allocation", "limits"];
        let mut all: BTreeSet<_> = keys("").into_iter().collect();
        for section in sections {
            assert!(all.remove(section), "{section}");
            all.extend(keys(section).iter().map(|key| format!("{section}.{key}")));
        }
        all
    }

    #[test]
    fn every_key_that_waits_for_a_restart_is_named() {
        let fixed = "listen = \"0.0.0.0:1\"\nstate_dir = \"/s\"\ncertificate_warning_days = 1\n\
                     tls = { ca = \"/a\", certificate = \"/c\", key = \"/k\", trust_domain = \"t\" }\n\
                     log.format = \"json\"\nmetrics.listen = \"0.0.0.0:2\"\n\
                     eswitch = { driver = \"devlink\", devices = [\"pci/1\"], mode = \"switchdev\" }\n\
                     fabric = { driver = \"none\", bridge = \"b\", uplinks = [\"u\"] }\n\
                     allocation = { address_cool_down_s = 1, mac_prefix = \"06\", quarantine_after = 1 }\n\
                     [limits]\nconnections = 1\nconnections_per_identity = 1\nhandshakes = 1\n\
                     handshake_timeout_s = 1\nstreams_per_connection = 1\nin_flight = 1\n\
                     header_bytes = 1\nwatchers = 1\nattachments = 1\nnetworks = 1\n\
                     heartbeat_ms = 1\nkeepalive_s = 1\nshutdown_s = 1";
        let (started, changed) = (parse("").unwrap(), parse(fixed).unwrap());
        let named: BTreeSet<_> =
            started.fixed_differences(&changed).into_iter().map(ToOwned::to_owned).collect();
        let mut waiting = every_key();
        for at_once in ["log.level", "host", "pool", "network"] {
            assert!(waiting.remove(at_once), "{at_once}");
        }
        assert_eq!(named, waiting);
        let at_once = "log.level = \"debug\"\n[[pool]]\nname = \"a\"\nselect = [\"p0\"]";
        assert!(started.fixed_differences(&parse(at_once).unwrap()).is_empty());
    }

    #[test]
    fn certificates_are_looked_for_beside_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("dpu-service.toml");
        let tls = "[tls]\nca = \"ca.crt\"\ncertificate = \"pki/dpu.crt\"\nkey = \"/k\"";
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
    fn the_documented_file_is_good_and_states_the_defaults() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../configs/dpu-service.toml");
        let config: Config = bootstrap::load_config(&path).unwrap();
        config.check().unwrap();
        let defaults = parse("").unwrap();
        assert_eq!(config.listen, defaults.listen);
        assert_eq!(config.state_dir, defaults.state_dir);
        assert_eq!(config.certificate_warning, defaults.certificate_warning);
        assert_eq!(config.tls, defaults.tls);
        assert_eq!(config.log, defaults.log);
        assert_eq!(config.metrics, defaults.metrics);
        assert_eq!(config.eswitch, defaults.eswitch);
        assert_eq!(config.fabric, defaults.fabric);
        assert_eq!(config.allocation, defaults.allocation);
        assert_eq!(config.limits, defaults.limits);
    }

    #[test]
    fn unknown_keys_are_refused_with_place_and_nearest_key() {
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
    fn values_of_a_wrong_form_are_refused_with_a_way_out() {
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
                "[[network]]\nname = \"a\"\nsubnet = [{ cidr = \"10.1/16\" }]",
                "`network[0].subnet[0]",
            ),
        ];
        for (text, expected) in cases {
            assert_refused(text, expected);
        }
    }
}
