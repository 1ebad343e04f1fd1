//! A PF's settings for its VFs, for cards without a DPU's eswitch (`ip link set PF vf N …`).

use std::collections::BTreeMap;

use netlink_packet_route::{
    RouteNetlinkMessage,
    link::{
        LinkAttribute, LinkExtentMask, LinkMessage, LinkVfInfo, VfInfo, VfInfoLinkState, VfInfoMac,
        VfInfoRate, VfInfoSpoofCheck, VfInfoTrust, VfInfoVlan, VfLinkState as Code,
    },
};
use serde::{Deserialize, Serialize};

use crate::{
    error::Error,
    link_change::{message_about, on_or_off},
    mac::MacAddress,
    request::{Existing, LINK, Request},
    rtnl::Rtnl,
};

/// A PF's settings for one of its VFs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VfSettings {
    /// The only MAC address that the VF may have. `None`: any.
    pub mac: Option<MacAddress>,
    /// VLAN of the VF's frames on the wire, 1 to 4094. 0: none.
    pub vlan: u16,
    /// Priority in that VLAN, 0 to 7.
    pub priority: u8,
    /// Minimum and maximum transmit rate, in Mbit/s. 0: no limit.
    pub rate_mbit: (u32, u32),
    /// Drops frames from MAC addresses other than the VF's own.
    pub spoof_check: bool,
    /// Lets the VF change privileged settings, such as promiscuous mode.
    pub trust: bool,
    /// Carrier policy of the VF.
    pub link_state: VfLinkState,
}

/// How a VF's carrier is determined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum VfLinkState {
    /// The carrier follows the PF's.
    #[default]
    Auto,
    /// The carrier is always on.
    Enable,
    /// The carrier is always off.
    Disable,
}

/// One setting of a VF. Drivers support some of them and refuse the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VfSetting {
    /// See [`VfSettings::mac`]. Some drivers cannot remove the address.
    Mac(Option<MacAddress>),
    /// See [`VfSettings::vlan`], with its priority.
    Vlan(u16, u8),
    /// See [`VfSettings::rate_mbit`].
    Rate(u32, u32),
    /// See [`VfSettings::spoof_check`].
    SpoofCheck(bool),
    /// See [`VfSettings::trust`].
    Trust(bool),
    /// See [`VfSettings::link_state`].
    LinkState(VfLinkState),
}

impl VfSettings {
    /// Lists the settings that differ from `present`, in an order that drivers accept. The MAC address comes last,
    /// because some drivers let a VF change it only while it is trusted.
    #[must_use]
    pub fn changes_from(&self, present: &Self) -> Vec<VfSetting> {
        let settings = self.all().into_iter().zip(present.all());
        settings.filter(|(wanted, present)| wanted != present).map(|(wanted, _)| wanted).collect()
    }

    fn all(&self) -> [VfSetting; 6] {
        [
            VfSetting::Vlan(self.vlan, self.priority),
            VfSetting::Rate(self.rate_mbit.0, self.rate_mbit.1),
            VfSetting::SpoofCheck(self.spoof_check),
            VfSetting::Trust(self.trust),
            VfSetting::LinkState(self.link_state),
            VfSetting::Mac(self.mac),
        ]
    }

    fn learn(&mut self, info: &VfInfo) {
        match info {
            VfInfo::Mac(VfInfoMac { mac, .. }) => self.mac = first_bytes(mac),
            VfInfo::Vlan(VfInfoVlan { vlan_id, qos, .. }) => {
                self.vlan = u16::try_from(*vlan_id).unwrap_or(0);
                self.priority = u8::try_from(*qos).unwrap_or(0);
            }
            VfInfo::Rate(rate) => self.rate_mbit = (rate.min_tx_rate, rate.max_tx_rate),
            VfInfo::SpoofCheck(check) => self.spoof_check = check.enabled,
            VfInfo::Trust(trust) => self.trust = trust.enabled,
            VfInfo::LinkState(VfInfoLinkState { state, .. }) => {
                self.link_state = match state {
                    Code::Enable => VfLinkState::Enable,
                    Code::Disable => VfLinkState::Disable,
                    _ => VfLinkState::Auto,
                };
            }
            _ => {}
        }
    }
}

/// Reads a MAC address from a longer field. All zeros mean none.
fn first_bytes(field: &[u8]) -> Option<MacAddress> {
    let bytes: [u8; 6] = field.get(..6)?.try_into().ok()?;
    (bytes != [0; 6]).then_some(MacAddress(bytes))
}

