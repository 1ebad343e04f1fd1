//! The drivers by their names in the configuration: the sections `eswitch` and `fabric`, and the one place that
//! creates drivers. Each driver's own settings and checks are in its file. `docs/DRIVERS.md` describes how to add a
//! driver.

use std::{path::PathBuf, sync::Arc};

use netlink::{DevlinkDevice, EswitchMode};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::{
    driver::Refused,
    eswitch::{
        Eswitch,
        devlink::{DevlinkEswitch, DevlinkSettings},
        veth::VethEswitch,
    },
    fabric::{
        BridgeSettings, Bridges, Fabric,
        bridge::{BridgeAbilities, BridgeFabric},
        ovs::{DATABASE, Datapath, OvsFabric, OvsSettings, Vswitch, check_database},
    },
    probe::KernelAbilities,
    programmer::Programmer,
};

/// The section `eswitch`, with the keys of all drivers.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct EswitchSettings {
    /// The driver.
    pub driver: EswitchDriver,
    /// The cards, for driver `devlink`. Empty: every card in switchdev mode.
    #[serde(deserialize_with = "devices", serialize_with = "names")]
    pub devices: Vec<DevlinkDevice>,
    /// The mode to put these cards into. `None`: they stay as they are.
    pub mode: Option<SwitchMode>,
}

/// The eswitch drivers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum EswitchDriver {
    /// A virtual card: a representor is the other end of a veth pair.
    #[default]
    Veth,
    /// A card with devlink, in switchdev mode.
    Devlink,
    /// No eswitch: the hosts' SR-IOV cards have no DPU.
    None,
}

/// An eswitch mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SwitchMode {
    /// VFs have representors.
    Switchdev,
}

/// The section `fabric`, with the keys of all drivers.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct FabricSettings {
    /// The driver.
    pub driver: FabricDriver,
    /// The bridge's name, for drivers `bridge` and `ovs`. The driver creates a missing bridge.
    pub bridge: String,
    /// Netdevs that join the bridge as uplinks, for the same drivers.
    pub uplinks: Vec<String>,
    /// Netdevs that join the bridge untagged, such as a host's PF, for the same drivers.
    pub keep: Vec<String>,
    /// Further bridges, for networks that name one.
    pub bridges: Vec<FurtherBridge>,
    /// The socket of Open vSwitch's database, for driver `ovs`.
    pub database: PathBuf,
    /// The datapath of a bridge that driver `ovs` creates.
    pub datapath: Datapath,
}

/// A further bridge. The driver creates a missing one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(
    deny_unknown_fields,
    expecting = "a bridge's table: write [[fabric.bridges]] and below it name = \"br-storage\""
)]
pub struct FurtherBridge {
    /// Its name.
    pub name: String,
    /// Netdevs that join it as uplinks.
    #[serde(default)]
    pub uplinks: Vec<String>,
    /// Netdevs that join it untagged.
    #[serde(default)]
    pub keep: Vec<String>,
}

/// The fabric drivers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum FabricDriver {
    /// A Linux bridge.
    #[default]
    Bridge,
    /// A bridge of Open vSwitch.
    Ovs,
    /// No fabric, where there is no eswitch.
    None,
}

impl FabricDriver {
    const ALL: [Self; 3] = [Self::Bridge, Self::Ovs, Self::None];

    /// Whether the driver tracks connections, and so enforces networks' `allow`: see [`Fabric::set_guard`].
    pub const fn keeps_rules(self) -> bool {
        matches!(self, Self::Ovs)
    }

    /// Whether the driver has links for gateways: see [`Fabric::set_gateways`].
    pub const fn has_gateways(self) -> bool {
        matches!(self, Self::Bridge)
    }

    /// Why a network can't have `setting` with this driver; `can` tells which drivers support it. `None`: this one
    /// does.
    pub fn lacks(self, setting: &str, can: fn(Self) -> bool) -> Option<String> {
        if can(self) {
            return None;
        }
        let able = Self::ALL.into_iter().filter(|driver| can(*driver));
        let able: Vec<_> = able.map(|driver| format!("{:?}", driver.name())).collect();
        Some(format!(
            "{setting} needs fabric.driver = {}, and this DPU has {:?}: use that fabric, or leave {setting} out",
            able.join(" or "),
            self.name()
        ))
    }

    /// The driver's name in the configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bridge => "bridge",
            Self::Ovs => "ovs",
            Self::None => "none",
        }
    }
}

impl Default for FabricSettings {
    fn default() -> Self {
        Self {
            driver: FabricDriver::Bridge,
            bridge: "br-offload".into(),
            uplinks: Vec::new(),
            keep: Vec::new(),
            bridges: Vec::new(),
            database: DATABASE.into(),
            datapath: Datapath::default(),
        }
    }
}

