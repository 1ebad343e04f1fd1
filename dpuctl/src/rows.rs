//! The tables of `dpuctl get`.

use jiff::Timestamp;
use offload_proto::{
    form::HOST_PORT_CONTAINER,
    v1::{
        Attachment, AttachmentKey, NetworkStatus, Pod, PoolStatus, PortCounters, SubnetUsage,
        VfStatus,
    },
};

use crate::{
    table::narrow_or_wide,
    text::{SHORT_ID, age, count, or_dash, short_id, state, vf_name, yes_or_no},
};

pub(crate) fn vf_table(vfs: &[VfStatus], wide: bool) -> String {
    let headings =
        ["NAME", "HOST", "STATE", "POOLS", "ATTACHMENT", "DETAIL", "PCI", "REPRESENTOR", "DEVICE"];
    let row = |vf: &VfStatus| {
        vec![
            vf_name(vf.vf.as_ref()),
            or_dash(&vf.host).into(),
            vf_state(vf),
            or_dash(&vf.pools.join(",")).into(),
            or_dash(short_id(&vf.attachment_id)).into(),
            or_dash(&vf.detail).into(),
            or_dash(vf.vf.as_ref().map_or("", |vf| &vf.device)).into(),
            or_dash(&vf.representor).into(),
            or_dash(&device(vf)).into(),
        ]
    };
    narrow_or_wide(&headings, 6, wide, vfs.iter().map(row))
}

/// What its vendor calls a VF, or whose it is, or its ids.
fn device(vf: &VfStatus) -> String {
    let VfStatus { vendor_id, device_id, .. } = vf;
    match (sriov::device_name(vendor_id, device_id), sriov::vendor_name(vendor_id)) {
        (Some(name), _) => name.into(),
        (None, Some(vendor)) => format!("{vendor} {device_id}"),
        (None, None) if vendor_id.is_empty() => String::new(),
        (None, None) => format!("{vendor_id}:{device_id}"),
    }
}

fn vf_state(vf: &VfStatus) -> String {
    state(vf.state().as_str_name(), "VF_STATE_")
}

pub(crate) fn attachment_table(attachments: &[Attachment], wide: bool) -> String {
    let headings = [
        "ID",
        "HOST",
        "POD",
        "NETWORK",
        "VF",
        "ADDRESSES",
        "STATE",
        "AGE",
        "MAC",
        "VLAN",
        "INTERFACE",
        "CONTAINER",
    ];
    let length = short_length(attachments.iter().map(|attachment| &*attachment.id));
    let now = Timestamp::now();
    let row = |attachment: &Attachment| {
        let key = attachment.key.clone().unwrap_or_default();
        vec![
            attachment.id.get(..length).unwrap_or(&attachment.id).into(),
            attachment.host.clone(),
            pod_name(attachment),
            attachment.network.clone(),
            vf_name(attachment.vf.as_ref()),
            or_dash(&addresses(attachment)).into(),
            attachment_state(attachment),
            age(&attachment.created_at, now),
            attachment.mac.clone(),
            vlan(attachment.vlan),
            key.interface_name,
            key.container_id,
        ]
    };
    narrow_or_wide(&headings, 8, wide, attachments.iter().map(row))
}

/// As long as ids must be shown for each to be the beginning of no other.
pub(crate) fn short_length<'a>(ids: impl Iterator<Item = &'a str>) -> usize {
    let mut ids: Vec<_> = ids.map(str::as_bytes).collect();
    ids.sort_unstable();
    let shared = |pair: &[&[u8]]| pair[0].iter().zip(pair[1]).take_while(|(a, b)| a == b).count();
    ids.windows(2).map(|pair| shared(pair) + 1).max().unwrap_or(0).max(SHORT_ID)
}

/// Whom an attachment serves: its pod, or the host itself.
pub(crate) fn pod_name(attachment: &Attachment) -> String {
    whom(attachment.key.as_ref(), attachment.pod.as_ref())
}

/// The same, of one with that key.
pub(crate) fn whom(key: Option<&AttachmentKey>, pod: Option<&Pod>) -> String {
    if key.is_some_and(|key| key.container_id == HOST_PORT_CONTAINER) {
        return "(host port)".into();
    }
    match pod {
        Some(pod) if !pod.name.is_empty() => format!("{}/{}", or_dash(&pod.namespace), pod.name),
        _ => "-".into(),
    }
}

pub(crate) fn addresses(attachment: &Attachment) -> String {
    let addresses: Vec<_> = attachment.addresses.iter().map(|a| a.address.as_str()).collect();
    addresses.join(",")
}

