//! What a port takes from its pod, whatever the fabric is.

use std::collections::BTreeSet;

use netlink::{Guard, IpNetwork, MacAddress, Senders};

use crate::model::{
    AntiSpoofing, PortSettings,
    anti_spoofing::{addresses, macs},
};

/// What may come in at a port with these settings.
pub(super) fn wanted(settings: &PortSettings) -> Guard {
    let stations = || macs(&settings.allowed_sources).chain([settings.mac]).collect();
    let senders = match settings.anti_spoofing {
        AntiSpoofing::Off => Senders::Any,
        AntiSpoofing::Mac => Senders::Stations(stations()),
        AntiSpoofing::Full => {
            Senders::Hosts { stations: stations(), addresses: known_addresses(settings) }
        }
    };
    Guard { trunk: settings.trunk.clone(), senders }
}

/// `None`: a network without subnets leaves it to its pods which they have.
fn known_addresses(settings: &PortSettings) -> Option<BTreeSet<IpNetwork>> {
    let own = settings.addresses.iter().copied().map(IpNetwork::from);
    let all: BTreeSet<_> = own.chain(addresses(&settings.allowed_sources)).collect();
    (!all.is_empty()).then_some(all)
}

/// For people.
pub(super) fn told(guard: &Guard) -> String {
    match &guard.senders {
        Senders::Any => "anybody may send".into(),
        Senders::Stations(stations) => format!("only {} may send", list(stations)),
        Senders::Hosts { stations, addresses: None } => {
            format!("only {} may send, and is no router or server of DHCP", list(stations))
        }
        Senders::Hosts { stations, addresses: Some(addresses) } => {
            format!("only {} may send, with {}", list(stations), list(addresses))
        }
    }
}

fn list(all: &BTreeSet<impl ToString>) -> String {
    all.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

/// The one station that the port may be told of. `None`: there may be others behind it, so that it has to learn.
pub(super) fn only_station(settings: &PortSettings) -> Option<MacAddress> {
    let is_one = settings.anti_spoofing != AntiSpoofing::Off
        && macs(&settings.allowed_sources).next().is_none();
    is_one.then_some(settings.mac)
}
