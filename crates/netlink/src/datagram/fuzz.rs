//! Fuzz target: hostile routing datagrams.

use netlink_packet_route::RouteNetlinkMessage;

use super::{Meaning, NETLINK_HEADER_LEN, Object, messages, of_routing};
use crate::{
    address, bridge_vlan,
    error::RefusalCause,
    fdb,
    link::Link,
    monitor::LinkEvent,
    request::Request,
    route, rule,
    socket::Outgoing,
    statistics,
    traffic_control::{bpf_filter, drops, flower, limit, offload, police},
    vf,
    watch::Event,
};

#[test]
fn routing_datagram() {
    fuzz::target("routing_datagram", |datagram| {
        let objects = checked_objects(datagram);
        objects.into_iter().filter_map(|object| of_routing(object).ok()).for_each(check_routing);
        assert!(LinkEvent::all_in(datagram).count() <= datagram.len() / NETLINK_HEADER_LEN);
    });
}

/// Returns the objects of a datagram. Checks that every message ends, that no message is read twice, and that a
/// refusal's sentence is bounded by its source.
pub(crate) fn checked_objects(datagram: &[u8]) -> Vec<Object<'_>> {
    let mut objects = Vec::new();
    let mut count = 0;
    for message in messages(datagram) {
        count += 1;
        match message.meaning() {
            Ok(Meaning::Object(object)) => objects.push(object),
            // Lossy conversion replaces one invalid byte by a character of three bytes.
            Ok(Meaning::Refused(RefusalCause::Kernel { sentence: Some(sentence), .. })) => {
                assert!(!sentence.is_empty() && sentence.len() <= 3 * datagram.len());
            }
            Ok(_) => {}
            Err(why) => assert!(!why.is_empty()),
        }
    }
    assert!(count <= datagram.len() / NETLINK_HEADER_LEN);
    objects
}

fn check_routing(object: RouteNetlinkMessage) {
    match object {
        RouteNetlinkMessage::NewLink(message) | RouteNetlinkMessage::DelLink(message) => {
            let _vfs = vf::described_by(&message);
            let _vlans = bridge_vlan::vlans_of(&message);
            let _statistics = statistics::described_by(&message);
            let _link = Link::from(message);
        }
        RouteNetlinkMessage::NewQueueDiscipline(message) => {
            let _limit = limit::described_by(&message, message.header.index.cast_unsigned());
            let _drops = drops::described_by(RouteNetlinkMessage::NewQueueDiscipline(message));
        }
        RouteNetlinkMessage::NewTrafficFilter(message) => {
            let _filter = bpf_filter::described_by(&message);
            let _flower = flower::described_by(&message);
            let _police = police::described_by(&message);
            let _offload = offload::described_by(RouteNetlinkMessage::NewTrafficFilter(message));
        }
        other => check_written(&other),
    }
}

/// Checks that an object which is read, written as a request and read again stays the same.
fn check_written(object: &RouteNetlinkMessage) {
    match object {
        RouteNetlinkMessage::NewAddress(message) => {
            let found = address::described_by(message);
            let Some(found) = found.filter(|found| !found.ip().is_multicast()) else { return };
            let index = message.header.index;
            let read = read_back(&Request::add_address(index, found), |object| match object {
                RouteNetlinkMessage::NewAddress(message) => address::described_by(message),
                _ => None,
            });
            assert_eq!(read, Some(found));
        }
        RouteNetlinkMessage::NewRoute(message) => {
            let Some(found) = route::described_by(message) else { return };
            let read = read_back(&Request::add_route(&found), |object| match object {
                RouteNetlinkMessage::NewRoute(message) => route::described_by(message),
                _ => None,
            });
            let read = read.unwrap();
            assert_eq!(read.destination.network(), found.destination.network());
            assert_eq!(route::Route { destination: found.destination, ..read }, found);
        }
        RouteNetlinkMessage::NewRule(message) => {
            let Some(found) = rule::described_by(message) else { return };
            let read = read_back(&Request::add_rule(&found), |object| match object {
                RouteNetlinkMessage::NewRule(message) => rule::described_by(message),
                _ => None,
            });
            let read = read.unwrap();
            assert_eq!(read.source.network(), found.source.network());
            assert_eq!((read.table, read.priority), (found.table, found.priority));
        }
        RouteNetlinkMessage::NewNeighbour(message) => {
            let Some(found) = fdb::described_by(message) else { return };
            let request = Request::add_fdb(found.port, found.mac, found.vlan);
            let read = read_back(&request, |object| match object {
                RouteNetlinkMessage::NewNeighbour(message) => fdb::described_by(message),
                _ => None,
            });
            let read = read.unwrap();
            assert_eq!((read.port, read.mac, read.vlan), (found.port, found.mac, found.vlan));
        }
        _ => {}
    }
}

fn read_back<T>(
    request: &Request<'_>,
    read: impl FnOnce(&RouteNetlinkMessage) -> Option<T>,
) -> Option<T> {
    let mut datagram = Vec::new();
    request.append_to(&mut datagram, 0, 1);
    let message = messages(&datagram).next()?;
    let Ok(Meaning::Object(object)) = message.meaning() else { return None };
    read(&of_routing(object).unwrap())
}
