//! States of links, changed by programs, `ip`, `ethtool` and sysfs.

use netlink::{LinkChange, LinkState, LinkStateReader, NetSysfs, Netns, Request, VethEnd};

use crate::support::TestNetns;

/// A namespace with the veth end `one`, whose other end is in a second one.
fn with_pair() -> (TestNetns, TestNetns) {
    let (here, there) = (TestNetns::new(), TestNetns::new());
    let other = VethEnd::new("two").netns(&there.netns);
    here.rtnl().change(Request::add_veth(&VethEnd::new("one"), &other)).unwrap();
    (here, there)
}

fn index_of(netns: &TestNetns, name: &str) -> u32 {
    netns.rtnl().link_by_name(name).unwrap().unwrap().index
}

fn state(netns: &TestNetns) -> LinkState {
    let sysfs = NetSysfs::mount(&netns.netns).unwrap();
    let mut reader = LinkStateReader::open(&netns.netns, Some(&sysfs)).unwrap();
    reader.state_of(index_of(netns, "one")).unwrap().unwrap().1
}

/// Writes to a sysfs file of `one`. Only the machine's root may do so; returns whether it could.
fn write_file(netns: &TestNetns, file: &str, value: u32) -> bool {
    let command = format!("echo {value} > /sys/class/net/one/{file}");
    let script = format!("mount -t sysfs sysfs /sys && {command}");
    let words = ["unshare", "--mount", "sh", "-c", &script];
    let mut process = std::process::Command::new(words[0]);
    process.args(&words[1..]);
    netns.netns.run(|| process.output().unwrap()).unwrap().status.success()
}

fn move_to(from: &TestNetns, name: &str, to: &Netns, new_name: &str) {
    let change = LinkChange::new().netns(to).name(new_name);
    from.rtnl().change_link(index_of(from, name), &change).unwrap();
}

#[test]
fn returned_link_equals_its_baseline() {
    let (here, there) = with_pair();
    let before = state(&here);
    let pod = TestNetns::new();
    move_to(&here, "one", &pod.netns, "eth0");
    there.run("ip link set two up");
    pod.run("ip addr add 192.0.2.1/24 dev eth0");
    pod.run("ip link set eth0 up");
    pod.run("tc qdisc add dev eth0 root pfifo");
    pod.run("ip link set eth0 down");
    move_to(&pod, "eth0", &here.netns, "one");
    let after = state(&here);
    assert_eq!(after.differences_from(&before), [""; 0]);
    assert_eq!(after, before);
}

#[test]
fn every_changed_setting_is_reported() {
    let (here, _there) = &with_pair();
    let before = state(here);
    let reported = |reported: &str, change: &dyn Fn()| {
        let earlier = state(here);
        change();
        let differences = state(here).differences_from(&earlier);
        assert!(differences.iter().any(|one| one == reported), "{differences:#?}");
    };
    let run = |command: &'static str| move || drop(here.run(command));
    reported("its ARP is off instead of on", &run("ip link set one arp off"));
    reported("its multicast is off instead of on", &run("ip link set one multicast off"));
    reported(
        "its loss of addresses when down is on instead of off",
        &run("ip link set one dynamic on"),
    );
    reported(
        "its broadcast address is ff:ff:ff:ff:ff:fe instead of ff:ff:ff:ff:ff:ff",
        &run("ip link set one broadcast ff:ff:ff:ff:ff:fe"),
    );
    reported(
        "its largest GSO size is 1000 instead of 65536",
        &run("ip link set one gso_max_size 1000"),
    );
    reported(
        "its largest GRO size is 2000 instead of 65536",
        &run("ip link set one gro_max_size 2000"),
    );
    reported("its alias is hello instead of none", &run("ip link set one alias hello"));
    reported(
        "its feature tx-checksum-ip-generic is off instead of on",
        &run("ethtool -K one tx-checksum-ip-generic off"),
    );
    reported("its channels for sending is 2 instead of 1", &run("ethtool -L one tx 2"));
    if write_file(here, "gro_flush_timeout", 7000) {
        let file = |file: &'static str| move || assert!(write_file(here, file, 1));
        reported("its rps_cpus of rx-0 is 1 instead of 0", &file("queues/rx-0/rps_cpus"));
        reported("its gro_flush_timeout is 1 instead of 7000", &file("gro_flush_timeout"));
    }
    assert!(state(here).differences_from(&before).len() >= 8);
}

/// A namespace has IDs of its own for other namespaces.
#[test]
fn namespace_id_exists_only_if_referenced() {
    let (here, there) = with_pair();
    assert!(!there.rtnl().links().unwrap().is_empty());
    assert!(there.rtnl().number_of(&here.netns).unwrap().is_some());
    assert_eq!(TestNetns::new().rtnl().number_of(&here.netns).unwrap(), None);
    let third = TestNetns::new();
    here.run("ip link add stacked link one type macvlan mode passthru");
    move_to(&here, "stacked", &third.netns, "stacked");
    let mut rtnl = third.rtnl();
    let stacked = rtnl.link_by_name("stacked").unwrap().unwrap();
    assert_eq!(stacked.peer, Some(index_of(&here, "one")));
    assert_eq!(stacked.peer_netns, rtnl.number_of(&here.netns).unwrap());
}
