//! What a look at all VFs has found so far.

use std::collections::BTreeMap;

use netlink::Link;
use offload_proto::v1::{ExaminedVf, Finding, VfPlace};
use vf_alloc::Device;

use crate::{
    agent::vfs::{HostLinks, Record},
    vf_source::{self, OtherVf, VfIdentity, Whereabouts, device_of},
};

/// What was found, by device.
#[derive(Debug, Default)]
pub(super) struct Examined {
    pub vfs: BTreeMap<Device, ExaminedVf>,
    pub findings: Vec<Finding>,
    /// The VFs outside of the host's namespace, by device, with the finding unless they return.
    pub away: Vec<(Device, Finding)>,
}

impl Examined {
    pub(super) fn insert(&mut self, vf: ExaminedVf) {
        let device = device_of(vf.vf.as_ref());
        self.vfs.insert(device, vf);
    }
}

pub(super) fn found_in(vf: &VfIdentity, place: VfPlace, netdev: &str) -> ExaminedVf {
    ExaminedVf {
        vf: Some(vf.into()),
        place: place.into(),
        netdev: netdev.to_owned(),
        ..ExaminedVf::default()
    }
}

pub(super) fn found_at_home(vf: &VfIdentity, link: &Link, present: &HostLinks) -> ExaminedVf {
    let HostLinks { links, addresses } = present;
    let use_by_host = vf_source::use_by_host(link, links, addresses).unwrap_or_default();
    ExaminedVf { use_by_host, ..found_in(vf, VfPlace::Host, &link.name) }
}

pub(super) fn found_without_netdev(other: &OtherVf) -> ExaminedVf {
    let place = match other.whereabouts {
        Whereabouts::Unbound => VfPlace::Unbound,
        Whereabouts::HandedOver(_) => VfPlace::HandedOver,
        Whereabouts::Elsewhere => VfPlace::Nowhere,
    };
    found_in(&other.identity, place, "")
}

pub(super) fn found_of_record(record: &Record, is_in_pod: bool, examined: &Examined) -> ExaminedVf {
    let is_of_host = record.key().is_of_host_port();
    let place = match record {
        _ if record.original.is_handed_over => VfPlace::HandedOver,
        _ if is_of_host => VfPlace::Host,
        _ => VfPlace::Pod,
    };
    let in_pod = || ExaminedVf {
        place: place.into(),
        netdev: record.key().interface_name,
        netns: if is_of_host { String::new() } else { record.netns.path.clone() },
        ..ExaminedVf::default()
    };
    let found = if is_in_pod { None } else { examined.vfs.get(record.device()).cloned() };
    let nowhere = || ExaminedVf { place: VfPlace::Nowhere.into(), ..ExaminedVf::default() };
    let vf = found.unwrap_or_else(|| if is_in_pod { in_pod() } else { nowhere() });
    with_record(vf, record)
}

/// A VF with what a record has of it.
pub(super) fn with_record(vf: ExaminedVf, record: &Record) -> ExaminedVf {
    let attachment = &record.attachment;
    let addresses = attachment.addresses.iter().map(|address| address.address.clone());
    ExaminedVf {
        vf: attachment.vf.clone(),
        attachment_id: attachment.id.clone(),
        mac: attachment.mac.clone(),
        addresses: addresses.collect(),
        ..vf
    }
}

pub(super) fn under_way(record: &Record) -> ExaminedVf {
    with_record(ExaminedVf::default(), record)
}
