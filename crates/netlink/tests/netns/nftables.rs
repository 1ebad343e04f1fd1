//! Tables of nftables, checked with `nft`.

use std::{
    net::{IpAddr, SocketAddr},
    ops::Range,
    time::Duration,
};

use netlink::{
    Family,
    nftables::{
        Chain, Hook, LinkName, Nftables, NftablesEvent, NftablesMonitor, PacketRate, ProtocolPort,
        Set, Source, Table, Term,
    },
};
use test_clock::{Stopwatch, within};

use crate::support::TestNetns;

const TABLE: &str = "test-table";

fn nftables(netns: &TestNetns) -> Nftables {
    netns.netns.run(Nftables::open).unwrap().unwrap()
}

/// A table that forwards from `inner` to `outer`, and replies back.
fn table(inner: impl IntoIterator<Item = LinkName>) -> Table {
    let inner: Vec<_> = inner.into_iter().collect();
    let pairs: Vec<_> = inner.iter().map(|link| (*link, *link)).collect();
    let sets = vec![
        Set::of_links(c"inner", inner),
        Set::of_links(c"outer", [LinkName::new("p0")]),
        Set::of_pairs(c"pairs", pairs),
    ];
    let forward = vec![
        vec![Term::OfKnownConnection, Term::Accept],
        vec![Term::From(c"inner"), Term::To(c"outer"), Term::Accept],
        vec![Term::Between(c"pairs"), Term::Accept],
        vec![Term::From(c"inner"), Term::Drop],
    ];
    let input = vec![vec![Term::From(c"inner"), Term::Protocol(58), Term::Accept]];
    let leaving = vec![vec![Term::From(c"inner"), Term::To(c"outer"), Term::Masquerade]];
    let untracked = vec![vec![Term::From(c"outer"), Term::Untracked]];
    let chains = vec![
        Chain { name: c"untracked", hook: Hook::BeforeTracking, rules: untracked },
        Chain { name: c"input", hook: Hook::Input, rules: input },
        Chain { name: c"forward", hook: Hook::Forward, rules: forward },
        Chain { name: c"leaving", hook: Hook::SourceTranslation, rules: leaving },
    ];
    Table::new(TABLE, sets, chains)
}

fn links(count: usize) -> impl Iterator<Item = LinkName> {
    (0..count).map(|number| LinkName::new(&format!("gw-net-{number}")))
}

#[test]
fn own_nftables_rules_are_listed() {
    let netns = TestNetns::new();
    let mut nftables = nftables(&netns);
    nftables.replace(&table(links(1))).unwrap();
    netns.run("nft add table inet other");
    netns.run("nft add chain inet other strangers");
    netns.run("nft add rule inet other strangers counter drop");
    let rules = nftables.rules("test-").unwrap();
    assert_eq!(rules.len(), 7, "{rules:#?}");
    assert!(rules.iter().any(|rule| rule.contains("masq") && rule.contains("leaving")));
    assert!(rules.iter().all(|rule| !rule.contains("strangers") && !rule.contains('\n')));
}

#[test]
fn nft_displays_table_as_intended() {
    let netns = TestNetns::new();
    let mut nftables = nftables(&netns);
    nftables.replace(&table(links(2))).unwrap();
    let shown = netns.run("nft list ruleset");
    for expected in [
        "table inet test-table",
        "type ifname\n",
        "elements = { \"p0\" }",
        "type ifname . ifname",
        "\"gw-net-0\" . \"gw-net-0\"",
        "type filter hook input priority filter; policy accept;",
        "type filter hook forward priority filter; policy accept;",
        "type nat hook postrouting priority srcnat; policy accept;",
        "type filter hook prerouting priority raw; policy accept;",
        "iifname @outer notrack",
        "ct state established,related accept",
        "iifname @inner oifname @outer accept",
        "iifname . oifname @pairs accept",
        "iifname @inner drop",
        "iifname @inner meta l4proto ipv6-icmp accept",
        "iifname @inner oifname @outer masquerade",
    ] {
        assert!(shown.contains(expected), "{expected} is not in\n{shown}");
    }
}

