//! What a card may forward by itself of what comes in at a link, past the guard: frames that the guard lets in for
//! sure. All others the kernel gets, where the guard decides, so that there is one truth about who is honest.
//!
//! That is TCP and UDP of one station to another, from addresses of the pod's, whole and without a tag. Cards
//! look at nothing of ARP (mlx5: `__parse_cls_flower` in drivers/net/ethernet/mellanox/mlx5/core/en_tc.c).

use std::{collections::BTreeSet, iter, net::IpAddr};

use ipnetwork::IpNetwork;
use netlink_packet_route::tc::TcFilterFlowerOption as Key;

use super::{
    flower::{Flower, Found, Verdict},
    guard::{CardGuarding, Guard, Senders},
};
use crate::MacAddress;

/// Where others may be between ours.
const TRIAL: u16 = 16;
const ALL_ELSE: u16 = 15;

const TCP: u8 = 6;
const UDP: u8 = 17;

/// The bit that groups have and stations have not.
const GROUP: [u8; 6] = [1, 0, 0, 0, 0, 0];
const NONE: [u8; 6] = [0; 6];
const WHOLE: [u8; 6] = [0xff; 6];

/// `TCA_FLOWER_KEY_FLAGS_IS_FRAGMENT`
const FRAGMENT: u32 = 1;

/// A version of IP, and where its filters stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Version {
    ethertype: u16,
    /// What only servers of DHCP send to, by UDP: the guard lets none in, so that the kernel gets it.
    dhcp_client: u16,
    /// First what is never passed, then what is.
    priorities: [u16; 2],
}

const IPV4: Version = Version { ethertype: 0x0800, dhcp_client: 68, priorities: [2, 3] };
const IPV6: Version = Version { ethertype: 0x86dd, dhcp_client: 546, priorities: [4, 5] };

/// The filters that a link's card is to have: none, unless they are asked for. What is limited, the kernel has to see.
pub(super) fn wanted(guard: &Guard, is_asked_for: bool, is_limited: bool) -> Vec<Flower> {
    match (is_asked_for, is_limited) {
        (false, _) => Vec::new(),
        (true, true) => nothing(),
        (true, false) => guard.by_card(),
    }
}

/// The filters by which a card forwards nothing by itself.
pub(super) fn nothing() -> Vec<Flower> {
    vec![all_else()]
}

impl Guard {
    /// The filters by which a card forwards nothing by itself but what this lets in for sure. First that of all
    /// else. None, where anybody may send.
    fn by_card(&self) -> Vec<Flower> {
        let filters: Vec<_> = match &self.senders {
            Senders::Any => return Vec::new(),
            Senders::Stations(stations) => {
                let of = |version: Version| stations.iter().map(move |one| version.station(*one));
                of(IPV4).chain(of(IPV6)).collect()
            }
            Senders::Hosts { stations, addresses } => {
                let of = |version: Version| version.hosts(stations, addresses.as_ref());
                [of(IPV4), of(IPV6)].concat()
            }
        };
        let mut all: Vec<_> = iter::once(all_else()).chain(filters).collect();
        for (number, filter) in (0..).zip(&mut all) {
            filter.number = number;
        }
        all
    }
}

impl Version {
    fn filter(self, priority: u16, keys: Vec<Key>, verdict: Verdict) -> Flower {
        Flower { priority, ethertype: Some(self.ethertype), number: 0, keys, verdict }
    }

    /// Whatever a station sends to another.
    fn station(self, station: MacAddress) -> Flower {
        self.filter(self.priorities[1], from_station(station), Verdict::Pass)
    }

    /// What stations send with these addresses and their link-local ones, or with any.
    fn hosts(
        self,
        stations: &BTreeSet<MacAddress>,
        addresses: Option<&BTreeSet<IpNetwork>>,
    ) -> Vec<Flower> {
        let own =
            stations.iter().map(|station| IpNetwork::from(IpAddr::from(station.link_local())));
        let sources: Vec<_> = match addresses {
            None => vec![Vec::new()],
            Some(all) => all.iter().copied().chain(own).filter_map(|one| self.from(one)).collect(),
        };
        let mut filters = Vec::new();
        for station in stations {
            for source in &sources {
                filters.extend([TCP, UDP].map(|protocol| self.host(*station, source, protocol)));
            }
        }
        if !filters.is_empty() {
            filters.insert(0, self.to_dhcp_client());
        }
        filters
    }

    fn host(self, station: MacAddress, source: &[Key], protocol: u8) -> Flower {
        let mut keys = from_station(station);
        keys.push(Key::IpProto(protocol));
        keys.extend_from_slice(source);
        keys.extend([Key::KeyFlags(0), Key::KeyFlagsMask(FRAGMENT)]);
        self.filter(self.priorities[1], keys, Verdict::Pass)
    }

    fn to_dhcp_client(self) -> Flower {
        let port = [Key::UdpDst(self.dhcp_client), Key::UdpDstMask(u16::MAX)];
        let keys = iter::once(Key::IpProto(UDP)).chain(port).collect();
        self.filter(self.priorities[0], keys, Verdict::Trap)
    }

    /// What packets from an address have, or from any of a network. `None`: it is of the other version.
    fn from(self, source: IpNetwork) -> Option<Vec<Key>> {
        let keys = match source {
            _ if source.prefix() == 0 => Vec::new(),
            IpNetwork::V4(v4) => vec![Key::Ipv4Src(v4.network()), Key::Ipv4SrcMask(v4.mask())],
            IpNetwork::V6(v6) => vec![Key::Ipv6Src(v6.network()), Key::Ipv6SrcMask(v6.mask())],
        };
        ((self == IPV4) == source.is_ipv4()).then_some(keys)
    }
}

