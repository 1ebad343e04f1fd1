//! The drivers by the names that the configuration gives them: its two sections, which of their keys is
//! whose, and the one place where drivers are made. What a driver is to be told, and what makes sense in
//! that, is in its own file. `docs/DRIVERS.md` is for whoever adds one.

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
        BridgeSettings, Fabric,
        bridge::{BridgeAbilities, BridgeFabric},
        ovs::{DATABASE, Datapath, OvsFabric, OvsSettings},
    },
    probe::KernelAbilities,
    programmer::Programmer,
};

/// How VFs' representors are reached: the section, with the keys of all drivers.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct EswitchSettings {
    /// Which driver.
    pub driver: EswitchDriver,
    /// The cards, for driver `devlink`. Empty: every one in switchdev mode.
    #[serde(deserialize_with = "devices", serialize_with = "names")]
    pub devices: Vec<DevlinkDevice>,
    /// The mode that these cards are put in. `None`: they are left as they are.
    pub mode: Option<SwitchMode>,
}

/// The drivers of eswitches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum EswitchDriver {
    /// A virtual card: a representor is the other end of a veth pair.
    #[default]
    Veth,
    /// A card that the kernel's devlink knows, in switchdev mode.
    Devlink,
    /// There is none: the hosts' SR-IOV cards have no DPU.
    None,
}

/// A mode that a card can be put in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SwitchMode {
    /// VFs have representors.
    Switchdev,
}

/// What joins representors and uplinks: the section, with the keys of all drivers.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct FabricSettings {
    /// Which driver.
    pub driver: FabricDriver,
    /// The bridge's name, for drivers `bridge` and `ovs`. It is created if it does not exist.
    pub bridge: String,
    /// Netdevs that join the bridge as uplinks, likewise.
    pub uplinks: Vec<String>,
    /// Netdevs that join the bridge untagged, likewise: that of a host's PF, say.
    pub keep: Vec<String>,
    /// The socket of Open vSwitch's database, for driver `ovs`.
    pub database: PathBuf,
    /// What forwards in a bridge that driver `ovs` creates.
    pub datapath: Datapath,
}

/// The drivers of fabrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum FabricDriver {
    /// A Linux bridge.
    #[default]
    Bridge,
    /// A bridge of Open vSwitch.
    Ovs,
    /// There is none, as there is no eswitch.
    None,
}

impl FabricDriver {
    /// Its name, as in the configuration.
    pub(crate) const fn name(self) -> &'static str {
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

/// Opens the drivers in the calling thread's network namespace, once it was probed what this kernel
/// can do.
///
/// # Errors
/// When the kernel can't be talked to, or a driver can't work here at all.
pub(crate) fn open(
    eswitch: &EswitchSettings,
    fabric: &FabricSettings,
) -> Result<Programmer, Refused> {
    let abilities = KernelAbilities::probe()?;
    let eswitch = open_eswitch(eswitch, &abilities)?;
    // The configuration has both or neither: see `check`.
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
    Ok(Some(match settings.driver {
        FabricDriver::Bridge => {
            let of_bridges = BridgeAbilities::probe()?;
            Arc::new(BridgeFabric::open(&settings.bridge(), of_bridges, abilities)?)
        }
        FabricDriver::Ovs => Arc::new(OvsFabric::open(&settings.ovs())?),
        FabricDriver::None => return Ok(None),
    }))
}

impl EswitchSettings {
    fn devlink(&self) -> DevlinkSettings {
        let mode = self.mode.map(|SwitchMode::Switchdev| EswitchMode::Switchdev);
        DevlinkSettings { devices: self.devices.clone(), mode }
    }
}

impl FabricSettings {
    fn bridge(&self) -> BridgeSettings {
        BridgeSettings {
            name: self.bridge.clone(),
            uplinks: self.uplinks.clone(),
            kept: self.keep.clone(),
        }
    }

    fn ovs(&self) -> OvsSettings {
        OvsSettings {
            bridge: self.bridge(),
            database: self.database.clone(),
            datapath: self.datapath,
        }
    }

    /// Whether a key is set that only driver `ovs` has.
    fn is_about_ovs(&self) -> bool {
        let unset = Self::default();
        (&self.database, self.datapath) != (&unset.database, unset.datapath)
    }
}

/// What makes no sense in the two sections, one sentence each.
pub(crate) fn check(eswitch: &EswitchSettings, fabric: &FabricSettings) -> Vec<String> {
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
        FabricDriver::Ovs => settings.ovs().check(),
        FabricDriver::Bridge | FabricDriver::None if settings.is_about_ovs() => {
            vec!["fabric.database and fabric.datapath are for fabric.driver = \"ovs\"".into()]
        }
        FabricDriver::Bridge => settings.bridge().check(),
        FabricDriver::None if !(settings.uplinks.is_empty() && settings.keep.is_empty()) => {
            let told =
                "fabric.uplinks and fabric.keep are for fabric.driver = \"bridge\" or \"ovs\"";
            vec![told.into()]
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

    /// The names of the methods of the trait in `source`.
    fn methods(source: &str) -> impl Iterator<Item = &str> {
        let contract = source.split("pub trait ").nth(1).unwrap();
        let contract = contract.split("\n}\n").next().unwrap();
        contract.lines().filter_map(|line| line.strip_prefix("    fn ")?.split('(').next())
    }

    #[test]
    fn the_page_for_driver_authors_tells_of_every_method_and_driver() {
        let page = include_str!("../../docs/DRIVERS.md");
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
