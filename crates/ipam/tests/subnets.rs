//! The addresses that a subnet allocates, and invalid specifications.
#![expect(clippy::unwrap_used, reason = "a test may")]

use std::net::IpAddr;

use ipam::{
    AllocateError, Pool, RequestError, Reservation, ResizeError, RestoreError, SpecError,
    SubnetSpec, Usage,
};

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn spec(cidr: &str) -> SubnetSpec {
    let cidr = cidr.parse().unwrap();
    SubnetSpec { cidr, gateway: None, ranges: Vec::new(), exclude: Vec::new() }
}

fn with_ranges(cidr: &str, ranges: &[(&str, &str)]) -> SubnetSpec {
    let ranges = ranges.iter().map(|(start, end)| (ip(start), ip(end))).collect();
    SubnetSpec { ranges, ..spec(cidr) }
}

fn excluding(cidr: &str, exclude: &[&str]) -> SubnetSpec {
    SubnetSpec { exclude: exclude.iter().map(|text| text.parse().unwrap()).collect(), ..spec(cidr) }
}

fn via(cidr: &str, gateway: &str) -> SubnetSpec {
    SubnetSpec { gateway: Some(ip(gateway)), ..spec(cidr) }
}

fn pool(spec: SubnetSpec) -> Pool<u32> {
    Pool::new(spec, 60).unwrap()
}

/// All addresses that a pool allocates, in order.
fn all(spec: SubnetSpec) -> Vec<String> {
    let mut pool = pool(spec);
    (0..).map_while(|key| pool.allocate(key, 0).ok()).map(|address| address.to_string()).collect()
}

#[test]
fn reserved_addresses_are_never_handed_out() {
    let cases: &[(SubnetSpec, &[&str])] = &[
        (spec("10.0.0.0/30"), &["10.0.0.1", "10.0.0.2"]),
        (via("10.0.0.0/30", "10.0.0.1"), &["10.0.0.2"]),
        (spec("10.0.0.0/31"), &["10.0.0.0", "10.0.0.1"]),
        (via("10.0.0.0/31", "10.0.0.0"), &["10.0.0.1"]),
        (spec("10.0.0.7/32"), &["10.0.0.7"]),
        (spec("2001:db8::/126"), &["2001:db8::1", "2001:db8::2", "2001:db8::3"]),
        (via("2001:db8::/126", "2001:db8::"), &["2001:db8::1", "2001:db8::2", "2001:db8::3"]),
        (spec("2001:db8::/127"), &["2001:db8::", "2001:db8::1"]),
        (via("2001:db8::/127", "2001:db8::1"), &["2001:db8::"]),
        (spec("2001:db8::7/128"), &["2001:db8::7"]),
        (
            excluding("10.0.0.0/29", &["10.0.0.2/31", "10.0.0.3/32"]),
            &["10.0.0.1", "10.0.0.4", "10.0.0.5", "10.0.0.6"],
        ),
        (
            with_ranges("10.0.0.0/24", &[("10.0.0.254", "10.0.0.255"), ("10.0.0.0", "10.0.0.1")]),
            &["10.0.0.1", "10.0.0.254"],
        ),
        (
            with_ranges("10.0.0.0/16", &[("10.0.15.255", "10.0.16.0"), ("10.0.64.0", "10.0.64.0")]),
            &["10.0.15.255", "10.0.16.0", "10.0.64.0"],
        ),
        (
            with_ranges("255.255.255.0/24", &[("255.255.255.253", "255.255.255.255")]),
            &["255.255.255.253", "255.255.255.254"],
        ),
        (
            with_ranges(
                "::/0",
                &[(
                    "ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe",
                    "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
                )],
            ),
            &["ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"],
        ),
    ];
    for (spec, expected) in cases {
        assert_eq!(all(spec.clone()), *expected, "{spec:?}");
    }
}