/// What a station's frames to another have.
fn from_station(MacAddress(station): MacAddress) -> Vec<Key> {
    vec![Key::EthDst(NONE), Key::EthDstMask(GROUP), Key::EthSrc(station), Key::EthSrcMask(WHOLE)]
}

fn all_else() -> Flower {
    let (priority, verdict) = (ALL_ELSE, Verdict::Trap);
    Flower { priority, ethertype: None, number: 0, keys: Vec::new(), verdict }
}

/// As those are that pass, of a station that there can't be: one of each verdict. They have one place, for one after
/// the other.
pub(super) fn trials() -> [Flower; 2] {
    let nobody = IpNetwork::from(IpAddr::from([0, 0, 0, 1]));
    let source = IPV4.from(nobody).unwrap_or_default();
    let trial =
        Flower { priority: TRIAL, number: u16::MAX, ..IPV4.host(MacAddress(NONE), &source, TCP) };
    [trial.clone(), Flower { verdict: Verdict::Trap, ..trial }]
}

/// What a card with the filters `found` has of those `wanted`.
pub(super) fn compare(found: &[Found], wanted: &[Flower]) -> CardGuarding {
    let found: Vec<_> =
        found.iter().filter(|found| found.is_by_card).map(|found| &found.flower).collect();
    let is_closed = || *found == [&all_else()];
    match () {
        () if found.len() == wanted.len() && wanted.iter().all(|one| found.contains(&one)) => {
            CardGuarding::AsWanted
        }
        () if found.is_empty() => CardGuarding::Missing,
        () if is_closed() => CardGuarding::Closed,
        () => CardGuarding::Otherwise,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stations() -> BTreeSet<MacAddress> {
        [MacAddress([2, 0, 0, 0, 1, 1])].into()
    }

    fn guard(addresses: Option<&[&str]>) -> Guard {
        let network = |address: &&str| address.parse().unwrap();
        let addresses = addresses.map(|all| all.iter().map(network).collect());
        let senders = Senders::Hosts { stations: stations(), addresses };
        Guard { senders, ..Guard::default() }
    }

    fn found(filters: &[Flower]) -> Vec<Found> {
        let by_card = |flower: &Flower| Found { flower: flower.clone(), is_by_card: true };
        filters.iter().map(by_card).collect()
    }

    #[test]
    fn only_what_is_from_a_pods_addresses_passes_and_nothing_where_anybody_may_send() {
        assert_eq!(Guard::default().by_card(), []);
        let filters = guard(Some(&["10.9.0.1/32", "fd09::/64", "0.0.0.0/0"])).by_card();
        let (all_else, rest) = filters.split_first().unwrap();
        assert_eq!((all_else.keys.len(), all_else.verdict), (0, Verdict::Trap));
        assert!(rest.iter().all(|filter| filter.priority < all_else.priority));
        let passes: Vec<_> = rest.iter().filter(|one| one.verdict == Verdict::Pass).collect();
        // Two addresses of each version, the link-local one among them, by two protocols.
        assert_eq!((rest.len(), passes.len()), (10, 8));
        let is_from = |one: &&&Flower| one.keys.iter().any(|key| matches!(key, Key::EthSrc(_)));
        assert_eq!(passes.iter().filter(is_from).count(), passes.len());
        let v6: Vec<_> =
            passes.iter().filter(|one| one.ethertype == Some(IPV6.ethertype)).collect();
        let net = Key::Ipv6Src("fd09::".parse().unwrap());
        assert_eq!(v6.iter().filter(|one| one.keys.contains(&net)).count(), 2);
        let numbers: BTreeSet<_> = filters.iter().map(|filter| filter.number).collect();
        assert_eq!(numbers.len(), filters.len());
    }

    #[test]
    fn a_pod_that_has_no_address_of_a_version_passes_none_of_it() {
        let filters = guard(Some(&["fd09::1/128"])).by_card();
        assert!(filters.iter().all(|filter| filter.ethertype != Some(IPV4.ethertype)));
        let any = guard(None).by_card();
        let has_source = |one: &Flower| one.keys.iter().any(|key| matches!(key, Key::Ipv4Src(_)));
        assert!(any.len() == 7 && !any.iter().any(has_source), "{any:?}");
    }

    #[test]
    fn stations_alone_send_what_they_like_of_ip() {
        let guard = Guard { senders: Senders::Stations(stations()), ..Guard::default() };
        let filters = guard.by_card();
        assert_eq!(filters.len(), 3);
        assert!(filters[1..].iter().all(|filter| filter.keys.len() == 4));
    }

    #[test]
    fn a_card_is_tried_for_every_verdict_that_it_is_to_have() {
        let tried = trials().map(|trial| trial.verdict);
        let wanted = guard(Some(&["10.9.0.1/32"])).by_card();
        assert!(wanted.iter().all(|filter| tried.contains(&filter.verdict)));
    }

    #[test]
    fn what_a_card_has_is_told_from_what_it_is_to_have() {
        let wanted = guard(Some(&["10.9.0.1/32"])).by_card();
        assert_eq!(compare(&found(&wanted), &wanted), CardGuarding::AsWanted);
        assert_eq!(compare(&[], &wanted), CardGuarding::Missing);
        assert_eq!(compare(&found(&wanted[..1]), &wanted), CardGuarding::Closed);
        assert_eq!(compare(&found(&wanted[1..]), &wanted), CardGuarding::Otherwise);
        assert_eq!(compare(&found(&wanted), &[]), CardGuarding::Otherwise);
        assert_eq!(compare(&[], &[]), CardGuarding::AsWanted);
        let mut lost = found(&wanted);
        lost[2].is_by_card = false;
        assert_eq!(compare(&lost, &wanted), CardGuarding::Otherwise);
    }
}
