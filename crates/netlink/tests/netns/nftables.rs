//! Tables of nftables, looked at with `nft`.

use std::time::{Duration, Instant};

use netlink::nftables::{
    Chain, Hook, LinkName, Nftables, NftablesEvent, NftablesMonitor, Set, Table, Term,
};

use crate::support::TestNetns;

const TABLE: &str = "test-table";

fn nftables(netns: &TestNetns) -> Nftables {
    netns.netns.run(Nftables::open).unwrap().unwrap()
}

/// A table that lets `inner` pass to `outer`, and back what belongs to it.
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
fn a_table_is_shown_by_nft_as_it_was_meant() {
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

#[test]
fn a_table_takes_the_place_of_the_one_before_and_tables_of_others_stay() {
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
fn what_a_stranger_changes_in_a_table_is_seen_and_what_he_changes_elsewhere_is_not() {
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
fn a_transaction_that_is_refused_changes_nothing_and_says_why() {
    let netns = TestNetns::new();
    let mut nftables = nftables(&netns);
    nftables.replace(&table(links(1))).unwrap();
    let before = netns.run("nft list ruleset");
    let rules = vec![vec![Term::From(c"nothing"), Term::Accept]];
    let chains = vec![Chain { name: c"forward", hook: Hook::Forward, rules }];
    let refused = nftables.replace(&Table::new(TABLE, Vec::new(), chains)).unwrap_err();
    assert!(refused.is_not_found(), "{refused}");
    assert!(refused.to_string().contains("replace the table test-table of nftables"), "{refused}");
    assert_eq!(netns.run("nft list ruleset"), before);
    nftables.replace(&table(links(2))).unwrap();
}

#[tokio::test]
async fn each_transaction_is_told_of() {
    let netns = TestNetns::new();
    let mut monitor = NftablesMonitor::open(&netns.netns).unwrap();
    netns.run("nft flush ruleset");
    netns.run("nft add table inet other");
    let told = tokio::time::timeout(Duration::from_secs(20), monitor.next());
    assert_eq!(told.await.unwrap().unwrap(), NftablesEvent::Changed);
}

/// As many as a DPU may have networks; a pod waits for none of it.
#[test]
fn a_table_of_a_thousand_links_is_replaced_in_milliseconds() {
    let netns = TestNetns::new();
    let mut nftables = nftables(&netns);
    let table = table(links(1000));
    nftables.replace(&table).unwrap();
    let least = (0..10).map(|_| {
        let start = Instant::now();
        nftables.replace(&table).unwrap();
        start.elapsed()
    });
    let least = least.min().unwrap();
    println!("a table of 1000 links and 1000 pairs is replaced in {least:?}");
    assert!(least < Duration::from_millis(500), "{least:?}");
}
