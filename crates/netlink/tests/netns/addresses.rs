//! Addresses, routes, rules and limits, checked with `ip` and `tc`.

use netlink::{
    IpNetwork, Limit, LimitInForce, LinkChange, Request, Route, RouteKind, RouteScope, Rtnl, Rule,
    VethEnd,
};
use serde_json::{Value, json};

use crate::support::TestNetns;

const VF: u32 = 50;

fn net(text: &str) -> IpNetwork {
    text.parse().unwrap()
}

/// A namespace in which the link `vf` is up and has a carrier.
fn with_vf() -> (TestNetns, Rtnl) {
    let netns = TestNetns::new();
    let mut rtnl = netns.rtnl();
    rtnl.change(Request::add_veth(&VethEnd::new("vf").index(VF), &VethEnd::new("rep").index(51)))
        .unwrap();
    for index in [VF, 51] {
        rtnl.change_link(index, &LinkChange::new().up()).unwrap();
    }
    (netns, rtnl)
}

fn addresses(netns: &TestNetns, family: &str) -> Vec<Value> {
    let shown = netns.json(&format!("ip -j {family} addr show dev vf scope global"));
    shown[0]["addr_info"].as_array().cloned().unwrap_or_default()
}

#[test]
fn addresses_are_added_and_deleted() {
    let (netns, mut rtnl) = with_vf();
    rtnl.change(Request::add_address(VF, net("192.0.2.7/24"))).unwrap();
    rtnl.change(Request::add_address(VF, net("2001:db8::7/64"))).unwrap();
    let v4 = &addresses(&netns, "-4")[0];
    assert_eq!((&v4["local"], &v4["prefixlen"]), (&json!("192.0.2.7"), &json!(24)));
    let v6 = &addresses(&netns, "-6")[0];
    assert_eq!((&v6["local"], &v6["prefixlen"]), (&json!("2001:db8::7"), &json!(64)));
    assert_eq!((&v6["nodad"], &v6["noprefixroute"]), (&json!(true), &Value::Null));
    assert_eq!(v6["tentative"], Value::Null);

    let read = rtnl.addresses(VF).unwrap();
    assert!(
        read.contains(&net("192.0.2.7/24")) && read.contains(&net("2001:db8::7/64")),
        "{read:?}"
    );
    let twice = rtnl.change(Request::add_address(VF, net("192.0.2.7/24"))).unwrap_err();
    assert!(twice.is_exists(), "{twice}");
    assert!(twice.to_string().contains(" address 192.0.2.7/24 to link vf (50): "), "{twice}");

    for address in ["192.0.2.7/24", "2001:db8::7/64"] {
        rtnl.change(Request::delete_address(VF, net(address))).unwrap();
        let again = rtnl.change(Request::delete_address(VF, net(address))).unwrap_err();
        assert!(again.is_not_found(), "{again}");
    }
    assert!(addresses(&netns, "-4").is_empty() && addresses(&netns, "-6").is_empty());
}

#[test]
fn new_address_becomes_local() {
    let (netns, mut rtnl) = with_vf();
    rtnl.change(Request::add_address(VF, net("2001:db8::12:3456/64"))).unwrap();
    let address = "2001:db8::12:3456".parse().unwrap();
    test_clock::wait_until("the address is local", || rtnl.is_local(address).unwrap());
    let routes = netns.json("ip -j -6 route show table local dev vf");
    let is_it = |route: &Value| route["dst"] == "2001:db8::12:3456" && route["type"] == "local";
    assert!(routes.as_array().unwrap().iter().any(is_it), "{routes}");
    let groups = netns.json("ip -j -6 maddr show dev vf");
    assert!(groups.to_string().contains("\"ff02::1:ff12:3456\""), "{groups}");

    for other in ["2001:db8::99", "2001:db9::1"] {
        assert!(!rtnl.is_local(other.parse().unwrap()).unwrap(), "{other}");
    }
    rtnl.change(Request::delete_address(VF, net("2001:db8::12:3456/64"))).unwrap();
    assert!(!rtnl.is_local(address).unwrap(), "it was deleted");
}