pub(crate) fn attachment_state(attachment: &Attachment) -> String {
    state(attachment.state().as_str_name(), "ATTACHMENT_STATE_")
}

/// Whether the card deals with a port's packets by itself.
pub(crate) fn in_hardware(counters: &PortCounters) -> String {
    match (counters.rules, counters.rules_in_hardware) {
        (_, 0) => "no".into(),
        (all, of_them) if all == of_them => "yes".into(),
        (all, of_them) => format!("{of_them} of {all}"),
    }
}

pub(crate) fn vlan(vlan: u32) -> String {
    if vlan == 0 { "-".into() } else { vlan.to_string() }
}

/// What of pods' frames is checked; a service of before says it in its own words.
pub(crate) fn anti_spoofing(level: &str, allow_mac_spoofing: bool) -> &str {
    match (level, allow_mac_spoofing) {
        ("", true) => "off",
        ("", false) => "mac",
        (level, _) => level,
    }
}

pub(crate) fn network_table(networks: &[NetworkStatus], wide: bool) -> String {
    let headings =
        ["NAME", "VLAN", "SUBNETS", "FREE", "ATTACHMENTS", "POOL", "ORIGIN", "MTU", "DEFAULT"];
    let row = |status: &NetworkStatus| {
        let network = status.network.clone().unwrap_or_default();
        let cidrs: Vec<_> = network.subnets.iter().map(|subnet| subnet.cidr.as_str()).collect();
        vec![
            network.name.clone(),
            vlan(network.vlan),
            or_dash(&cidrs.join(",")).into(),
            or_dash(&free_addresses(status)).into(),
            status.attachments.to_string(),
            network.pool.clone(),
            status.origin.clone(),
            network.mtu.to_string(),
            yes_or_no(network.default).into(),
        ]
    };
    narrow_or_wide(&headings, 7, wide, networks.iter().map(row))
}

/// Free addresses of each subnet.
fn free_addresses(status: &NetworkStatus) -> String {
    let free = |usage: &SubnetUsage| match usage.capacity {
        u64::MAX => count(u64::MAX),
        capacity => count(capacity.saturating_sub(usage.held).saturating_sub(usage.cooling)),
    };
    let free: Vec<_> = status.subnets.iter().map(free).collect();
    free.join(",")
}

pub(crate) fn pool_table(pools: &[PoolStatus], wide: bool) -> String {
    let headings = ["NAME", "FREE", "IN USE", "QUARANTINED", "ABSENT", "POLICY", "SELECT"];
    let row = |pool: &PoolStatus| {
        vec![
            pool.name.clone(),
            pool.free.to_string(),
            pool.in_use.to_string(),
            pool.quarantined.to_string(),
            pool.absent.to_string(),
            policy(pool),
            pool.select.join(","),
        ]
    };
    narrow_or_wide(&headings, 6, wide, pools.iter().map(row))
}

/// Where each VF is given to who names it, there is no order.
fn policy(pool: &PoolStatus) -> String {
    if pool.pinned_only { "by name".into() } else { pool.policy.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_as_long_as_needed_and_no_longer() {
        let length = |ids: &[&str]| short_length(ids.iter().copied());
        assert_eq!(length(&["0190aaaa-bbbb-7000", "0190aaaa-cccc-7000"]), SHORT_ID);
        let near = ["0190aaaa-bbbb-7001", "0190aaaa-bbbb-7000"];
        assert_eq!(length(&near), "0190aaaa-bbbb-7000".len());
        assert_eq!(length(&[]), SHORT_ID);
    }

    #[test]
    fn what_a_card_does_by_itself_is_all_nothing_or_a_part() {
        let told = |rules, rules_in_hardware| {
            in_hardware(&PortCounters { rules, rules_in_hardware, ..PortCounters::default() })
        };
        assert_eq!([told(0, 0), told(3, 0), told(3, 3), told(3, 1)], ["no", "no", "yes", "1 of 3"]);
    }

    #[test]
    fn a_vf_is_called_as_its_vendor_does_as_far_as_that_is_known() {
        let device = |vendor: &str, device_id: &str| {
            let (vendor_id, device_id) = (vendor.into(), device_id.into());
            device(&VfStatus { vendor_id, device_id, ..VfStatus::default() })
        };
        assert_eq!(device("8086", "10ca"), "82576 Virtual Function");
        assert_eq!(device("15b3", "ffff"), "Mellanox Technologies ffff");
        assert_eq!(device("0002", "ffff"), "0002:ffff");
        assert_eq!(device("", ""), "");
    }
}