/// A table that redirects TCP to these ports in both families, at any address and at one address each.
fn redirecting(ports: &Range<u16>) -> Table {
    let families = [
        (Family::V4, c"to-ports-v4", c"at-v4", c"targets-v4", "10.1.0.2", "192.0.2.1"),
        (Family::V6, c"to-ports-v6", c"at-v6", c"targets-v6", "fd00::2", "2001:db8::1"),
    ];
    let of = |port| ProtocolPort { protocol: 6, port };
    let mut sets = Vec::new();
    let (mut arriving, mut leaving) = (Vec::new(), Vec::new());
    for (family, by_port, at, targets, target, own) in families {
        let (target, own): (IpAddr, IpAddr) = (target.parse().unwrap(), own.parse().unwrap());
        let mapped = || ports.clone().map(|port| (of(port), SocketAddr::new(target, 80)));
        sets.push(Set::from_ports(by_port, family, mapped()));
        let mapped_at = mapped().map(|(port, target)| ((own, port), target));
        sets.push(Set::from_ports_at(at, family, mapped_at));
        sets.push(Set::of_ports(targets, family, [(target, of(80))]));
        arriving.push(vec![Term::ToOwnAddress, Term::RedirectByPortAt(family, at)]);
        arriving.push(vec![Term::ToOwnAddress, Term::RedirectByPort(family, by_port)]);
        leaving.push(vec![Term::Redirected, Term::ToPort(family, targets), Term::Masquerade]);
    }
    let chains = vec![
        Chain { name: c"redirect", hook: Hook::DestinationTranslation, rules: arriving },
        Chain { name: c"leaving", hook: Hook::SourceTranslation, rules: leaving },
    ];
    Table::new(TABLE, sets, chains)
}

#[test]
fn nft_displays_redirections_as_intended() {
    let netns = TestNetns::new();
    nftables(&netns).replace(&redirecting(&(8080..8081))).unwrap();
    let shown = netns.run("nft list ruleset");
    for expected in [
        "type inet_proto . inet_service : ipv4_addr . inet_service",
        "type ipv6_addr . inet_proto . inet_service : ipv6_addr . inet_service",
        "type ipv6_addr . inet_proto . inet_service\n",
        "elements = { tcp . 8080 : 10.1.0.2 . 80 }",
        "elements = { 2001:db8::1 . tcp . 8080 : fd00::2 . 80 }",
        "elements = { 10.1.0.2 . tcp . 80 }",
        "type nat hook prerouting priority dstnat; policy accept;",
        "fib daddr type local meta nfproto ipv4 dnat ip to meta l4proto . th dport map @to-ports-v4",
        "fib daddr type local dnat ip6 to ip6 daddr . meta l4proto . th dport map @at-v6",
        "ct status dnat ip daddr . meta l4proto . th dport @targets-v4 masquerade",
    ] {
        assert!(shown.contains(expected), "{expected} is not in\n{shown}");
    }
}

#[test]
fn thousand_redirections_are_replaced_in_milliseconds() {
    let netns = TestNetns::new();
    let mut nftables = nftables(&netns);
    let table = redirecting(&(30_000..31_000));
    let least = least_time(&mut nftables, &table);
    println!(
        "a table of 4000 redirections, 1000 each by port and by address in two families, is replaced in {least:?}"
    );
    assert!(least < Duration::from_millis(500), "{least:?}");
    let start = Stopwatch::start();
    let before = nftables.contents(&table).unwrap();
    println!("it is read in {:?}", start.elapsed());
    assert!(before.is_some());
    netns.run("nft add table inet other");
    assert_eq!(nftables.contents(&table).unwrap(), before);
    netns.run("nft delete element inet test-table to-ports-v6 { tcp . 30500 }");
    assert_ne!(nftables.contents(&table).unwrap(), before);
}

