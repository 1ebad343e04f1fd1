//! The rows of `dpuctl get`.

use jiff::Timestamp;
use offload_proto::{
    form::HOST_PORT_CONTAINER,
    v1::{
        Attachment, AttachmentKey, HostStatus, NetworkStatus, Pod, PoolStatus, PortCounters,
        SubnetUsage, VfStatus,
    },
};
use serde::Serialize;

use crate::{
    error::Kind,
    text::{
        SHORT_ID, age, count, host_state, or, or_dash, printable, short_id, state, vf_name,
        yes_or_no,
    },
};

/// A kind of thing that `get` lists.
pub(crate) trait Resource: Serialize + Clone + PartialEq {
    const KIND: Kind;
    /// The JSON field of the list.
    const LIST: &'static str;
    /// The headings of the widest table.
    const COLUMNS: &'static [&'static str];
    /// Number of columns in the table that is not wide.
    const NARROW: usize;
    /// The column with an age, and the field with its start as a JSON pointer.
    const AGE: Option<(&'static str, &'static str)> = None;

    /// The unique name within its kind.
    fn name(&self) -> String;

    /// The cells in the order of [`Self::COLUMNS`], as of `now`.
    fn row(&self, now: Timestamp) -> Vec<String>;

    /// Shortens the cells that have a short form.
    fn shorten(_rows: &mut [Vec<String>], _wide: bool) {}

    fn rows(items: &[Self], wide: bool, now: Timestamp) -> Vec<Vec<String>> {
        let mut rows: Vec<_> = items.iter().map(|item| item.row(now)).collect();
        Self::shorten(&mut rows, wide);
        rows
    }

    fn columns(wide: bool) -> &'static [&'static str] {
        if wide { Self::COLUMNS } else { &Self::COLUMNS[..Self::NARROW] }
    }
}

/// The item as other commands accept it, such as `vf/pf0vf3`.
pub(crate) fn name_with_kind<T: Resource>(item: &T) -> String {
    printable(&format!("{}/{}", T::KIND.to_string().to_lowercase(), item.name()))
}

impl Resource for VfStatus {
    const KIND: Kind = Kind::Vf;
    const LIST: &'static str = "vfs";
    const COLUMNS: &'static [&'static str] =
        &["NAME", "HOST", "STATE", "POOLS", "ATTACHMENT", "DETAIL", "PCI", "REPRESENTOR", "DEVICE"];
    const NARROW: usize = 6;

    fn name(&self) -> String {
        vf_name(self.vf.as_ref())
    }

    fn row(&self, _: Timestamp) -> Vec<String> {
        vec![
            self.name(),
            or_dash(&self.host).into(),
            state(self.state().as_str_name(), "VF_STATE_"),
            or_dash(&self.pools.join(",")).into(),
            or_dash(short_id(&self.attachment_id)).into(),
            or_dash(&self.detail).into(),
            or_dash(self.vf.as_ref().map_or("", |vf| &vf.device)).into(),
            or_dash(&self.representor).into(),
            or_dash(&device(self)).into(),
        ]
    }
}

/// The vendor's name of the VF's device, or the vendor alone, or the PCI ids.
fn device(vf: &VfStatus) -> String {
    let VfStatus { vendor_id, device_id, .. } = vf;
    match (sriov::device_name(vendor_id, device_id), sriov::vendor_name(vendor_id)) {
        (Some(name), _) => name.into(),
        (None, Some(vendor)) => format!("{vendor} {device_id}"),
        (None, None) if vendor_id.is_empty() => String::new(),
        (None, None) => format!("{vendor_id}:{device_id}"),
    }
}

impl Resource for Attachment {
    const KIND: Kind = Kind::Attachment;
    const LIST: &'static str = "attachments";
    const COLUMNS: &'static [&'static str] = &[
        "ID",
        "HOST",
        "POD",
        "CONTAINER",
        "INTERFACE",
        "NETWORK",
        "VF",
        "ADDRESSES",
        "STATE",
        "AGE",
        "MAC",
        "VLAN",
    ];
    const NARROW: usize = 10;
    const AGE: Option<(&'static str, &'static str)> = Some(("AGE", "/createdAt"));

    fn name(&self) -> String {
        self.id.clone()
    }

    fn row(&self, now: Timestamp) -> Vec<String> {
        let AttachmentKey { container_id, interface_name } = self.key.clone().unwrap_or_default();
        vec![
            self.id.clone(),
            self.host.clone(),
            pod_name(self),
            container_id,
            interface_name,
            self.network.clone(),
            vf_name(self.vf.as_ref()),
            or_dash(&addresses(self)).into(),
            attachment_state(self),
            age(&self.created_at, now),
            self.mac.clone(),
            vlan(self.vlan),
        ]
    }

    fn shorten(rows: &mut [Vec<String>], wide: bool) {
        shorten_ids(rows, 0);
        if !wide {
            shorten_ids(rows, 3);
        }
    }
}

/// Shortens the ids in a column as far as they stay distinct.
pub(crate) fn shorten_ids(rows: &mut [Vec<String>], column: usize) {
    let length = short_length(rows.iter().map(|row| &*row[column]));
    for row in rows {
        row[column] = row[column].chars().take(length).collect();
    }
}

/// The shortest length at which all ids are distinct.
fn short_length<'a>(ids: impl Iterator<Item = &'a str>) -> usize {
    let mut ids: Vec<_> = ids.map(str::as_bytes).collect();
    ids.sort_unstable();
    // A container has an attachment for each interface.
    ids.dedup();
    let shared = |pair: &[&[u8]]| pair[0].iter().zip(pair[1]).take_while(|(a, b)| a == b).count();
    ids.windows(2).map(|pair| shared(pair) + 1).max().unwrap_or(0).max(SHORT_ID)
}