impl VfSetting {
    fn info(self, vf: u32) -> VfInfo {
        match self {
            Self::Mac(mac) => {
                let bytes = mac.map_or([0; 6], |mac| mac.0);
                VfInfo::Mac(VfInfoMac::new(vf, &bytes))
            }
            Self::Vlan(vlan, priority) => {
                VfInfo::Vlan(VfInfoVlan::new(vf, vlan.into(), priority.into()))
            }
            Self::Rate(least, most) => VfInfo::Rate(VfInfoRate::new(vf, least, most)),
            Self::SpoofCheck(on) => VfInfo::SpoofCheck(VfInfoSpoofCheck::new(vf, on)),
            Self::Trust(on) => VfInfo::Trust(VfInfoTrust::new(vf, on)),
            Self::LinkState(state) => {
                let code = match state {
                    VfLinkState::Auto => Code::Auto,
                    VfLinkState::Enable => Code::Enable,
                    VfLinkState::Disable => Code::Disable,
                };
                VfInfo::LinkState(VfInfoLinkState::new(vf, code))
            }
        }
    }

    fn in_words(self) -> String {
        match self {
            Self::Mac(Some(mac)) => format!("MAC address {mac}"),
            Self::Mac(None) => "no MAC address".into(),
            Self::Vlan(0, _) => "no VLAN".into(),
            Self::Vlan(vlan, priority) => format!("VLAN {vlan} with priority {priority}"),
            Self::Rate(least, most) => format!("rate {least} to {most} Mbit/s"),
            Self::SpoofCheck(state) => format!("spoof check {}", on_or_off(state)),
            Self::Trust(state) => format!("trust {}", on_or_off(state)),
            Self::LinkState(state) => format!("link state {state:?}").to_lowercase(),
        }
    }
}

impl Request<'_> {
    /// Sets one setting of a VF through the PF with index `pf`.
    #[must_use]
    pub fn set_vf(pf: u32, vf: u32, setting: VfSetting) -> Self {
        let operation = format!("set {} for VF {vf} of {LINK}", setting.in_words());
        let list = LinkAttribute::VfInfoList(vec![LinkVfInfo(vec![setting.info(vf)])]);
        let mut message = message_about(pf);
        message.attributes.push(list);
        let message = RouteNetlinkMessage::NewLink(message);
        Self::new(operation, Some(pf), message, Existing::Required)
    }
}

impl Rtnl {
    /// Reads a PF's settings for its VFs, by VF number. A link that is no PF has none.
    ///
    /// # Errors
    /// If the kernel refuses the request.
    pub fn vf_settings(&mut self, pf: u32) -> Result<BTreeMap<u32, VfSettings>, Error> {
        let mask = vec![LinkExtentMask::Vf, LinkExtentMask::SkipStats];
        let mut message = message_about(pf);
        message.attributes.push(LinkAttribute::ExtMask(mask));
        let operation = || format!("list the VFs of link {pf}");
        match self.get(operation, &RouteNetlinkMessage::GetLink(message))? {
            RouteNetlinkMessage::NewLink(message) => Ok(described_by(&message)),
            _ => Ok(BTreeMap::new()),
        }
    }
}

pub(crate) fn described_by(message: &LinkMessage) -> BTreeMap<u32, VfSettings> {
    let of_vfs = message.attributes.iter().filter_map(|attribute| match attribute {
        LinkAttribute::VfInfoList(vfs) => Some(vfs),
        _ => None,
    });
    of_vfs.flatten().filter_map(settings_of).collect()
}

fn settings_of(LinkVfInfo(infos): &LinkVfInfo) -> Option<(u32, VfSettings)> {
    let number = infos.iter().find_map(|info| match info {
        VfInfo::Mac(VfInfoMac { vf_id, .. }) => Some(*vf_id),
        _ => None,
    })?;
    let mut settings = VfSettings::default();
    infos.iter().for_each(|info| settings.learn(info));
    Some((number, settings))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vf_changes_are_minimal_with_mac_last() {
        let present = VfSettings { spoof_check: true, ..VfSettings::default() };
        let mac = MacAddress([2, 0, 0, 0, 0, 1]);
        let wanted = VfSettings { mac: Some(mac), vlan: 7, ..present };
        assert_eq!(wanted.changes_from(&wanted), []);
        assert_eq!(
            wanted.changes_from(&present),
            [VfSetting::Vlan(7, 0), VfSetting::Mac(Some(mac))]
        );
    }

    #[test]
    fn vf_settings_read_back() {
        let mac = MacAddress([2, 0, 0, 0, 0, 1]);
        let wanted = VfSettings {
            mac: Some(mac),
            vlan: 4094,
            priority: 7,
            rate_mbit: (10, 100),
            spoof_check: true,
            trust: true,
            link_state: VfLinkState::Disable,
        };
        let infos = wanted.all().map(|setting| setting.info(3));
        let read = settings_of(&LinkVfInfo(infos.to_vec())).unwrap();
        assert_eq!(read, (3, wanted));
    }

    #[test]
    fn vf_refusal_names_pf_vf_and_setting() {
        let operation = Request::set_vf(2, 5, VfSetting::LinkState(VfLinkState::Disable));
        let operation = operation.operation(Some("eth0"));
        assert!(operation.contains("state disable"), "{operation}");
        assert!(operation.ends_with(" VF 5 of link eth0 (2)"), "{operation}");
    }
}