#[test]
fn table_changes_by_elements() {
    let netns = TestNetns::new();
    let mut nftables = nftables(&netns);
    let tables = [redirecting(&(8080..8083)), redirecting(&(8081..9000))];
    let shown = || {
        let shown = netns.run("nft list ruleset");
        let mut parts: Vec<_> =
            shown.split([',', '\n']).map(|part| part.trim().to_owned()).collect();
        parts.sort_unstable();
        parts
    };
    nftables.replace(&tables[1]).unwrap();
    let expected = shown();
    nftables.replace(&tables[0]).unwrap();
    let mut in_force = tables[0].clone();
    for after in [1, 0, 1] {
        let generation = nftables.generation().unwrap();
        let changes = in_force.changes_to(&tables[after]).unwrap();
        nftables.change(generation, &mut in_force, &changes).unwrap();
        assert_eq!(nftables.generation().unwrap(), generation + 1);
        assert_eq!(in_force, tables[after]);
    }
    assert_eq!(shown(), expected);
    assert_eq!(in_force.changes_to(&table(links(1))), None);
}

#[test]
fn stale_generation_refuses_element_changes() {
    let netns = TestNetns::new();
    let mut nftables = nftables(&netns);
    let (mut in_force, after) = (redirecting(&(8080..8082)), redirecting(&(8081..8083)));
    nftables.replace(&in_force).unwrap();
    let changes = in_force.changes_to(&after).unwrap();
    let generation = nftables.generation().unwrap();
    netns.run("nft add table inet other");
    let shown = netns.run("nft list ruleset");
    let refused = nftables.change(generation, &mut in_force, &changes).unwrap_err();
    assert!(refused.to_string().contains("change elements"), "{refused}");
    assert_eq!(netns.run("nft list ruleset"), shown);
    let generation = nftables.generation().unwrap();
    assert_ne!(in_force, after);
    nftables.change(generation, &mut in_force, &changes).unwrap();
    assert_eq!(in_force, after);
}

#[test]
fn table_is_replaced_and_others_stay() {
    let netns = TestNetns::new();
    let mut nftables = nftables(&netns);
    netns.run("nft add table inet other");
    netns.run("nft add set inet other inner { type ifname; }");
    let others = netns.run("nft list table inet other");
    nftables.delete(TABLE).unwrap();
    assert!(!nftables.has(TABLE).unwrap());
    nftables.replace(&table(links(3))).unwrap();
    nftables.replace(&table(links(1))).unwrap();
    let shown = netns.run("nft list table inet test-table");
    assert!(shown.contains("gw-net-0") && !shown.contains("gw-net-1"), "{shown}");
    assert_eq!(shown.matches("masquerade").count(), 1, "{shown}");
    nftables.delete(TABLE).unwrap();
    assert_eq!(netns.run("nft list ruleset"), others);
}

#[test]
fn foreign_change_of_table_is_seen() {
    let netns = TestNetns::new();
    let mut nftables = nftables(&netns);
    let table = table(links(600));
    nftables.replace(&table).unwrap();
    let generation = nftables.generation().unwrap();
    let before = nftables.contents(&table).unwrap().unwrap();
    netns.run("nft add table inet other");
    assert_ne!(nftables.generation().unwrap(), generation);
    assert_eq!(nftables.contents(&table).unwrap().as_ref(), Some(&before));
    for change in [
        "nft delete element inet test-table inner { gw-net-7 }",
        "nft add element inet test-table outer { p1 }",
        "nft insert rule inet test-table forward accept",
        "nft flush chain inet test-table leaving",
        "nft add chain inet test-table another",
    ] {
        nftables.replace(&table).unwrap();
        let before = nftables.contents(&table).unwrap();
        netns.run(change);
        assert_ne!(nftables.contents(&table).unwrap(), before, "{change}");
    }
    netns.run("nft flush ruleset");
    assert_eq!(nftables.contents(&table).unwrap(), None);
}

