//! Counters of links, compared with `ip` and `tc`.

use netlink::{Drops, Guard, Limit, LinkStatistics, Offload, Request, Traffic, VethEnd};
use test_clock::wait_until;

use crate::support::TestNetns;

#[test]
fn link_counters_and_drops_are_listed() {
    let (here, there) = (TestNetns::new(), TestNetns::new());
    let mut rtnl = here.rtnl();
    let far = VethEnd::new("far").netns(&there.netns);
    rtnl.change(Request::add_veth(&VethEnd::new("near"), &far)).unwrap();
    for (netns, link, address) in [(&here, "near", "192.0.2.1/24"), (&there, "far", "192.0.2.2/24")]
    {
        netns.run(&format!("ip link set {link} up"));
        netns.run(&format!("ip addr add {address} dev {link}"));
    }
    let index = rtnl.link_by_name("near").unwrap().unwrap().index;
    assert_eq!(rtnl.traffic_control().drops().unwrap().get(&index), None);
    wait_until("the link carries", || rtnl.link_by_name("near").unwrap().unwrap().is_running);
    here.run("ping -q -c 3 -i 0.01 -s 1000 192.0.2.2");
    let reported = |link: &str| {
        let reported = here.json(&format!("ip -s -j link show dev {link}"))[0]["stats64"].clone();
        let traffic = |way: &str| Traffic {
            packets: reported[way]["packets"].as_u64().unwrap(),
            bytes: reported[way]["bytes"].as_u64().unwrap(),
        };
        LinkStatistics { received: traffic("rx"), sent: traffic("tx") }
    };
    wait_until("ip tells the same", || rtnl.link_statistics().unwrap()[&index] == reported("near"));
    let lo = rtnl.link_by_name("lo").unwrap().unwrap().index;
    assert_eq!(rtnl.link_statistics().unwrap()[&lo], LinkStatistics::default());

    // A filter that drops nearly everything, and a limit that no large packet passes.
    let no_senders = netlink::Senders::MacAddresses([].into());
    let mut traffic_control = rtnl.traffic_control();
    let guard = Guard { trunk: [].into(), senders: no_senders };
    traffic_control.set_guard(index, &guard, false).unwrap();
    let limit = Limit { rate_bits: 80_000, burst_bits: 24_000, queue_bits: 24_000 };
    traffic_control.set_queue_limit(index, Some(limit)).unwrap();
    there.netns.run(|| flood("192.0.2.1")).unwrap();
    here.netns.run(|| flood("192.0.2.2")).unwrap();
    wait_until("both have dropped, and tc tells the same", || {
        let queues = here.json("tc -s -j qdisc show dev near");
        let dropped = |kind: &str| {
            let queue = queues.as_array().unwrap().iter().find(|queue| queue["kind"] == kind);
            queue.unwrap()["drops"].as_u64().unwrap()
        };
        let reported = Drops { by_limit: dropped("tbf"), by_filters: dropped("clsact") };
        let drops = rtnl.traffic_control().drops().unwrap()[&index];
        drops == reported && drops.by_limit > 0 && drops.by_filters > 0
    });
    assert_eq!(rtnl.traffic_control().offload(index).unwrap(), Offload::default());
    here.run("ip link delete near");
    assert_eq!(rtnl.traffic_control().offload(index).unwrap(), Offload::default());
}

/// Sends packets that no host answers.
fn flood(address: &str) {
    let mut ping = std::process::Command::new("ping");
    ping.args(["-q", "-c", "20", "-i", "0.002", "-s", "1000", "-W", "1", address]);
    ping.output().unwrap();
}