#[test]
fn one_batch_configures_a_pod() {
    let (netns, mut rtnl) = with_vf();
    let mut default_v4 =
        Route::new(net("0.0.0.0/0"), VF).via("198.51.100.1".parse().unwrap()).on_link();
    default_v4.mtu = Some(1300);
    default_v4.advertised_mss = Some(1200);
    let mut default_v6 = Route::new(net("::/0"), VF).via("fe80::1".parse().unwrap());
    default_v6.priority = Some(7);
    let mut elsewhere = Route::new(net("203.0.113.0/24"), VF);
    elsewhere.table = Some(1000);
    rtnl.batch(&[
        Request::add_address(VF, net("192.0.2.7/32")),
        Request::add_address(VF, net("2001:db8::7/128")),
        Request::add_route(&default_v4),
        Request::add_route(&default_v6),
        Request::add_route(&elsewhere),
    ])
    .unwrap();

    let v4 = &netns.json("ip -j route show default")[0];
    assert_eq!((&v4["gateway"], &v4["dev"]), (&json!("198.51.100.1"), &json!("vf")));
    assert_eq!(v4["flags"], json!(["onlink"]));
    assert_eq!(v4["metrics"][0], json!({"mtu": 1300, "advmss": 1200}));
    let v6 = &netns.json("ip -j -6 route show default")[0];
    assert_eq!((&v6["gateway"], &v6["metric"]), (&json!("fe80::1"), &json!(7)));
    let other = &netns.json("ip -j route show table 1000")[0];
    assert_eq!((&other["dst"], &other["dev"]), (&json!("203.0.113.0/24"), &json!("vf")));

    let read = rtnl.routes().unwrap();
    for route in [&default_v4, &default_v6, &elsewhere] {
        let mut route = route.clone();
        route.priority = route.priority.filter(|priority| *priority != 0);
        assert!(read.contains(&route), "{route} is not in {read:?}");
        rtnl.change(Request::delete_route(&route)).unwrap();
        assert!(rtnl.change(Request::delete_route(&route)).unwrap_err().is_not_found());
    }
}

#[test]
fn routes_have_kinds_and_scopes() {
    let (netns, mut rtnl) = with_vf();
    rtnl.change(Request::add_address(VF, net("192.0.2.7/24"))).unwrap();
    let rejecting = |kind, text: &str| Route::rejecting(kind, net(text));
    let scoped = |text: &str, scope| Route { scope: Some(scope), ..Route::new(net(text), VF) };
    let mut priced = rejecting(RouteKind::Unreachable, "203.0.113.0/24");
    (priced.priority, priced.table) = (Some(7), Some(1000));
    let v6 = rejecting(RouteKind::Blackhole, "2001:db8:9::/48");
    let routes = [
        rejecting(RouteKind::Blackhole, "198.51.100.0/24"),
        priced,
        rejecting(RouteKind::Prohibit, "::/0"),
        v6.clone(),
        scoped("203.0.113.0/24", RouteScope::Host),
        scoped("198.18.0.0/15", RouteScope::Global),
    ];
    rtnl.batch(&routes.iter().map(Request::add_route).collect::<Vec<_>>()).unwrap();
    let shown = |command: &str| netns.json(command)[0].clone();
    assert_eq!(shown("ip -j route show 198.51.100.0/24")["type"], "blackhole");
    assert_eq!(shown("ip -j route show table 1000")["type"], "unreachable");
    assert_eq!(shown("ip -j -6 route show default")["type"], "prohibit");
    assert_eq!(shown("ip -j -6 route show 2001:db8:9::/48")["type"], "blackhole");
    assert_eq!(shown("ip -j -d route show 203.0.113.0/24")["scope"], "host");
    assert_eq!(shown("ip -j -d route show 198.18.0.0/15")["scope"], "global");
    let taken =
        Route { priority: Some(1024), ..rejecting(RouteKind::Unreachable, "2001:db8:9::/48") };
    assert_eq!(taken.place(), v6.place());
    let refused = rtnl.change(Request::add_route(&taken)).unwrap_err();
    assert!(refused.is_exists(), "{refused}");
    assert!(refused.to_string().contains(" route unreachable 2001:db8:9::/48"), "{refused}");
    let read = rtnl.routes().unwrap();
    for route in &routes {
        let is_it = |read: &&Route| {
            read.place() == route.place() && (read.kind, read.scope) == (route.kind, route.scope)
        };
        let read = read.iter().find(is_it).unwrap_or_else(|| panic!("{route} is not in {read:?}"));
        rtnl.change(Request::delete_route(read)).unwrap();
        assert!(rtnl.change(Request::delete_route(route)).unwrap_err().is_not_found());
    }
}

#[test]
fn routes_are_distinguished_by_protocol() {
    let (netns, mut rtnl) = with_vf();
    let ours = |text: &str| Route { protocol: Some(213), ..Route::new(net(text), VF) };
    let (v4, v6) = (ours("203.0.113.0/24"), ours("2001:db8:7::/64"));
    let theirs = Route::new(net("2001:db8:8::/64"), VF);
    rtnl.batch(&[&v4, &v6, &theirs].map(Request::add_route)).unwrap();
    assert_eq!(netns.json("ip -j -6 route show proto 213").as_array().map(Vec::len), Some(1));
    let read: Vec<_> = rtnl.routes_of(213).unwrap().iter().map(|it| it.destination).collect();
    assert_eq!(read, [v4.destination, v6.destination]);
    let mistaken = Route { destination: theirs.destination, ..v6 };
    assert!(rtnl.change(Request::delete_route(&mistaken)).unwrap_err().is_not_found());
}

