//! What a guard lets a pod send, for all fabrics.

use std::collections::BTreeSet;

use netlink::{Guard, IpNetwork, MacAddress, Senders};

use model::{
    AntiSpoofing, PortSettings,
    anti_spoofing::{addresses, macs},
};

/// The guard of a port with these settings.
pub(super) fn wanted(settings: &PortSettings) -> Guard {
    let macs = || macs(&settings.allowed_sources).chain([settings.mac]).collect();
    let senders = match settings.anti_spoofing {
        AntiSpoofing::Off => Senders::Any,
        AntiSpoofing::Mac => Senders::MacAddresses(macs()),
        AntiSpoofing::Full => Senders::Hosts { macs: macs(), addresses: known_addresses(settings) },
    };
    Guard { trunk: settings.trunk.clone(), senders }
}

/// `None`: the network has no subnets, so its pods choose their addresses.
fn known_addresses(settings: &PortSettings) -> Option<BTreeSet<IpNetwork>> {
    let own = settings.addresses.iter().copied().map(IpNetwork::from);
    let all: BTreeSet<_> = own.chain(addresses(&settings.allowed_sources)).collect();
    (!all.is_empty()).then_some(all)
}

/// A sentence for people.
pub(super) fn describe(guard: &Guard) -> String {
    match &guard.senders {
        Senders::Any => "any address may send".into(),
        Senders::MacAddresses(macs) => format!("only {} may send", list(macs)),
        Senders::Hosts { macs, addresses: None } => {
            format!("only {} may send, and is no router or server of DHCP", list(macs))
        }
        Senders::Hosts { macs, addresses: Some(addresses) } => {
            format!("only {} may send, with {}", list(macs), list(addresses))
        }
    }
}

fn list(all: &BTreeSet<impl ToString>) -> String {
    all.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

/// The one MAC address behind the port. `None`: there may be others, so the port has to learn.
pub(super) fn only_mac(settings: &PortSettings) -> Option<MacAddress> {
    let is_one = settings.anti_spoofing != AntiSpoofing::Off
        && macs(&settings.allowed_sources).next().is_none();
    is_one.then_some(settings.mac)
}