#[test]
fn capacities_of_all_sizes() {
    let cases = [
        ("10.0.0.0/8", (1 << 24) - 2),
        ("0.0.0.0/0", (1 << 32) - 2),
        ("192.168.0.0/16", (1 << 16) - 2),
        ("192.168.0.0/24", 254),
        ("2001:db8::/64", (1 << 64) - 1),
        ("2000::/3", (1 << 125) - 1),
        ("::/0", u128::MAX),
    ];
    for (cidr, capacity) in cases {
        let mut pool = pool(spec(cidr));
        assert_eq!(pool.usage(0), Usage { capacity, held: 0, cooling: 0 }, "{cidr}");
        assert!(pool.allocate(1, 0).is_ok(), "{cidr}");
        assert_eq!(pool.usage(0).held, 1, "{cidr}");
    }
}

#[test]
fn slash_16_is_allocated_to_its_last_address() {
    let mut pool = pool(spec("10.1.0.0/16"));
    for number in 1..=65_534_u32 {
        let [_, _, high, low] = number.to_be_bytes();
        assert_eq!(pool.allocate(number, 0), Ok(IpAddr::from([10, 1, high, low])));
    }
    assert!(pool.allocate(0, 0).is_err());
    for number in (1..=65_534).step_by(997) {
        assert_eq!(pool.holder(pool.get(&number).unwrap()), Some(&number));
    }
    for number in (60_001..=65_534).rev() {
        pool.forget(&number).unwrap();
    }
    assert_eq!(pool.allocate(0, 0), Ok(ip("10.1.234.97")));
}

#[test]
fn specifications_that_cannot_be() {
    let network = |text: &str| text.parse().unwrap();
    let cidr = network("10.0.0.0/24");
    let (start, end) = (ip("10.0.0.5"), ip("10.0.0.9"));
    let range = |start: &str, end: &str| with_ranges("10.0.0.0/24", &[(start, end)]);
    let why = Reservation::Broadcast;
    let cases = [
        (spec("10.0.0.5/24"), SpecError::HostBits { cidr: network("10.0.0.5/24"), network: cidr }),
        (spec("224.1.0.0/16"), SpecError::Multicast { cidr: network("224.1.0.0/16") }),
        (spec("ff02::/16"), SpecError::Multicast { cidr: network("ff02::/16") }),
        (
            via("10.0.0.0/24", "10.0.1.1"),
            SpecError::GatewayOutside { gateway: ip("10.0.1.1"), cidr },
        ),
        (via("10.0.0.0/24", "::1"), SpecError::GatewayOutside { gateway: ip("::1"), cidr }),
        (
            via("10.0.0.0/24", "10.0.0.255"),
            SpecError::GatewayReserved { gateway: ip("10.0.0.255"), why, cidr },
        ),
        (range("10.0.0.5", "::9"), SpecError::RangeMixed { start, end: ip("::9") }),
        (range("10.0.0.9", "10.0.0.5"), SpecError::RangeReversed { start: end, end: start }),
        (
            range("10.0.0.5", "10.0.1.1"),
            SpecError::RangeOutside { start, end: ip("10.0.1.1"), cidr },
        ),
        (range("::5", "::9"), SpecError::RangeOutside { start: ip("::5"), end: ip("::9"), cidr }),
        (
            with_ranges("10.0.0.0/24", &[("10.0.0.9", "10.0.0.20"), ("10.0.0.5", "10.0.0.9")]),
            SpecError::RangesOverlap { first: (start, end), second: (end, ip("10.0.0.20")) },
        ),
        (
            excluding("10.0.0.0/24", &["10.0.0.5/30"]),
            SpecError::ExclusionHostBits {
                exclusion: network("10.0.0.5/30"),
                network: network("10.0.0.4/30"),
            },
        ),
        (
            excluding("10.0.0.0/24", &["10.0.1.0/30"]),
            SpecError::ExclusionOutside { exclusion: network("10.0.1.0/30"), cidr },
        ),
        (excluding("10.0.0.0/24", &["10.0.0.0/16"]), SpecError::NothingLeft { cidr }),
        (via("10.0.0.7/32", "10.0.0.7"), SpecError::NothingLeft { cidr: network("10.0.0.7/32") }),
    ];
    for (spec, error) in cases {
        assert_eq!(Pool::<u32>::new(spec, 0).err(), Some(error));
    }
}

