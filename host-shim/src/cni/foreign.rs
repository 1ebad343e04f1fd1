//! Keys of other plugins and places in the configuration. A user of sriov-cni, ovs-cni or host-device, or one who puts
//! a key in the wrong place, would otherwise get a pod without that setting.

use serde_json::{Map, Value};

use super::{
    environment::{quoted, shown},
    error::{CniError, code},
    go_json::{fits, is_zero},
};

/// What replaces a key here.
#[derive(Clone, Copy, Debug)]
enum Instead {
    /// An explanation.
    Words(&'static str),
    /// A setting of the network.
    Setting(Setting),
    /// A setting of the network, or the runtime's value of this capability.
    Capability(&'static str, Setting),
    /// A setting of the network that is needed only if the key does not have this value: pods are held to their MAC
    /// addresses by default.
    Spoofing(&'static str, Setting),
    /// A setting that lists further sources, or one that disables the check. Not needed if the key has this value,
    /// which asks for nothing.
    Sources(&'static str, Setting, Setting),
}

/// A setting of the network.
#[derive(Clone, Copy, Debug)]
struct Setting {
    /// The key for `dpuctl apply`.
    applied: &'static str,
    /// The key in the service's configuration file.
    filed: &'static str,
}

impl Setting {
    const fn new(applied: &'static str, filed: &'static str) -> Self {
        Self { applied, filed }
    }

    /// A setting with the same key in both places.
    const fn named(name: &'static str) -> Self {
        Self::new(name, name)
    }
}

const EGRESS_RATE: Setting = Setting::new("bandwidth.egressRate", "bandwidth.egress_rate");
const EGRESS_SHARE: Setting = Setting::new("bandwidth.egressShare", "bandwidth.egress_share");
const ALLOWED_SOURCES: Setting = Setting::new("allowedSources", "allowed_sources");
const MAC_SPOOFING: Setting = Setting::new("antiSpoofing", "anti_spoofing");
const LIMITS: Instead = Instead::Capability("bandwidth", Setting::named("bandwidth"));
const CHOSEN: Instead =
    Instead::Words("the DPU chooses the VF, unless `deviceID` names one by its PCI address");
const MAPPED_BY_RUNTIME: &str =
    "the runtime passes them where the plugin has the capability `\"portMappings\": true`";
const MADE_BY_DPU: Instead = Instead::Words("the DPU makes the port");

/// The foreign keys and what replaces each.
const KEYS: [(&str, Instead); 29] = [
    ("CNIDeviceInfoFile", Instead::Words("the runtime passes it in `runtimeConfig`")),
    ("bandwidth", LIMITS),
    ("bridge", Instead::Setting(Setting::named("bridge"))),
    ("device", CHOSEN),
    ("dns", Instead::Capability("dns", Setting::named("dns"))),
    ("egressBurst", LIMITS),
    ("egressRate", LIMITS),
    ("hwaddr", CHOSEN),
    ("ingressBurst", LIMITS),
    ("ingressRate", LIMITS),
    ("interface_type", MADE_BY_DPU),
    ("ipam", Instead::Setting(Setting::named("subnets"))),
    ("kernelpath", CHOSEN),
    ("link_state", Instead::Words("the link is up while the VF is")),
    ("master", CHOSEN),
    ("max_tx_rate", Instead::Setting(EGRESS_RATE)),
    ("min_tx_rate", Instead::Setting(EGRESS_SHARE)),
    ("mirrors", Instead::Words("there are no mirrors")),
    ("mtu", Instead::Setting(Setting::named("mtu"))),
    ("ofport_request", MADE_BY_DPU),
    ("portMappings", Instead::Words(MAPPED_BY_RUNTIME)),
    ("spoofchk", Instead::Spoofing("on", MAC_SPOOFING)),
    ("trunk", Instead::Setting(Setting::named("trunk"))),
    ("trust", Instead::Sources("off", ALLOWED_SOURCES, MAC_SPOOFING)),
    ("vfid", CHOSEN),
    ("vlan", Instead::Setting(Setting::named("vlan"))),
    ("vlanProto", Instead::Words("VLANs are of 802.1Q")),
    ("vlanQoS", Instead::Words("VLANs have no priorities")),
    ("vlan_trunk", Instead::Setting(Setting::named("trunk"))),
];

/// A key of another plugin or place that has a value.
#[derive(Clone, Debug)]
pub struct ForeignKey {
    key: String,
    value: Value,
    instead: Instead,
}

impl ForeignKey {
    /// Finds the first such key in a configuration.
    #[must_use]
    pub fn first_of(configuration: &Map<String, Value>) -> Option<Self> {
        let asking = configuration.iter().filter(|(_, value)| !is_zero(value));
        asking.into_iter().find_map(|(key, value)| {
            let (_, instead) = KEYS.into_iter().find(|(name, _)| fits(key, name))?;
            Some(Self { key: key.clone(), value: value.clone(), instead })
        })
    }

    /// The error for the key, with what replaces it in `network`.
    #[must_use]
    pub fn refusal(&self, network: &str) -> CniError {
        let advice = self.advice(network);
        unsupported(&self.key, &self.value)
            .with_details(format!("UNSUPPORTED: leave it out: {advice}"))
    }

    fn advice(&self, network: &str) -> String {
        match self.instead {
            Instead::Words(words) => words.into(),
            Instead::Setting(setting) => how_to_set(setting, network),
            Instead::Capability(capability, setting) => format!(
                "the runtime passes it in `runtimeConfig` where `capabilities` has \
                 `\"{capability}\": true`; or {}",
                how_to_set(setting, network)
            ),
            Instead::Spoofing(usual, setting) | Instead::Sources(usual, _, setting)
                if self.value == usual =>
            {
                format!(
                    "pods can send from no other MAC address than theirs anyway, unless `{}` of the \
                     network is set",
                    setting.applied
                )
            }
            Instead::Spoofing(_, setting) => how_to_set(setting, network),
            Instead::Sources(_, sources, check) => format!(
                "to let pods send from further MAC addresses, {}; `{}` of the network ends the check",
                how_to_set(sources, network),
                check.applied
            ),
        }
    }
}

fn how_to_set(Setting { applied, filed }: Setting, network: &str) -> String {
    let network = match network {
        "" => "the DPU's default network".into(),
        named => format!("network {}", quoted(named)),
    };
    // Other plugins' rates are in Mbit/s.
    let is_rate = [EGRESS_RATE, EGRESS_SHARE].iter().any(|rate| rate.applied == applied);
    let unit = if is_rate { ", in bit/s" } else { "" };
    format!(
        "set `{applied}` of {network} with `dpuctl apply`, or `{filed}` in the service's file if the \
         network comes from there{unit}"
    )
}

/// The error for a request that cannot be served.
pub(super) fn unsupported(key: &str, value: &Value) -> CniError {
    let message = format!("{key} {} is not supported", shown(value));
    CniError::new(code::UNSUPPORTED_FIELD, message)
        .with_details("UNSUPPORTED: leave it out, or drop the capability from the configuration")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cni::error::code;

    fn first_of(fields: &Value) -> Option<ForeignKey> {
        ForeignKey::first_of(fields.as_object().unwrap())
    }

    /// A user of sriov-cni, ovs-cni or host-device must not silently get an untagged port.
    #[test]
    fn foreign_keys_are_refused_with_replacement() {
        for (fields, instead) in [
            (json!({"vlan": 100}), "`vlan` of network \"blue\" with `dpuctl apply`, or `vlan` in"),
            (json!({"Vlan": 100}), "`vlan` of network \"blue\""),
            (json!({"vlanQoS": 3}), "no priorities"),
            (json!({"mtu": 9000}), "`mtu` of network \"blue\""),
            (json!({"ipam": {"type": "host-local"}}), "`subnets` of network \"blue\""),
            (json!({"spoofchk": "off"}), "`anti_spoofing` in"),
            (json!({"trust": "on"}), "`allowedSources` of network \"blue\""),
            (json!({"trust": "on"}), "`antiSpoofing` of the network"),
            (json!({"link_state": "enable"}), "the VF is"),
            (json!({"min_tx_rate": 1}), "`bandwidth.egressShare` of network \"blue\""),
            (json!({"min_tx_rate": 1}), "in bit/s"),
            (json!({"max_tx_rate": 100}), "`bandwidth.egressRate` of network"),
            (
                json!({"bridge": "br1"}),
                "`bridge` of network \"blue\" with `dpuctl apply`, or `bridge`",
            ),
            (json!({"trunk": [{"id": 7}]}), "`trunk` of network"),
            (json!({"vlan_trunk": "7"}), "`trunk` of network"),
            (json!({"device": "eth1"}), "`deviceID`"),
        ] {
            let error = first_of(&fields).unwrap().refusal("blue");
            let (key, value) = fields.as_object().unwrap().iter().next().unwrap();
            assert_eq!(error.code, code::UNSUPPORTED_FIELD, "{error:?}");
            assert!(error.message.starts_with(&format!("{key} {value} is ")), "{error:?}");
            assert!(error.details.contains(instead), "{error:?}");
        }
    }

    #[test]
    fn misplaced_keys_are_refused_with_their_place() {
        for (fields, place) in [
            (json!({"bandwidth": {"ingressRate": 8000}}), "`runtimeConfig`"),
            (json!({"ingressRate": 8000}), "`\"bandwidth\": true`"),
            (json!({"EgressBurst": 8000}), "`bandwidth` of network \"blue\""),
            (json!({"dns": {"nameservers": ["10.0.0.10"]}}), "`\"dns\": true`"),
            (json!({"portMappings": [{"hostPort": 80}]}), "`\"portMappings\": true`"),
            (json!({"CNIDeviceInfoFile": "/run/a"}), "`runtimeConfig`"),
        ] {
            let error = first_of(&fields).unwrap().refusal("blue");
            assert_eq!(error.code, code::UNSUPPORTED_FIELD, "{error:?}");
            assert!(error.details.contains(place), "{error:?}");
        }
    }

    #[test]
    fn foreign_keys_with_default_value_need_nothing() {
        for fields in [json!({"spoofchk": "on"}), json!({"trust": "off"})] {
            let error = first_of(&fields).unwrap().refusal("blue");
            assert_eq!(error.code, code::UNSUPPORTED_FIELD, "{error:?}");
            assert!(error.details.contains("leave it out"), "{error:?}");
        }
    }

    #[test]
    fn empty_network_name_is_the_default_network() {
        let error = first_of(&json!({"vlan": 7})).unwrap().refusal("");
        assert!(error.details.contains("default network"), "{error:?}");
    }

    #[test]
    fn empty_foreign_keys_are_ignored() {
        let fields = json!({
            "ipam": {}, "dns": {}, "vlan": 0, "mtu": 0, "spoofchk": "", "trunk": null, "bridge": "",
            "bandwidth": {"ingressRate": 0}, "logLevel": "debug", "capabilities": {"mac": true},
        });
        assert!(first_of(&fields).is_none());
        assert!(first_of(&json!({"ipam": {"type": ""}})).is_none());
    }
}