#[test]
fn refused_transaction_changes_nothing() {
    let netns = TestNetns::new();
    let mut nftables = nftables(&netns);
    nftables.replace(&table(links(1))).unwrap();
    let before = netns.run("nft list ruleset");
    let rules = vec![vec![Term::From(c"nothing"), Term::Accept]];
    let chains = vec![Chain { name: c"forward", hook: Hook::Forward, rules }];
    let refused = nftables.replace(&Table::new(TABLE, Vec::new(), chains)).unwrap_err();
    assert!(refused.is_not_found(), "{refused}");
    assert!(refused.to_string().contains("table test-table"), "{refused}");
    assert_eq!(netns.run("nft list ruleset"), before);
    nftables.replace(&table(links(2))).unwrap();
}

#[tokio::test]
async fn each_nftables_transaction_is_reported() {
    let netns = TestNetns::new();
    let mut monitor = NftablesMonitor::open(&netns.netns).unwrap();
    for transaction in
        ["add table inet other", "add set inet other a { type ifname; }", "flush ruleset"]
    {
        netns.run(&format!("nft {transaction}"));
        let reported = within(Duration::from_secs(20), monitor.next());
        assert_eq!(reported.await.expect(transaction).unwrap(), NftablesEvent::Changed);
    }
}

fn least_time(nftables: &mut Nftables, table: &Table) -> Duration {
    let replaced = || {
        let start = Stopwatch::start();
        nftables.replace(table).unwrap();
        start.elapsed()
    };
    std::iter::repeat_with(replaced).take(10).min().unwrap()
}

/// A DPU may have as many networks. No pod waits for a replacement.
#[test]
fn thousand_link_table_is_replaced_in_milliseconds() {
    let netns = TestNetns::new();
    let mut nftables = nftables(&netns);
    let table = table(links(1000));
    nftables.replace(&table).unwrap();
    let least = least_time(&mut nftables, &table);
    println!("a table of 1000 links and 1000 pairs is replaced in {least:?}");
    assert!(least < Duration::from_millis(500), "{least:?}");
}

#[test]
fn nft_displays_next_hop_rules() {
    let netns = TestNetns::new();
    let families = [
        (Family::V4, c"known-v4", c"asked-v4", "10.1.0.2"),
        (Family::V6, c"known-v6", c"asked-v6", "fd00::2"),
    ];
    let rate = PacketRate { per_second: 16, burst: 64 };
    let mut sets = vec![Set::of_senders(c"senders"), Set::of_ingress_links(c"entrances")];
    let mut rules = Vec::new();
    for (family, known, asked, address) in families {
        sets.push(Set::of_addresses(known, family, [address.parse().unwrap()]));
        sets.push(Set::of_resolutions(asked, family));
        let is_new =
            || vec![Term::NextHopNotIn(family, known), Term::ResolutionNotIn(family, asked)];
        let with = |term| [is_new(), vec![term, Term::Drop]].concat();
        rules.push(with(Term::SenderRateExceeded(c"senders", rate)));
        rules.push(with(Term::LinkRateExceeded(c"entrances", rate)));
        rules.push(vec![Term::NextHopNotIn(family, known), Term::RecordResolution(family, asked)]);
    }
    let chains = vec![Chain { name: c"forward", hook: Hook::Forward, rules }];
    let table = Table::new(TABLE, sets, chains);
    let mut nftables = nftables(&netns);
    nftables.replace(&table).unwrap();
    let shown = netns.run("nft list ruleset");
    for expected in [
        "type ipv4_addr\n",
        "type iface_index . ether_addr . ipv4_addr",
        "type iface_index . ether_addr . ipv6_addr",
        "size 65535",
        "flags dynamic,timeout",
        "timeout 15s",
        "rt ip nexthop != @known-v4 iif . ether saddr . rt ip nexthop != @asked-v4",
        "update @senders { iif . ether saddr limit rate over 16/second burst 64 packets } drop",
        "update @entrances { iif limit rate over 16/second burst 64 packets } drop",
        "rt ip6 nexthop != @known-v6 update @asked-v6 { iif . ether saddr . rt ip6 nexthop }",
    ] {
        assert!(shown.contains(expected), "{expected} is not in\n{shown}");
    }
    // Elements that packets added are not compared.
    let before = nftables.contents(&table).unwrap();
    netns.run(&format!("nft add element inet {TABLE} senders {{ 1 . 02:00:00:00:00:01 }}"));
    assert_eq!(nftables.contents(&table).unwrap(), before);
}