#[test]
fn messages_name_the_values_and_the_way_out() {
    let message = |spec| Pool::<u32>::new(spec, 0).err().unwrap().to_string();
    assert_eq!(message(spec("10.0.0.5/24")), "subnet 10.0.0.5/24 has host bits; write 10.0.0.0/24");
    assert_eq!(
        message(with_ranges("10.0.0.0/24", &[("10.0.0.9", "10.0.0.20"), ("10.0.0.5", "10.0.0.9")])),
        "ranges 10.0.0.5-10.0.0.9 and 10.0.0.9-10.0.0.20 overlap"
    );
    let broadcast = message(via("10.0.0.0/24", "10.0.0.255"));
    assert!(broadcast.contains("10.0.0.255") && broadcast.contains("broadcast"), "{broadcast}");
    let mut pool = pool(spec("10.0.0.0/31"));
    pool.allocate(1, 0).unwrap();
    pool.allocate(2, 0).unwrap();
    pool.release(&2, 0).unwrap();
    assert_eq!(
        pool.allocate(3, 1).unwrap_err().to_string(),
        "10.0.0.0/31 has no free address (of 2, 1 are held and 1 are in cool-down)"
    );
}

#[test]
fn next_address_follows_the_last() {
    let mut pool = pool(spec("10.0.0.0/29"));
    assert_eq!(pool.allocate(1, 0), Ok(ip("10.0.0.1")));
    assert_eq!(pool.allocate(2, 0), Ok(ip("10.0.0.2")));
    assert_eq!(pool.allocate(1, 0), Ok(ip("10.0.0.1")));
    assert_eq!(pool.forget(&1), Some(ip("10.0.0.1")));
    assert_eq!(pool.allocate(3, 0), Ok(ip("10.0.0.3")));
    for key in 4..=6 {
        pool.allocate(key, 0).unwrap();
    }
    assert_eq!(pool.allocate(7, 0), Ok(ip("10.0.0.1")), "all around");
}

#[test]
fn used_up_subnet_gives_the_longest_cooled_address() {
    let mut pool = pool(spec("10.0.0.0/29"));
    for key in 1..=6 {
        pool.allocate(key, 0).unwrap();
    }
    for (key, now) in [(4, 10), (2, 11), (1, 11)] {
        pool.release(&key, now).unwrap();
    }
    let subnet = "10.0.0.0/29".parse().unwrap();
    let usage = Usage { capacity: 6, held: 3, cooling: 3 };
    assert_eq!(pool.allocate(7, 15), Err(AllocateError::Exhausted { subnet, usage }));
    assert_eq!(pool.allocate(7, 16), Ok(ip("10.0.0.4")));
    assert!(pool.allocate(8, 16).is_err());
    assert_eq!(pool.allocate(8, 17), Ok(ip("10.0.0.2")));
    assert_eq!(pool.usage(17), Usage { held: 5, cooling: 1, ..usage });
}

/// The clock was 60 days ahead, and was then corrected.
#[test]
fn cool_down_of_the_future_ends_in_time() {
    const DAYS: u64 = 60 * 24 * 3600;
    let mut pool = pool(spec("10.0.0.0/30"));
    for key in [1, 2] {
        pool.allocate(key, DAYS).unwrap();
        pool.release(&key, DAYS).unwrap();
    }
    assert!(pool.allocate(3, 0).is_err());
    let cooling = RequestError::Cooling { address: ip("10.0.0.2"), seconds: 60 };
    assert_eq!(pool.request(4, ip("10.0.0.2"), 0), Err(cooling));
    assert_eq!(pool.allocate(3, 6), Ok(ip("10.0.0.1")));
    assert_eq!(pool.request(4, ip("10.0.0.2"), 60), Ok(ip("10.0.0.2")));
}