fn devices<'de, D: Deserializer<'de>>(input: D) -> Result<Vec<DevlinkDevice>, D::Error> {
    let texts = Vec::<String>::deserialize(input)?;
    texts.iter().map(|text| text.parse().map_err(de::Error::custom)).collect()
}

fn names<S: Serializer>(devices: &[DevlinkDevice], output: S) -> Result<S::Ok, S::Error> {
    output.collect_seq(devices.iter().map(ToString::to_string))
}

/// Probes the kernel, then opens the drivers in the calling thread's network namespace.
///
/// # Errors
/// When the kernel can't be asked, or a driver can't work here.
pub fn open(eswitch: &EswitchSettings, fabric: &FabricSettings) -> Result<Programmer, Refused> {
    let abilities = KernelAbilities::probe()?;
    let eswitch = open_eswitch(eswitch, &abilities)?;
    // Both or neither are set: see `check`.
    match eswitch.zip(open_fabric(fabric, &abilities)?) {
        Some((eswitch, fabric)) => Ok(Programmer::new(eswitch, fabric)),
        None => Ok(Programmer::without_representors()),
    }
}

fn open_eswitch(
    settings: &EswitchSettings,
    abilities: &KernelAbilities,
) -> Result<Option<Arc<dyn Eswitch>>, Refused> {
    Ok(Some(match settings.driver {
        EswitchDriver::Veth => Arc::new(VethEswitch::open(abilities)?),
        EswitchDriver::Devlink => Arc::new(DevlinkEswitch::open(settings.devlink(), abilities)?),
        EswitchDriver::None => return Ok(None),
    }))
}

fn open_fabric(
    settings: &FabricSettings,
    abilities: &KernelAbilities,
) -> Result<Option<Arc<dyn Fabric>>, Refused> {
    let bridges: Vec<_> = match settings.driver {
        FabricDriver::Bridge => {
            let of_bridges = BridgeAbilities::probe()?;
            let open = |bridge: BridgeSettings| -> Result<(_, Arc<dyn Fabric>), Refused> {
                let fabric = BridgeFabric::open(&bridge, of_bridges.clone(), abilities)?;
                Ok((bridge.name, Arc::new(fabric)))
            };
            settings.bridges().into_iter().map(open).collect::<Result<_, _>>()?
        }
        FabricDriver::Ovs => {
            let vswitch = Arc::new(Vswitch::at(settings.database.clone()));
            let open = |bridge: BridgeSettings| -> Result<(_, Arc<dyn Fabric>), Refused> {
                let (name, settings) = (bridge.name.clone(), settings.ovs(bridge));
                Ok((name, Arc::new(OvsFabric::open(&settings, &vswitch)?)))
            };
            settings.bridges().into_iter().map(open).collect::<Result<_, _>>()?
        }
        FabricDriver::None => return Ok(None),
    };
    Ok(Bridges::joined(bridges))
}

impl EswitchSettings {
    fn devlink(&self) -> DevlinkSettings {
        let mode = self.mode.map(|SwitchMode::Switchdev| EswitchMode::Switchdev);
        DevlinkSettings { devices: self.devices.clone(), mode }
    }
}

impl FabricSettings {
    /// The names of its bridges. The first one serves networks that name none.
    pub fn bridge_names(&self) -> Vec<String> {
        if self.driver == FabricDriver::None {
            return Vec::new();
        }
        let further = self.bridges.iter().map(|bridge| &bridge.name);
        std::iter::once(&self.bridge).chain(further).cloned().collect()
    }

    /// Whether one of its bridges has that link as an uplink or a kept link.
    pub fn has_link(&self, name: &String) -> bool {
        let has =
            |uplinks: &[String], keep: &[String]| uplinks.contains(name) || keep.contains(name);
        has(&self.uplinks, &self.keep)
            || self.bridges.iter().any(|bridge| has(&bridge.uplinks, &bridge.keep))
    }

    fn bridges(&self) -> Vec<BridgeSettings> {
        let names = self.bridge_names();
        let settings = |name: &String, uplinks: &[String], keep: &[String]| BridgeSettings {
            name: name.clone(),
            uplinks: uplinks.to_vec(),
            kept: keep.to_vec(),
            siblings: names.iter().filter(|other| *other != name).cloned().collect(),
        };
        let further =
            self.bridges.iter().map(|bridge| settings(&bridge.name, &bridge.uplinks, &bridge.keep));
        std::iter::once(settings(&self.bridge, &self.uplinks, &self.keep)).chain(further).collect()
    }

    fn check_bridges(&self) -> Vec<String> {
        let bridges = self.bridges();
        let places = std::iter::once(("fabric", "bridge"))
            .chain(std::iter::repeat(("fabric.bridges", "name")));
        let each = bridges.iter().zip(places);
        let mut problems: Vec<_> =
            each.flat_map(|(bridge, (section, key))| bridge.check(section, key)).collect();
        problems.extend(BridgeSettings::check_together(&bridges));
        problems
    }

