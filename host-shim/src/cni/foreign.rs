//! Keys of other plugins in the configuration: a user who comes from sriov-cni, ovs-cni or
//! host-device would else get a pod without what they say.

use serde_json::{Map, Value};

use super::{
    error::CniError,
    go_json::{fits, is_zero},
    wishes::unsupported,
};

/// What those plugins read, and what does the same here.
const KEYS: [(&str, &str); 22] = [
    ("bridge", "the service's `fabric.bridge` is the bridge of all networks"),
    ("device", CHOSEN),
    ("dns", "set `dns` of the network with `dpuctl apply`, or declare the capability dns"),
    ("hwaddr", CHOSEN),
    ("interface_type", "the DPU makes the port"),
    ("ipam", "the DPU hands out addresses: set `subnets` of the network with `dpuctl apply`"),
    ("kernelpath", CHOSEN),
    ("link_state", "the link is up while the VF is"),
    ("master", CHOSEN),
    ("max_tx_rate", "set `bandwidth.egressRate` of the network with `dpuctl apply`, in bit/s"),
    ("min_tx_rate", "there are no guaranteed rates"),
    ("mirrors", "there are no mirrors"),
    ("mtu", "set `mtu` of the network with `dpuctl apply`"),
    ("ofport_request", "the DPU makes the port"),
    ("spoofchk", SPOOFING),
    ("trunk", "set `trunk` of the network with `dpuctl apply`"),
    ("trust", SPOOFING),
    ("vfid", CHOSEN),
    ("vlan", "set `vlan` of the network with `dpuctl apply`"),
    ("vlanProto", "VLANs are of 802.1Q"),
    ("vlanQoS", "VLANs have no priorities"),
    ("vlan_trunk", "set `trunk` of the network with `dpuctl apply`"),
];

const CHOSEN: &str = "the DPU chooses the VF, unless `deviceID` names one by its PCI address";
const SPOOFING: &str = "set `allowMacSpoofing` of the network with `dpuctl apply`";

/// A key of another plugin that asks for something.
#[derive(Clone, Debug)]
pub struct ForeignKey {
    key: String,
    value: Value,
    instead: &'static str,
}

impl ForeignKey {
    /// The first one in a configuration.
    #[must_use]
    pub fn first_of(configuration: &Map<String, Value>) -> Option<Self> {
        let asking = configuration.iter().filter(|(_, value)| !is_zero(value));
        asking.into_iter().find_map(|(key, value)| {
            let (_, instead) = KEYS.into_iter().find(|(name, _)| fits(key, name))?;
            Some(Self { key: key.clone(), value: value.clone(), instead })
        })
    }

    /// That it is not supported, and what is.
    #[must_use]
    pub fn refusal(&self) -> CniError {
        let Self { key, value, instead } = self;
        unsupported(key, value).with_details(format!("UNSUPPORTED: leave it out: {instead}"))
    }
}
