//! What a port takes from its pod: a filter at the representor's ingress, before the bridge sees a frame.

use std::collections::BTreeSet;

use netlink::{Error, Guard, IpNetwork, MacAddress, Rtnl, Senders};

use crate::{
    driver::{Reading, Refused},
    eswitch::{Representor, gone_is_done},
    model::{
        AntiSpoofing, PortSettings,
        anti_spoofing::{addresses, macs},
    },
};

/// What is done where it can be, for people.
pub(super) const WHERE: &str = "in software, where the kernel sees a frame: what a card forwards by itself is not \
                                looked at";

pub(super) fn set(
    rtnl: &mut Rtnl,
    port: &Representor,
    settings: &PortSettings,
) -> Result<(), Refused> {
    rtnl.traffic_control()
        .set_guard(port.index, &wanted(settings))
        .map_err(|error| refused(port, error))
}

pub(super) fn clear(rtnl: &mut Rtnl, port: &Representor) -> Result<(), Refused> {
    gone_is_done(rtnl.traffic_control().clear_guard(port.index))
        .map_err(|error| refused(port, error))
}

pub(super) fn find(
    rtnl: &mut Rtnl,
    port: &Representor,
    settings: &PortSettings,
) -> Result<Reading, Refused> {
    let wanted = wanted(settings);
    let found = rtnl.traffic_control().is_guarded(port.index, &wanted);
    Ok(match found.map_err(|error| refused(port, error))? {
        Some(true) => Reading::in_place(told(&wanted)),
        Some(false) => Reading::missing("something else is filtered"),
        None => Reading::missing("any frame may be sent"),
    })
}

fn refused(port: &Representor, error: Error) -> Refused {
    Refused::new(format!("filter what comes in at {}", port.name), error)
}

fn wanted(settings: &PortSettings) -> Guard {
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
fn told(guard: &Guard) -> String {
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
