//! Permanent neighbours, checked with `ip`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use netlink::{MacAddress, Neighbour, Request};
use serde_json::Value;

use crate::support::TestNetns;

const OURS: u8 = 213;
const SHOWN: &str = "213";

/// The neighbours of this protocol, as `ip` shows them.
fn shown(netns: &TestNetns, family: u8) -> Vec<Value> {
    let shown = netns.json(&format!("ip -{family} -j -d neigh show dev one nud permanent"));
    let all = shown.as_array().unwrap().clone();
    all.into_iter().filter(|entry| entry["protocol"] == SHOWN).collect()
}

fn with_link() -> (TestNetns, u32) {
    let netns = TestNetns::new();
    netns.run("ip link add one type veth peer name two");
    netns.run("ip link set one up");
    let link = netns.rtnl().link_by_name("one").unwrap().unwrap().index;
    (netns, link)
}

/// By default the kernel keeps 1024 other neighbours: `net.ipv4.neigh.default.gc_thresh3`.
#[test]
fn thousands_of_permanent_neighbours_fit() {
    const COUNT: u16 = 4000;
    let (netns, link) = with_link();
    let neighbours = (1..=COUNT).flat_map(|number| {
        let [high, low] = number.to_be_bytes();
        let mac = MacAddress([2, 0, 0, 0, high, low]);
        let v6 = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, number);
        let addresses: [IpAddr; 2] = [Ipv4Addr::new(10, 9, high, low).into(), v6.into()];
        addresses.map(|address| Neighbour { link, address, mac })
    });
    let neighbours: Vec<_> = neighbours.collect();
    let requests: Vec<_> =
        neighbours.iter().map(|neighbour| Request::set_neighbour(neighbour, OURS)).collect();
    netns.rtnl().batch(&requests).unwrap();
    for family in [4, 6] {
        assert_eq!(shown(&netns, family).len(), usize::from(COUNT));
    }
    let mut listed = netns.rtnl().neighbours_of(OURS).unwrap();
    listed.sort();
    let mut expected = neighbours;
    expected.sort();
    assert!(listed == expected, "{} of {}", listed.len(), expected.len());
}

#[test]
fn neighbour_is_replaced_and_deleted() {
    let (netns, link) = with_link();
    let address = IpAddr::from([10, 9, 0, 1]);
    for last in [1, 2] {
        let neighbour = Neighbour { link, address, mac: MacAddress([2, 0, 0, 0, 0, last]) };
        netns.rtnl().change(Request::set_neighbour(&neighbour, OURS)).unwrap();
        let shown = shown(&netns, 4);
        assert_eq!(shown.len(), 1);
        assert_eq!(shown[0]["lladdr"], neighbour.mac.to_string());
    }
    assert_eq!(netns.rtnl().neighbours_of(OURS + 1).unwrap(), []);
    netns.rtnl().change(Request::delete_neighbour(link, address)).unwrap();
    assert_eq!(shown(&netns, 4), [Value::Null; 0]);
    let again = netns.rtnl().change(Request::delete_neighbour(link, address));
    assert!(again.unwrap_err().is_not_found());
}

#[test]
fn entries_of_other_programs_are_listed() {
    let (netns, _) = with_link();
    netns.run("ip neigh add 10.9.0.7 lladdr 02:00:00:00:00:07 dev one nud stale");
    netns.run("ip neigh add fd09::7 lladdr 02:00:00:00:00:08 dev one nud permanent");
    let listed = netns.rtnl().neighbours().unwrap();
    let texts: Vec<_> = listed.iter().map(ToString::to_string).collect();
    for expected in
        ["10.9.0.7 lladdr 02:00:00:00:00:07 Stale", "fd09::7 lladdr 02:00:00:00:00:08 Permanent"]
    {
        assert!(texts.iter().any(|text| text.starts_with(expected)), "{texts:?}");
    }
}