#[test]
fn nft_displays_source_rules() {
    let netns = TestNetns::new();
    let rate = PacketRate { per_second: 16, burst: 64 };
    let known = || Set::of_addresses(c"known", Family::V4, [[10, 1, 0, 2].into()]);
    let heard = || Set::of_sources(c"heard", Family::V4);
    let senders = || Set::of_senders(c"senders");
    let sets = vec![known(), heard(), senders()];
    let of_arp = [known(), heard(), senders()].map(Set::for_arp);
    let rules = |source| {
        let is_new = Term::SourceNotRecorded(source, c"heard");
        vec![
            vec![Term::SourceIn(source, c"known"), Term::Accept],
            vec![is_new, Term::SenderRateExceeded(c"senders", rate), Term::Drop],
            vec![Term::RecordSource(source, c"heard")],
        ]
    };
    let ip = rules(Source::Ip(Family::V4));
    let chains = vec![
        Chain { name: c"arriving", hook: Hook::BeforeTracking, rules: ip },
        Chain { name: c"requests", hook: Hook::Arp, rules: rules(Source::ArpRequest) },
    ];
    let table = Table::new(TABLE, sets.into_iter().chain(of_arp).collect(), chains);
    let mut nftables = nftables(&netns);
    nftables.replace(&table).unwrap();
    let shown = netns.run("nft list ruleset");
    for expected in [
        "ip saddr @known accept",
        "iif . ether saddr . ip saddr != @heard update @senders",
        "update @heard { iif . ether saddr . ip saddr }",
        "table arp test-table",
        "type filter hook input priority filter; policy accept;",
        "arp operation request arp saddr ip @known accept",
        "iif . ether saddr . arp saddr ip != @heard update @senders",
        "update @heard { iif . ether saddr . arp saddr ip }",
    ] {
        assert!(shown.contains(expected), "{expected} is not in\n{shown}");
    }
    let before = nftables.contents(&table).unwrap();
    assert!(before.is_some());
    netns.run("nft flush chain arp test-table requests");
    assert_ne!(nftables.contents(&table).unwrap(), before);
    nftables.delete(TABLE).unwrap();
    assert_eq!(netns.run("nft list tables"), "");
}

/// The service compares all ports after each nftables change, which each pod causes.
#[test]
fn five_hundred_port_rules_compare_fast() {
    const PORTS: usize = 500;
    let netns = TestNetns::new();
    let names = || (0..PORTS).map(|number| format!("p{number}"));
    for pair in 0..PORTS / 2 {
        let (one, other) = (2 * pair, 2 * pair + 1);
        netns.run(&format!("ip link add p{one} type veth peer name p{other}"));
    }
    let mut nftables = nftables(&netns);
    names().for_each(|name| nftables.require_ingress(&name).unwrap());
    assert_eq!(nftables.ports_requiring_ingress().unwrap(), names().collect());
    let times = (0..5).map(|_| {
        let start = Stopwatch::start();
        nftables.ports_requiring_ingress().unwrap();
        start.elapsed()
    });
    let least = times.min().unwrap();
    println!("the rules of {PORTS} ports are compared in {least:?}");
    assert!(least < Duration::from_millis(100), "{least:?}");
}
