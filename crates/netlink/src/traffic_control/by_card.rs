//! Filters for the card's hardware: which ingress frames it may forward without the kernel.
//!
//! The card forwards only frames that the guard certainly admits: whole, untagged TCP and UDP unicast from the pod's
//! addresses. The kernel receives all others, so that the guard's BPF program alone decides about them. Cards cannot
//! match ARP (mlx5: `__parse_cls_flower` in drivers/net/ethernet/mellanox/mlx5/core/en_tc.c).

use std::{collections::BTreeSet, iter, net::IpAddr};

use ipnetwork::IpNetwork;
use netlink_packet_route::tc::TcFilterFlowerOption as Key;

use super::{
    flower::{Flower, Found, Verdict},
    guard::{CardGuardState, Guard, Senders},
};
use crate::mac::MacAddress;

/// Priorities of the trial filters and of the final filter. Other programs may use those in between.
const TRIAL: u16 = 16;
const ALL_ELSE: u16 = 15;

const TCP: u8 = 6;
const UDP: u8 = 17;

/// Destination bit of multicast addresses.
const GROUP: [u8; 6] = [1, 0, 0, 0, 0, 0];
const NONE: [u8; 6] = [0; 6];
const WHOLE: [u8; 6] = [0xff; 6];

/// `TCA_FLOWER_KEY_FLAGS_IS_FRAGMENT`
const FRAGMENT: u32 = 1;

/// An IP version with its filters' priorities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Version {
    ethertype: u16,
    /// UDP port to which only DHCP servers send. The guard admits no such packets, so the kernel must get them.
    dhcp_client: u16,
    /// Priority of the exceptions, then that of the admitting filters.
    priorities: [u16; 2],
}

const IPV4: Version = Version { ethertype: 0x0800, dhcp_client: 68, priorities: [2, 3] };
const IPV6: Version = Version { ethertype: 0x86dd, dhcp_client: 546, priorities: [4, 5] };

/// The filters that a link's card should have: none unless requested. With a limit, the kernel must see every frame.
pub(super) fn wanted(guard: &Guard, is_asked_for: bool, is_limited: bool) -> Vec<Flower> {
    match (is_asked_for, is_limited) {
        (false, _) => Vec::new(),
        (true, true) => nothing(),
        (true, false) => guard.by_card(),
    }
}

/// The filters of a card that forwards nothing in hardware.
pub(super) fn nothing() -> Vec<Flower> {
    vec![all_else()]
}

