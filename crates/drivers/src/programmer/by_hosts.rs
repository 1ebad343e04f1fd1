//! Checks for SR-IOV cards without a DPU. Their VFs have no representors, and the hosts' PFs enforce pods'
//! settings.

use crate::{
    driver::{ALLOW_RULES, Capability, Unsupported},
    eswitch::check_rate_tree,
};
use model::{AntiSpoofing, Label, PortSettings, anti_spoofing::macs};

/// The name of both drivers in the configuration.
pub(super) const NAME: &str = "none";

const BY_PFS: &str = "by the hosts' PFs, as their drivers can";
const BY_CARD: &str = "by the card, as its PF sets it";
const NO_INGRESS_RATE: &str =
    "a PF does not limit what pods receive; limit egress only, or use a card with an eswitch";
const MACS_ALONE: &str = "by the card, as its PF sets it: MAC addresses alone; frames to link-local groups, such \
                           as BPDUs, are left to the card and its switch";
const NO_ADDRESSES: &str = "a PF checks only the source MAC address of frames; set the network's \
                            anti_spoofing to \"mac\", or use a card with an eswitch";
const NO_OTHER_MACS: &str = "a PF lets a VF send from its own MAC address or from any; leave it out, set the \
                              network's anti_spoofing to \"off\", or use a card with an eswitch";
const NO_RULES: &str = "a PF does not track connections; leave it out, or use a card with an eswitch and \
                        fabric.driver = \"ovs\"";
const NO_RATE_TREE: &str = "a PF limits each VF by itself; leave it out, or use a card with an eswitch that has a rate tree";
const NO_LINK: &str = "VFs have no representors here; leave link_group and link_alias out, or use a card with an eswitch";
const NO_TRUNK: &str =
    "a PF puts a VF into one VLAN or into none; leave the trunk out, or use a card with an eswitch";

pub(super) fn capabilities() -> Vec<Capability> {
    let all = [
        ("port-mac", true, BY_PFS),
        ("egress-rate", true, BY_PFS),
        ("egress-share", false, NO_RATE_TREE),
        ("egress-total", false, NO_RATE_TREE),
        ("ingress-rate", false, NO_INGRESS_RATE),
        ("access-vlan", true, BY_CARD),
        ("trunk", false, NO_TRUNK),
        ("guard", true, MACS_ALONE),
        (ALLOW_RULES, false, NO_RULES),
    ];
    all.map(|(name, available, detail)| Capability {
        name,
        available,
        offloaded: available,
        detail: detail.into(),
    })
    .into()
}

/// Checks whether PFs can enforce these settings.
pub(super) fn check(settings: &PortSettings) -> Result<(), Unsupported> {
    let rate = settings.bandwidth.ingress_rate;
    if rate != 0 {
        return Err(Unsupported::new(format!("an ingress rate of {rate} bit/s"), NO_INGRESS_RATE));
    }
    let no_tree = Err(NO_RATE_TREE.to_owned());
    check_rate_tree(settings, &no_tree, &no_tree)?;
    if !settings.trunk.is_empty() {
        let vlans: Vec<_> = settings.trunk.iter().map(u16::to_string).collect();
        let setting = format!("a trunk of VLANs {}", vlans.join(", "));
        return Err(Unsupported::new(setting, NO_TRUNK));
    }
    check_label(&settings.label)?;
    if settings.ingress_rules.is_some() {
        return Err(Unsupported::new("allow", NO_RULES));
    }
    if settings.anti_spoofing == AntiSpoofing::Full {
        return Err(Unsupported::new("anti_spoofing = \"full\"", NO_ADDRESSES));
    }
    match macs(&settings.allowed_sources).next() {
        Some(mac) => Err(Unsupported::new(format!("{mac} among allowed_sources"), NO_OTHER_MACS)),
        None => Ok(()),
    }
}

fn check_label(Label { group, alias }: &Label) -> Result<(), Unsupported> {
    let setting = match group {
        0 if alias.is_empty() => return Ok(()),
        0 => format!("link_alias = {alias:?}"),
        group => format!("link_group = {group}"),
    };
    Err(Unsupported::new(setting, NO_LINK))
}

#[cfg(test)]
mod tests {
    use netlink::MacAddress;
    use vf_alloc::FunctionId;

    use super::*;
    use model::{Bandwidth, TotalRate};

    fn settings() -> PortSettings {
        PortSettings {
            vf: FunctionId::local(0, 1),
            mac: MacAddress([2, 0, 0, 0, 0, 1]),
            mtu: 1500,
            vlan: Some(100),
            bandwidth: Bandwidth { egress_rate: 1_000_000, ..Bandwidth::default() },
            anti_spoofing: AntiSpoofing::Mac,
            ..PortSettings::default()
        }
    }

    #[test]
    fn settings_beyond_a_pf_are_refused_by_name() {
        assert_eq!(check(&settings()), Ok(()));
        let bandwidth = Bandwidth { ingress_rate: 1_000_000, ..Bandwidth::default() };
        let refused = check(&PortSettings { bandwidth, ..settings() }).unwrap_err().to_string();
        assert!(refused.starts_with("an ingress rate"), "{refused}");
        let bandwidth = Bandwidth { egress_share: 1_000_000, ..Bandwidth::default() };
        let refused = check(&PortSettings { bandwidth, ..settings() }).unwrap_err().to_string();
        assert!(refused.starts_with("an egress share"), "{refused}");
        let total_egress = Some(TotalRate { network: "blue".into(), rate: 9_000_000 });
        let refused = check(&PortSettings { total_egress, ..settings() }).unwrap_err().to_string();
        assert!(refused.starts_with("a total egress"), "{refused}");
        let anti_spoofing = AntiSpoofing::Full;
        let refused = check(&PortSettings { anti_spoofing, ..settings() }).unwrap_err().to_string();
        assert!(refused.starts_with("anti_spoofing = \"full\" "), "{refused}");
        let allowed_sources = ["00:00:5e:00:01:07".parse().unwrap()].into();
        let refused = check(&PortSettings { allowed_sources, ..settings() }).unwrap_err();
        assert!(refused.to_string().starts_with("00:00:5e:00:01:07 among allowed"), "{refused}");
        let label = Label { group: 8, alias: String::new() };
        let refused = check(&PortSettings { label, ..settings() }).unwrap_err().to_string();
        assert!(refused.starts_with("link_group = 8 "), "{refused}");
        let trunk = [300, 301].into();
        let refused = check(&PortSettings { trunk, ..settings() }).unwrap_err().to_string();
        let ingress_rules = Some(Vec::new());
        let no_rules =
            check(&PortSettings { ingress_rules, ..settings() }).unwrap_err().to_string();
        assert!(no_rules.starts_with("allow "), "{no_rules}");
        assert!(refused.starts_with("a trunk of VLANs 300, 301 "), "{refused}");
    }
}