/// What an attachment serves: its pod, or the host itself.
pub(crate) fn pod_name(attachment: &Attachment) -> String {
    whom(attachment.key.as_ref(), attachment.pod.as_ref())
}

/// What the attachment with that key serves.
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

/// Whether the card forwards a port's packets in hardware.
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

impl Resource for NetworkStatus {
    const KIND: Kind = Kind::Network;
    const LIST: &'static str = "networks";
    const COLUMNS: &'static [&'static str] =
        &["NAME", "VLAN", "SUBNETS", "FREE", "ATTACHMENTS", "POOL", "ORIGIN", "MTU", "DEFAULT"];
    const NARROW: usize = 7;

    fn name(&self) -> String {
        self.network.as_ref().map(|network| network.name.clone()).unwrap_or_default()
    }

    fn row(&self, _: Timestamp) -> Vec<String> {
        let network = self.network.clone().unwrap_or_default();
        let cidrs: Vec<_> = network.subnets.iter().map(|subnet| subnet.cidr.as_str()).collect();
        vec![
            network.name,
            vlan(network.vlan),
            or_dash(&cidrs.join(",")).into(),
            or_dash(&free_addresses(self)).into(),
            self.attachments.to_string(),
            network.pool,
            self.origin.clone(),
            network.mtu.to_string(),
            yes_or_no(network.default).into(),
        ]
    }
}

fn free_addresses(status: &NetworkStatus) -> String {
    let free = |usage: &SubnetUsage| match usage.capacity {
        u64::MAX => count(u64::MAX),
        capacity => count(capacity.saturating_sub(usage.held).saturating_sub(usage.cooling)),
    };
    let free: Vec<_> = status.subnets.iter().map(free).collect();
    free.join(",")
}

impl Resource for PoolStatus {
    const KIND: Kind = Kind::Pool;
    const LIST: &'static str = "pools";
    const COLUMNS: &'static [&'static str] =
        &["NAME", "FREE", "IN USE", "QUARANTINED", "ABSENT", "POLICY", "SELECT"];
    const NARROW: usize = 6;

    fn name(&self) -> String {
        self.name.clone()
    }

    fn row(&self, _: Timestamp) -> Vec<String> {
        // A pool with `pinned_only` has no order: its VFs are allocated by name only.
        let policy = if self.pinned_only { "by name" } else { &self.policy };
        vec![
            self.name.clone(),
            self.free.to_string(),
            self.in_use.to_string(),
            self.quarantined.to_string(),
            self.absent.to_string(),
            policy.into(),
            self.select.join(","),
        ]
    }
}

impl Resource for HostStatus {
    const KIND: Kind = Kind::Host;
    const LIST: &'static str = "hosts";
    const COLUMNS: &'static [&'static str] =
        &["NAME", "STATE", "SINCE", "AGENT", "DETAIL", "NETWORKS", "BOOT ID"];
    const NARROW: usize = 5;
    const AGE: Option<(&'static str, &'static str)> = Some(("SINCE", "/since"));

    fn name(&self) -> String {
        self.name.clone()
    }

    fn row(&self, now: Timestamp) -> Vec<String> {
        vec![
            self.name.clone(),
            host_state(self),
            age(&self.since, now),
            or_dash(&self.agent_version).into(),
            or_dash(&self.absence).into(),
            or(&self.networks.join(","), "all").into(),
            or_dash(&self.boot_id).into(),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_have_shortest_unique_length() {
        let length = |ids: &[&str]| short_length(ids.iter().copied());
        assert_eq!(length(&["0190aaaa-bbbb-7000", "0190aaaa-cccc-7000"]), SHORT_ID);
        let near = ["0190aaaa-bbbb-7001", "0190aaaa-bbbb-7000"];
        assert_eq!(length(&near), "0190aaaa-bbbb-7000".len());
        assert_eq!(length(&[]), SHORT_ID);
    }

    #[test]
    fn containers_of_one_pod_differ() {
        let attachment = |container_id: &str, interface_name: &str| Attachment {
            key: Some(AttachmentKey {
                container_id: container_id.into(),
                interface_name: interface_name.into(),
            }),
            ..Attachment::default()
        };
        let long = |last: char| format!("0123456789abcdef{last}{}", "0".repeat(47));
        let items = [
            attachment(&long('a'), "eth0"),
            attachment(&long('a'), "net1"),
            attachment(&long('b'), "eth0"),
        ];
        let shown = |wide: bool| {
            let rows = Attachment::rows(&items, wide, Timestamp::UNIX_EPOCH).into_iter();
            rows.map(|row| row[3..5].join(" ")).collect::<Vec<_>>()
        };
        let short = ["0123456789abcdefa eth0", "0123456789abcdefa net1", "0123456789abcdefb eth0"];
        assert_eq!(shown(false), short);
        assert_eq!(shown(true)[0], format!("{} eth0", long('a')));
        assert!(Attachment::COLUMNS[..Attachment::NARROW].contains(&"CONTAINER"));
    }

    #[test]
    fn offload_is_all_nothing_or_part() {
        let offload = |rules, rules_in_hardware| {
            in_hardware(&PortCounters { rules, rules_in_hardware, ..PortCounters::default() })
        };
        assert_eq!(
            [offload(0, 0), offload(3, 0), offload(3, 3), offload(3, 1)],
            ["no", "no", "yes", "1 of 3"]
        );
    }

    #[test]
    fn vf_has_its_vendors_name() {
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