#[test]
fn batch_reports_first_refusal_and_continues() {
    let (netns, mut rtnl) = with_vf();
    let unreachable = Route::new(net("0.0.0.0/0"), VF).via("198.51.100.1".parse().unwrap());
    let error = rtnl
        .batch(&[
            Request::add_address(VF, net("192.0.2.7/24")),
            Request::add_route(&unreachable),
            Request::add_address(VF, net("192.0.2.7/24")),
            Request::add_address(VF, net("192.0.2.8/24")),
        ])
        .unwrap_err();
    let reported = " route 0.0.0.0/0 via 198.51.100.1 on link vf (50): Nexthop has invalid gateway";
    assert!(error.to_string().ends_with(reported), "{error}");
    assert_eq!(addresses(&netns, "-4").len(), 2);
}

#[test]
fn large_batch_is_answered_completely() {
    let (netns, mut rtnl) = with_vf();
    let address = |host: u8| Request::add_address(VF, net(&format!("192.0.2.{host}/24")));
    let all: Vec<_> = (1..=200).map(address).collect();
    rtnl.batch(&all).unwrap();
    assert_eq!(addresses(&netns, "-4").len(), 200);
    assert!(rtnl.batch(&all[150..]).unwrap_err().to_string().contains("192.0.2.151/24"));
}

#[test]
fn rules_select_table_by_source() {
    let (netns, mut rtnl) = with_vf();
    for (family, source) in [("-4", "192.0.2.7/32"), ("-6", "2001:db8::7/128")] {
        let rule = Rule { source: net(source), table: 1000, priority: Some(600) };
        rtnl.change(Request::add_rule(&rule)).unwrap();
        assert!(rtnl.change(Request::add_rule(&rule)).unwrap_err().is_exists());
        let shown = netns.json(&format!("ip -j {family} rule show priority 600"));
        let address = source.split('/').next().unwrap();
        assert_eq!((&shown[0]["src"], &shown[0]["table"]), (&json!(address), &json!("1000")));
        assert_eq!(rtnl.rules().unwrap(), [rule]);
        rtnl.change(Request::delete_rule(&rule)).unwrap();
        assert!(rtnl.change(Request::delete_rule(&rule)).unwrap_err().is_not_found());
    }
}

#[test]
fn foreign_and_kernel_rules_are_left_out() {
    let (netns, mut rtnl) = with_vf();
    for (family, source) in [("-4", "0.0.0.0/0"), ("-6", "::/0")] {
        netns.run(&format!("ip {family} rule add fwmark 7 lookup 1000 priority 599"));
        let rule = Rule { source: net(source), table: 1000, priority: Some(600) };
        rtnl.change(Request::add_rule(&rule)).unwrap();
        assert_eq!(rtnl.rules().unwrap(), [rule]);
        rtnl.change(Request::delete_rule(&rule)).unwrap();
        assert_eq!(rtnl.rules().unwrap(), []);
    }
}

#[test]
fn transmit_limit_is_set_changed_and_removed() {
    let (netns, mut rtnl) = with_vf();
    let shown = || netns.json("tc -j qdisc show dev vf root")[0].clone();
    let small = Limit { rate_bits: 10_000_000, burst_bits: 1_000_000, queue_bits: 500_000 };
    let large =
        Limit { rate_bits: 100_000_000_000, burst_bits: 100_000_000, queue_bits: 5_000_000_000 };
    for limit in [small, large, small] {
        rtnl.traffic_control().set_queue_limit(VF, Some(limit)).unwrap();
        let queue = shown();
        assert_eq!(queue["kind"], "tbf");
        assert_eq!(queue["options"]["rate"].as_u64().unwrap() * 8, limit.rate_bits);
        let burst = queue["options"]["burst"].as_u64().unwrap() * 8;
        assert!(burst.abs_diff(limit.burst_bits) * 100 <= limit.burst_bits, "{burst}");
        assert_eq!(
            rtnl.traffic_control().queue_limit(VF).unwrap(),
            Some(LimitInForce::from(limit))
        );
    }
    for _ in 0..2 {
        rtnl.traffic_control().set_queue_limit(VF, None).unwrap();
        assert_ne!(shown()["kind"], "tbf");
        assert_eq!(rtnl.traffic_control().queue_limit(VF).unwrap(), None);
    }
}