impl Guard {
    /// The filters with which a card forwards only what this guard certainly admits. The final filter, which traps the rest, comes first. Empty if any sender is admitted.
    fn by_card(&self) -> Vec<Flower> {
        let filters: Vec<_> = match &self.senders {
            Senders::Any => return Vec::new(),
            Senders::MacAddresses(macs) => {
                let of = |version: Version| macs.iter().map(move |one| version.mac(*one));
                of(IPV4).chain(of(IPV6)).collect()
            }
            Senders::Hosts { macs, addresses } => {
                let of = |version: Version| version.hosts(macs, addresses.as_ref());
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

    /// Admits all unicast frames of a MAC address.
    fn mac(self, mac: MacAddress) -> Flower {
        self.filter(self.priorities[1], from_address(mac), Verdict::Pass)
    }

    /// Admits TCP and UDP of these MAC addresses from the given addresses and their link-local ones, or from any address.
    fn hosts(
        self,
        macs: &BTreeSet<MacAddress>,
        addresses: Option<&BTreeSet<IpNetwork>>,
    ) -> Vec<Flower> {
        let own = macs.iter().map(|mac| IpNetwork::from(IpAddr::from(mac.link_local())));
        let sources: Vec<_> = match addresses {
            None => vec![Vec::new()],
            Some(all) => all.iter().copied().chain(own).filter_map(|one| self.from(one)).collect(),
        };
        let mut filters = Vec::new();
        for mac in macs {
            for source in &sources {
                filters.extend([TCP, UDP].map(|protocol| self.host(*mac, source, protocol)));
            }
        }
        if !filters.is_empty() {
            filters.insert(0, self.to_dhcp_client());
        }
        filters
    }

    fn host(self, mac: MacAddress, source: &[Key], protocol: u8) -> Flower {
        let mut keys = from_address(mac);
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

    /// Keys that match packets from an address or network. `None`: it is of the other version.
    fn from(self, source: IpNetwork) -> Option<Vec<Key>> {
        let keys = match source {
            _ if source.prefix() == 0 => Vec::new(),
            IpNetwork::V4(v4) => vec![Key::Ipv4Src(v4.network()), Key::Ipv4SrcMask(v4.mask())],
            IpNetwork::V6(v6) => vec![Key::Ipv6Src(v6.network()), Key::Ipv6SrcMask(v6.mask())],
        };
        ((self == IPV4) == source.is_ipv4()).then_some(keys)
    }
}

/// Keys that match unicast frames from a MAC address.
fn from_address(MacAddress(mac): MacAddress) -> Vec<Key> {
    vec![Key::EthDst(NONE), Key::EthDstMask(GROUP), Key::EthSrc(mac), Key::EthSrcMask(WHOLE)]
}

fn all_else() -> Flower {
    let (priority, verdict) = (ALL_ELSE, Verdict::Trap);
    Flower { priority, ethertype: None, number: 0, keys: Vec::new(), verdict }
}

/// Filters to test a card with, one of each verdict. They match no real frame: the source MAC address is all zeros.
/// Both use one place, one after the other.
pub(super) fn trials() -> [Flower; 2] {
    let unused = IpNetwork::from(IpAddr::from([0, 0, 0, 1]));
    let source = IPV4.from(unused).unwrap_or_default();
    let trial =
        Flower { priority: TRIAL, number: u16::MAX, ..IPV4.host(MacAddress(NONE), &source, TCP) };
    [trial.clone(), Flower { verdict: Verdict::Trap, ..trial }]
}

/// Compares the filters of a card with those it should have.
pub(super) fn compare(found: &[Found], wanted: &[Flower]) -> CardGuardState {
    let found: Vec<_> =
        found.iter().filter(|found| found.is_by_card).map(|found| &found.flower).collect();
    let is_closed = || *found == [&all_else()];
    match () {
        () if found.len() == wanted.len() && wanted.iter().all(|one| found.contains(&one)) => {
            CardGuardState::AsWanted
        }
        () if found.is_empty() => CardGuardState::Missing,
        () if is_closed() => CardGuardState::Closed,
        () => CardGuardState::Otherwise,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn macs() -> BTreeSet<MacAddress> {
        [MacAddress([2, 0, 0, 0, 1, 1])].into()
    }

    fn guard(addresses: Option<&[&str]>) -> Guard {
        let network = |address: &&str| address.parse().unwrap();
        let addresses = addresses.map(|all| all.iter().map(network).collect());
        let senders = Senders::Hosts { macs: macs(), addresses };
        Guard { senders, ..Guard::default() }
    }

    fn found(filters: &[Flower]) -> Vec<Found> {
        let by_card = |flower: &Flower| Found { flower: flower.clone(), is_by_card: true };
        filters.iter().map(by_card).collect()
    }

    #[test]
    fn card_forwards_only_pod_addresses() {
        assert_eq!(Guard::default().by_card(), []);
        let filters = guard(Some(&["10.9.0.1/32", "fd09::/64", "0.0.0.0/0"])).by_card();
        let (all_else, rest) = filters.split_first().unwrap();
        assert_eq!((all_else.keys.len(), all_else.verdict), (0, Verdict::Trap));
        assert!(rest.iter().all(|filter| filter.priority < all_else.priority));
        let passes: Vec<_> = rest.iter().filter(|one| one.verdict == Verdict::Pass).collect();
        // Two addresses of each version including the link-local one, times two protocols.
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
    fn card_forwards_no_version_without_address() {
        let filters = guard(Some(&["fd09::1/128"])).by_card();
        assert!(filters.iter().all(|filter| filter.ethertype != Some(IPV4.ethertype)));
        let any = guard(None).by_card();
        let has_source = |one: &Flower| one.keys.iter().any(|key| matches!(key, Key::Ipv4Src(_)));
        assert!(any.len() == 7 && !any.iter().any(has_source), "{any:?}");
    }

    #[test]
    fn mac_only_guard_forwards_all_ip() {
        let guard = Guard { senders: Senders::MacAddresses(macs()), ..Guard::default() };
        let filters = guard.by_card();
        assert_eq!(filters.len(), 3);
        assert!(filters[1..].iter().all(|filter| filter.keys.len() == 4));
    }

    #[test]
    fn card_trial_covers_every_verdict() {
        let tried = trials().map(|trial| trial.verdict);
        let wanted = guard(Some(&["10.9.0.1/32"])).by_card();
        assert!(wanted.iter().all(|filter| tried.contains(&filter.verdict)));
    }

    #[test]
    fn card_filters_are_compared_with_wanted_ones() {
        let wanted = guard(Some(&["10.9.0.1/32"])).by_card();
        assert_eq!(compare(&found(&wanted), &wanted), CardGuardState::AsWanted);
        assert_eq!(compare(&[], &wanted), CardGuardState::Missing);
        assert_eq!(compare(&found(&wanted[..1]), &wanted), CardGuardState::Closed);
        assert_eq!(compare(&found(&wanted[1..]), &wanted), CardGuardState::Otherwise);
        assert_eq!(compare(&found(&wanted), &[]), CardGuardState::Otherwise);
        assert_eq!(compare(&[], &[]), CardGuardState::AsWanted);
        let mut lost = found(&wanted);
        lost[2].is_by_card = false;
        assert_eq!(compare(&lost, &wanted), CardGuardState::Otherwise);
    }
}