    fn ovs(&self, bridge: BridgeSettings) -> OvsSettings {
        OvsSettings { bridge, datapath: self.datapath }
    }

    /// Whether a key of driver `ovs` alone is set.
    fn is_about_ovs(&self) -> bool {
        let unset = Self::default();
        (&self.database, self.datapath) != (&unset.database, unset.datapath)
    }
}

/// Finds errors in the two sections: one sentence each.
pub fn check(eswitch: &EswitchSettings, fabric: &FabricSettings) -> Vec<String> {
    let mut problems = check_eswitch(eswitch);
    problems.extend(check_pair(eswitch.driver, fabric.driver));
    problems.extend(check_fabric(fabric));
    problems
}

fn check_eswitch(settings: &EswitchSettings) -> Vec<String> {
    let devlink = settings.devlink();
    match settings.driver {
        EswitchDriver::Devlink => devlink.check(),
        EswitchDriver::Veth | EswitchDriver::None if devlink != DevlinkSettings::default() => {
            vec!["eswitch.devices and eswitch.mode are for eswitch.driver = \"devlink\"".into()]
        }
        EswitchDriver::Veth | EswitchDriver::None => Vec::new(),
    }
}

fn check_pair(eswitch: EswitchDriver, fabric: FabricDriver) -> Option<String> {
    let is_alone = (eswitch == EswitchDriver::None) != (fabric == FabricDriver::None);
    is_alone.then(|| {
        "eswitch.driver = \"none\" and fabric.driver = \"none\" go together: set both or neither"
            .into()
    })
}

fn check_fabric(settings: &FabricSettings) -> Vec<String> {
    match settings.driver {
        FabricDriver::Ovs => {
            let mut problems = settings.check_bridges();
            problems.extend(check_database(&settings.database));
            problems
        }
        FabricDriver::Bridge | FabricDriver::None if settings.is_about_ovs() => {
            vec!["fabric.database and fabric.datapath are for fabric.driver = \"ovs\"".into()]
        }
        FabricDriver::Bridge => settings.check_bridges(),
        FabricDriver::None if !(settings.uplinks.is_empty() && settings.keep.is_empty()) => {
            let reported =
                "fabric.uplinks and fabric.keep are for fabric.driver = \"bridge\" or \"ovs\"";
            vec![reported.into()]
        }
        FabricDriver::None if !settings.bridges.is_empty() => {
            vec!["fabric.bridges is for fabric.driver = \"bridge\" or \"ovs\"".into()]
        }
        FabricDriver::None => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cards_are_named_as_devlink_names_them() {
        let text = "driver = 'devlink'\ndevices = ['pci/0000:03:00.0']\nmode = 'switchdev'";
        let settings: EswitchSettings = toml::from_str(text).unwrap();
        assert_eq!(check(&settings, &FabricSettings::default()), [""; 0]);
        let cards = settings.devlink();
        assert_eq!(cards.devices[0].to_string(), "pci/0000:03:00.0");
        assert_eq!(cards.mode, Some(EswitchMode::Switchdev));
    }

    #[test]
    fn further_bridge_must_be_a_table() {
        let reported =
            toml::from_str::<FabricSettings>("bridges = ['b2']").unwrap_err().to_string();
        assert!(reported.contains("[[fabric.bridges]]"), "{reported}");
    }

    /// The names of the methods of the trait in `source`.
    fn methods(source: &str) -> impl Iterator<Item = &str> {
        let contract = source.split("pub trait ").nth(1).unwrap();
        let contract = contract.split("\n}\n").next().unwrap();
        contract.lines().filter_map(|line| line.strip_prefix("    fn ")?.split('(').next())
    }

    #[test]
    fn drivers_page_names_every_method_and_driver() {
        let page = include_str!("../../../docs/DRIVERS.md");
        let contracts = [include_str!("eswitch/mod.rs"), include_str!("fabric/mod.rs")];
        let methods: Vec<_> = contracts.into_iter().flat_map(methods).collect();
        assert!(methods.len() > 20, "{methods:?}");
        let missing = methods.iter().filter(|name| !page.contains(&format!("`{name}`")));
        assert_eq!(Vec::from_iter(missing), [&""; 0]);
        let refused = toml::from_str::<EswitchSettings>("driver = ''").unwrap_err().to_string()
            + &toml::from_str::<FabricSettings>("driver = ''").unwrap_err().to_string();
        let named: Vec<_> =
            refused.split('`').skip(1).step_by(2).filter(|n| !n.is_empty()).collect();
        assert!(named.contains(&"devlink") && named.contains(&"bridge"), "{named:?}");
        for name in named {
            assert!(page.contains(&format!("`{name}`")), "{name}");
        }
    }
}