#[test]
fn cool_down_is_kept_while_others_are_free() {
    let mut pool = pool(spec("10.0.0.0/30"));
    pool.allocate(1, 0).unwrap();
    pool.release(&1, 0).unwrap();
    assert_eq!(pool.allocate(2, 59), Ok(ip("10.0.0.2")));
}

#[test]
fn cooling_address_outside_ranges_stays_in_cool_down() {
    let mut pool = pool(with_ranges("10.0.0.0/29", &[("10.0.0.1", "10.0.0.1")]));
    pool.request(1, ip("10.0.0.5"), 0).unwrap();
    pool.allocate(2, 0).unwrap();
    pool.release(&1, 0).unwrap();
    pool.release(&2, 1).unwrap();
    assert_eq!(pool.allocate(3, 7), Ok(ip("10.0.0.1")));
    assert!(pool.allocate(4, 59).is_err());
}

#[test]
fn endless_cool_down_does_not_end_early() {
    let mut pool = pool(spec("10.0.0.0/32"));
    pool.rest(ip("10.0.0.0"), u64::MAX);
    assert!(pool.allocate(1, u64::MAX - 60).is_err());
}

#[test]
fn many_releases_of_one_second_end_together() {
    let mut pool = pool(spec("10.0.0.0/20"));
    for key in 1..=4094 {
        pool.allocate(key, 0).unwrap();
    }
    for key in 1..=4094 {
        pool.release(&key, 0).unwrap();
    }
    assert_eq!(pool.usage(59).cooling, 4094);
    assert_eq!(pool.usage(60).cooling, 0);
    for key in 1..=4094 {
        pool.allocate(key, 60).unwrap();
    }
    assert!(pool.allocate(0, 60).is_err());
}

#[test]
fn requests_that_are_refused() {
    let mut pool = pool(SubnetSpec {
        gateway: Some(ip("10.0.0.1")),
        exclude: vec!["10.0.0.32/30".parse().unwrap()],
        ..with_ranges("10.0.0.0/24", &[("10.0.0.100", "10.0.0.200")])
    });
    let address = ip("10.0.0.50");
    assert_eq!(pool.request(1, address, 0), Ok(address));
    assert_eq!(pool.request(1, address, 0), Ok(address));
    let other = ip("10.0.0.51");
    let another = RequestError::KeyHoldsAnother { held: address, address: other };
    assert_eq!(pool.request(1, other, 0), Err(another));
    assert_eq!(pool.request(2, address, 0), Err(RequestError::InUse { address, holder: 1 }));
    pool.release(&1, 0).unwrap();
    assert_eq!(pool.request(2, address, 20), Err(RequestError::Cooling { address, seconds: 40 }));
    assert_eq!(pool.request(2, address, 60), Ok(address));
    let reserved = [
        ("10.0.0.0", Reservation::Network),
        ("10.0.0.255", Reservation::Broadcast),
        ("10.0.0.1", Reservation::Gateway),
        ("10.0.0.33", Reservation::Excluded),
    ];
    for (address, why) in reserved {
        let address = ip(address);
        assert_eq!(pool.request(3, address, 0), Err(RequestError::Reserved { address, why }));
    }
    for address in [ip("10.0.1.0"), ip("2001:db8::1")] {
        let subnet = pool.spec().cidr;
        let outside = RequestError::OutsideSubnet { address, subnet };
        assert_eq!(pool.request(3, address, 0), Err(outside));
    }
}

#[test]
fn a_journal_that_contradicts_itself() {
    let mut pool = pool(spec("10.0.0.0/24"));
    let (address, other) = (ip("10.0.0.9"), ip("10.0.0.8"));
    pool.rest(address, 100);
    assert_eq!(pool.restore(1, address), Ok(()), "what is in use is a fact");
    assert_eq!(pool.usage(0).cooling, 0);
    pool.rest(address, 100);
    assert_eq!(pool.usage(0).cooling, 0);
    let in_use = RestoreError::InUse { address, holder: 1, claimant: 2 };
    assert_eq!(in_use.to_string(), "10.0.0.9 is held by 1 and claimed by 2");
    assert_eq!(pool.restore(2, address), Err(in_use));
    let another = RestoreError::KeyHoldsAnother { key: 1, held: address, claimed: other };
    assert_eq!(pool.restore(1, other), Err(another));
    let (outside, subnet) = (ip("10.0.1.0"), pool.spec().cidr);
    let error = RestoreError::OutsideSubnet { key: 2, address: outside, subnet };
    assert_eq!(pool.restore(2, outside), Err(error));
}

