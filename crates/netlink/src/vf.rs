//! What a PF makes of its VFs, where no eswitch of a DPU does (`ip link set PF vf N …`).

use std::collections::BTreeMap;

use netlink_packet_route::{
    RouteNetlinkMessage,
    link::{
        LinkAttribute, LinkExtentMask, LinkMessage, LinkVfInfo, VfInfo, VfInfoLinkState, VfInfoMac,
        VfInfoRate, VfInfoSpoofCheck, VfInfoTrust, VfInfoVlan, VfLinkState as Code,
    },
};
use rtnetlink::LinkUnspec;
use serde::{Deserialize, Serialize};

use crate::{
    Error, MacAddress, Request, Rtnl,
    request::{Existing, LINK},
};

/// What a PF makes of one of its VFs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VfSettings {
    /// The only MAC address that the VF may have. `None`: it may have any.
    pub mac: Option<MacAddress>,
    /// The VLAN that its frames are in outside, 1 to 4094. 0: none.
    pub vlan: u16,
    /// The priority in that VLAN: 0 to 7.
    pub priority: u8,
    /// The least and the most that it may send, in Mbit/s. 0: no limit.
    pub rate_mbit: (u32, u32),
    /// Frames from other MAC addresses than its own are dropped.
    pub spoof_check: bool,
    /// It may set what a guest should not, such as promiscuity.
    pub trust: bool,
    /// What its carrier follows.
    pub link_state: VfLinkState,
}

/// What the carrier of a VF follows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum VfLinkState {
    /// The PF's.
    #[default]
    Auto,
    /// Nothing: it is always there.
    Enable,
    /// Nothing: it is never there.
    Disable,
}

/// One of a PF's settings for a VF. Drivers support some of them, and refuse the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VfSetting {
    /// See [`VfSettings::mac`]. Some drivers can't take it back.
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
    /// What is to be set where `present` is in force, in an order that drivers take: what a VF may
    /// do comes before its MAC address, which some of them let it change only while it is trusted.
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

/// The MAC address in a field that has room for longer ones. All zero stands for none.
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

    /// The setting in words: `VLAN 7`.
    fn in_words(self) -> String {
        let on = |on| if on { "on" } else { "off" };
        match self {
            Self::Mac(Some(mac)) => format!("MAC address {mac}"),
            Self::Mac(None) => "no MAC address".into(),
            Self::Vlan(0, _) => "no VLAN".into(),
            Self::Vlan(vlan, priority) => format!("VLAN {vlan} with priority {priority}"),
            Self::Rate(least, most) => format!("rate {least} to {most} Mbit/s"),
            Self::SpoofCheck(state) => format!("spoof check {}", on(state)),
            Self::Trust(state) => format!("trust {}", on(state)),
            Self::LinkState(state) => format!("link state {state:?}").to_lowercase(),
        }
    }
}

impl Request<'_> {
    /// Sets what the PF of this index makes of its VF of that number.
    #[must_use]
    pub fn set_vf(pf: u32, vf: u32, setting: VfSetting) -> Self {
        let operation = format!("set {} for VF {vf} of {LINK}", setting.in_words());
        let list = LinkAttribute::VfInfoList(vec![LinkVfInfo(vec![setting.info(vf)])]);
        let message = LinkUnspec::new_with_index(pf).append_extra_attribute(list).build();
        let message = RouteNetlinkMessage::NewLink(message);
        Self::new(operation, Some(pf), message, Existing::Required)
    }
}

impl Rtnl {
    /// What a PF makes of its VFs, by their number. Links that are no PFs have none.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn vf_settings(&mut self, pf: u32) -> Result<BTreeMap<u32, VfSettings>, Error> {
        let operation = || format!("list the VFs of link {pf}");
        match self.get(operation, &get_message(pf))? {
            RouteNetlinkMessage::NewLink(message) => Ok(described_by(&message)),
            _ => Ok(BTreeMap::new()),
        }
    }
}

/// Asks for a link's description with its VFs.
fn get_message(pf: u32) -> RouteNetlinkMessage {
    let mask = vec![LinkExtentMask::Vf, LinkExtentMask::SkipStats];
    let mut message = LinkMessage::default();
    message.header.index = pf;
    message.attributes.push(LinkAttribute::ExtMask(mask));
    RouteNetlinkMessage::GetLink(message)
}

/// The settings in a link's description, by the VF's number.
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
    fn only_what_differs_is_changed_and_the_mac_address_last() {
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
    fn what_is_set_reads_back() {
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
    fn a_refusal_tells_pf_vf_and_setting() {
        let told = Request::set_vf(2, 5, VfSetting::LinkState(VfLinkState::Disable));
        let told = told.operation(Some("eth0"));
        assert!(told.contains("state disable"), "{told}");
        assert!(told.ends_with(" VF 5 of link eth0 (2)"), "{told}");
    }
}
