//! Aspects of the kernel's link description. Fields of [`Link`] have names; the remaining attributes appear as they
//! are.

use super::aspects::{Aspects, on_or_off, value_of};
use crate::{link::Link, mac::MacAddress, undecoded::Undecoded};

/// Display names of attributes, by number.
const NAMED: [(u16, &str); 18] = [
    (15, "weight"),
    (17, "link mode"),
    (18, "kind"),
    (30, "count of promiscuity"),
    (31, "number of queues for sending"),
    (32, "number of queues for receiving"),
    (39, "proto-down"),
    (40, "most GSO segments"),
    (41, "largest GSO size"),
    (50, "smallest MTU"),
    (51, "largest MTU"),
    (55, "proto-down reason"),
    (58, "largest GRO size"),
    (59, "largest TSO size"),
    (60, "most TSO segments"),
    (61, "count of reception of all multicast"),
    (63, "largest GSO size for IPv4"),
    (64, "largest GRO size for IPv4"),
];

pub(super) fn aspects(link: &Link) -> Aspects {
    let mut names = link.alternative_names.clone();
    names.sort_unstable();
    let mac = |mac: Option<MacAddress>| mac.map(|mac| mac.to_string());
    let known = [
        ("name", Some(link.name.clone())),
        ("MAC address", mac(link.mac)),
        ("broadcast address", mac(link.broadcast)),
        ("MTU", Some(link.mtu.to_string())),
        ("queue length", Some(link.queue_length.to_string())),
        ("group", Some(link.group.to_string())),
        ("alias", link.alias.clone()),
        ("alternative names", (!names.is_empty()).then(|| names.join(", "))),
        ("master", link.master.map(|index| format!("link {index}"))),
        ("XDP program", (!link.xdp.is_empty()).then(|| format!("{:?}", link.xdp))),
        ("ARP", Some(on_or_off(!link.is_without_arp))),
        ("multicast", Some(on_or_off(!link.is_without_multicast))),
        ("loss of addresses when down", Some(on_or_off(link.is_dynamic))),
        ("promiscuity", Some(on_or_off(link.is_promiscuous))),
        ("reception of all multicast", Some(on_or_off(link.is_all_multicast))),
        ("set of other flags", Some(format!("{:#x}", link.undecoded.flags()))),
    ];
    let known = known.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
    known.chain(others(&link.undecoded)).collect()
}

/// Changes the aspects to those of an unused link.
pub(super) fn make_unused(aspects: &mut Aspects, name: &str, mac: Option<MacAddress>, mtu: u32) {
    let own = [
        ("name", name.to_owned()),
        ("MTU", mtu.to_string()),
        ("group", "0".to_owned()),
        ("ARP", on_or_off(true)),
        ("multicast", on_or_off(true)),
        ("loss of addresses when down", on_or_off(false)),
        ("promiscuity", on_or_off(false)),
        ("reception of all multicast", on_or_off(false)),
    ];
    aspects.extend(own.map(|(aspect, value)| (aspect.to_owned(), value)));
    aspects.extend(mac.map(|mac| ("MAC address".to_owned(), mac.to_string())));
    for gone in ["XDP program", "master"] {
        aspects.remove(gone);
    }
    let usual = [
        ("broadcast address", MacAddress::BROADCAST.to_string()),
        ("count of promiscuity", "0".to_owned()),
        ("count of reception of all multicast", "0".to_owned()),
    ];
    for (aspect, value) in usual {
        aspects.entry(aspect.to_owned()).and_modify(|present| *present = value);
    }
}

fn others(undecoded: &Undecoded) -> impl Iterator<Item = (String, String)> {
    undecoded.attributes().map(|attribute| {
        let known = NAMED.iter().find(|(number, _)| *number == attribute.kind());
        let unknown = || format!("attribute {}", attribute.kind());
        let name = known.map_or_else(unknown, |(_, name)| (*name).to_owned());
        (name, value_of(attribute.value()))
    })
}