#[test]
fn a_subnet_grows_and_shrinks_under_its_leases() {
    let mut pool = pool(with_ranges("10.0.0.0/24", &[("10.0.0.10", "10.0.0.11")]));
    pool.allocate(1, 0).unwrap();
    pool.allocate(2, 0).unwrap();
    pool.request(3, ip("10.0.0.200"), 0).unwrap();
    assert!(pool.allocate(4, 0).is_err());

    pool.resize(with_ranges(
        "10.0.0.0/16",
        &[("10.0.0.10", "10.0.0.11"), ("10.0.99.0", "10.0.99.9")],
    ))
    .unwrap();
    assert_eq!(pool.allocate(4, 0), Ok(ip("10.0.99.0")));
    let in_the_way = ResizeError::LeaseInTheWay { key: 4, address: ip("10.0.99.0") };
    assert_eq!(pool.resize(spec("10.0.0.0/24")), Err(in_the_way));
    assert_eq!(pool.usage(0).capacity, 12, "nothing has changed");

    pool.release(&4, 0).unwrap();
    pool.resize(with_ranges("10.0.0.0/24", &[("10.0.0.10", "10.0.0.12")])).unwrap();
    assert_eq!(pool.usage(0), Usage { capacity: 3, held: 3, cooling: 0 });
    assert_eq!(pool.allocate(4, 0), Ok(ip("10.0.0.12")));
    let in_the_way = ResizeError::LeaseInTheWay { key: 1, address: ip("10.0.0.10") };
    assert_eq!(pool.resize(via("10.0.0.0/24", "10.0.0.10")), Err(in_the_way));
    let reversed = with_ranges("10.0.0.0/24", &[("10.0.0.3", "10.0.0.2")]);
    assert!(matches!(
        pool.resize(reversed),
        Err(ResizeError::Spec(SpecError::RangeReversed { .. }))
    ));
    assert!(matches!(pool.resize(spec("2001:db8::/64")), Err(ResizeError::LeaseInTheWay { .. })));
    for key in 1..=4 {
        pool.forget(&key).unwrap();
    }
    pool.resize(spec("2001:db8::/64")).unwrap();
    assert_eq!(pool.allocate(1, 0), Ok(ip("2001:db8::1")));
}

/// Long-lived leases among short-lived ones would otherwise keep a part of the bitmap each.
#[test]
fn survivors_do_not_drag_the_search_ever_further() {
    let mut pool = Pool::new(spec("2001:db8::/64"), 0).unwrap();
    let mut highest = ip("::");
    for round in 0..200_u64 {
        for key in 0..4096 {
            highest = highest.max(pool.allocate(round * 4096 + key, 0).unwrap());
        }
        for key in 1..4096 {
            pool.release(&(round * 4096 + key), 0).unwrap();
        }
    }
    assert_eq!(pool.usage(0).held, 200);
    assert!(highest < ip("2001:db8::6:0"), "{highest}");
}

/// 300,000 addresses exceed the first window.
#[test]
fn requested_address_ahead_of_the_search_is_skipped() {
    let mut pool = pool(spec("2001:db8::/64"));
    let asked = ip("2001:db8::4:8000");
    pool.request(0, asked, 0).unwrap();
    let mut last = ip("2001:db8::");
    for key in 1..300_000 {
        let next = pool.allocate(key, 0).unwrap();
        assert!(last < next && next != asked, "{next} after {last}");
        last = next;
    }
    assert_eq!(last, ip("2001:db8::4:93e0"));
    assert_eq!(pool.holder(asked), Some(&0));
    assert_eq!(pool.release(&0, 0), Some(asked));
}
