//! Ports' traffic and drops, compared with the counters of `ip`, `tc` and `ovs-ofctl`.

use std::process::Command;

use drivers::{
    counters::Offloaded,
    eswitch::{Carried, Eswitch},
};
use model::Bandwidth;
use netlink::Traffic;
use serde_json::Value;
use test_clock::wait_until;

use crate::{
    support::TestNetns,
    veth_dpu::{BRIDGE, Dpu, On, Pod, mark},
};

/// Two pods that reach each other.
pub(crate) fn with_two_pods(on: On) -> (Dpu, [Pod; 2]) {
    let dpu = Dpu::on(on, &[]);
    dpu.prepare().unwrap();
    let pods = [dpu.plug(0), dpu.plug(1)];
    pods.iter().for_each(|pod| dpu.program(pod));
    pods[0].reaches("10.9.0.2");
    (dpu, pods)
}

fn carried(dpu: &Dpu, pod: &Pod) -> Carried {
    dpu.eswitch.carried().unwrap()[&dpu.representor(pod).index]
}

fn guard_drops(dpu: &Dpu, pod: &Pod) -> u64 {
    dpu.fabric.drops().unwrap()[&dpu.representor(pod).index].guard
}

/// The traffic that a link has sent (`tx`) or received (`rx`), by `ip`.
fn counted_by_ip(netns: &TestNetns, link: &str, way: &str) -> Traffic {
    let reported = netns.json(&format!("ip -s -j link show dev {link}"))[0]["stats64"][way].clone();
    let number = |key: &str| reported[key].as_u64().unwrap();
    Traffic { packets: number("packets"), bytes: number("bytes") }
}

/// The drops of the queue of that kind, by `tc`.
fn dropped_by_queue(dpu: &Dpu, link: &str, kind: &str) -> u64 {
    let queues = dpu.netns.json(&format!("tc -s -j qdisc show dev {link}"));
    let is_it = |queue: &&Value| queue["kind"] == kind;
    queues.as_array().unwrap().iter().find(is_it).unwrap()["drops"].as_u64().unwrap()
}

/// The packets of the port's drop flow, by `ovs-ofctl`.
fn dropped_by_flow(dpu: &mut Dpu, link: &str) -> u64 {
    let number = dpu.vswitch().vsctl(&format!("get interface {link} ofport"));
    let of_port = format!("in_port={},table=249", number.trim());
    let flows = dpu.vswitch().ofctl(&["dump-flows"], BRIDGE, &[&of_port]);
    let counts: Vec<_> = flows.split("n_packets=").skip(1).collect();
    assert!(counts.len() == 1 && counts[0].contains("actions=drop"), "{flows}");
    counts[0].split(',').next().unwrap().parse().unwrap()
}

#[test]
fn traffic_is_counted_from_the_pods_side() {
    On::EVERY.into_iter().for_each(counts_from_the_pods_side);
}

fn counts_from_the_pods_side(on: On) {
    let (dpu, [one, two]) = with_two_pods(on);
    let before = carried(&dpu, &one);
    one.netns.run("ping -q -c 5 -i 0.01 -s 1000 10.9.0.2");
    // Only answers return; neighbour resolution may add packets.
    let after = carried(&dpu, &one);
    const WITH_HEADERS: u64 = 1000 + 8 + 20 + 14;
    for (before, after) in [(before.sent, after.sent), (before.received, after.received)] {
        assert!(after.packets >= before.packets + 5, "{before:?} {after:?}");
        assert!(after.bytes >= before.bytes + 5 * WITH_HEADERS, "{before:?} {after:?}");
    }
    for pod in [&one, &two] {
        let representor = dpu.representor(pod).name;
        wait_until("representor and pod count the same", || {
            let Carried { sent, received, .. } = carried(&dpu, pod);
            sent == counted_by_ip(&pod.netns, "eth0", "tx")
                && sent == counted_by_ip(&dpu.netns, &representor, "rx")
                && received == counted_by_ip(&pod.netns, "eth0", "rx")
                && received == counted_by_ip(&dpu.netns, &representor, "tx")
        });
    }
}

/// More than the dropped packets that pods send unasked.
const SPOOFED: u64 = 50;

#[test]
fn guard_drops_are_counted_per_port() {
    On::EVERY.into_iter().for_each(counts_what_the_guard_drops);
}

fn counts_what_the_guard_drops(on: On) {
    let (mut dpu, [mut one, two]) = with_two_pods(on);
    let before = [&one, &two].map(|pod| guard_drops(&dpu, pod));
    let own = one.settings.mac;
    one.settings.mac = "02:00:00:00:01:99".parse().unwrap();
    (0..SPOOFED).for_each(|_| one.sends([0xff; 6], &[], mark(0)));
    one.settings.mac = own;
    wait_until("they are counted", || guard_drops(&dpu, &one) >= before[0] + SPOOFED);
    assert!(guard_drops(&dpu, &two) < before[1] + SPOOFED);
    wait_until("others count the same", || {
        let reported = match on {
            On::Bridge => dropped_by_queue(&dpu, "pf0vf0", "clsact"),
            On::OpenVswitch => dropped_by_flow(&mut dpu, "pf0vf0"),
        };
        guard_drops(&dpu, &one) == reported
    });
    // Programming again leaves the filters, and their counters, unchanged.
    let before = guard_drops(&dpu, &one);
    dpu.program(&one);
    assert!(guard_drops(&dpu, &one) >= before);
}

#[test]
fn what_a_limit_drops_is_counted_apart() {
    On::EVERY.into_iter().for_each(counts_what_a_limit_drops);
}

fn counts_what_a_limit_drops(on: On) {
    let (dpu, [one, mut two]) = with_two_pods(on);
    assert_eq!(carried(&dpu, &two).ingress_limit_drops, 0);
    two.settings.bandwidth = Bandwidth { ingress_rate: 64_000, ..Bandwidth::default() };
    dpu.program(&two);
    let mut flood = Command::new("ping");
    flood.args(["-q", "-f", "-c", "40", "-s", "1400", "-W", "1", "10.9.0.2"]);
    let _ = one.netns.netns.run(|| flood.output().unwrap()).unwrap();
    let drops = carried(&dpu, &two).ingress_limit_drops;
    assert!(drops > 0);
    wait_until("tc counts the same", || {
        carried(&dpu, &two).ingress_limit_drops == dropped_by_queue(&dpu, "pf0vf1", "tbf")
    });
    assert_eq!(carried(&dpu, &one).ingress_limit_drops, 0);
}

#[test]
fn meter_and_allow_drops_count_separately() {
    let (mut dpu, [mut one, two]) = with_two_pods(On::OpenVswitch);
    one.settings.ingress_rules = Some(Vec::new());
    one.settings.bandwidth = Bandwidth { egress_rate: 64_000, ..Bandwidth::default() };
    dpu.program(&one);
    dpu.forget_decisions();
    let drops = |dpu: &Dpu, pod: &Pod| dpu.fabric.drops().unwrap()[&dpu.representor(pod).index];
    let (before, of_two) = (drops(&dpu, &one), drops(&dpu, &two));
    assert_eq!((before.egress_limit, before.allow), (0, 0));
    assert!(!two.pings("10.9.0.1"));
    wait_until("a refused connection is counted", || drops(&dpu, &one).allow > 0);
    let mut flood = Command::new("ping");
    flood.args(["-q", "-f", "-c", "200", "-s", "1400", "-W", "1", "10.9.0.2"]);
    let _ = one.netns.netns.run(|| flood.output().unwrap()).unwrap();
    let meters = |dpu: &mut Dpu| dpu.vswitch().ofctl(&["meter-stats"], BRIDGE, &[]);
    wait_until("ovs-ofctl counts the same", || {
        let drops = drops(&dpu, &one).egress_limit;
        let band = format!("0: packet_count:{drops} ");
        drops > 0 && meters(&mut dpu).contains(&band)
    });
    let now = drops(&dpu, &two);
    assert_eq!((now.egress_limit, now.allow), (of_two.egress_limit, of_two.allow));
}

#[test]
fn a_card_of_software_does_nothing_by_itself() {
    for on in On::EVERY {
        let (dpu, [one, two]) = with_two_pods(on);
        let ports = [&one, &two].map(|pod| dpu.representor(pod).index);
        // The bridge's FDB entry of the pod counts as a rule.
        let rules = if on == On::Bridge { 1 } else { 0 };
        let expected = ports.map(|port| (port, Offloaded { rules, in_hardware: 0 }));
        assert_eq!(dpu.fabric.offloaded(&ports.into()).unwrap(), expected.into());
    }
}

#[test]
fn vanished_port_is_not_counted() {
    for on in On::EVERY {
        let (dpu, [one, two]) = with_two_pods(on);
        let [gone, there] = [&one, &two].map(|pod| dpu.representor(pod).index);
        dpu.netns.run("ip link delete pf0vf0");
        wait_until("its counters are gone", || {
            let (carried, drops) = (dpu.eswitch.carried().unwrap(), dpu.fabric.drops().unwrap());
            assert!(carried.contains_key(&there) && drops.contains_key(&there));
            !carried.contains_key(&gone) && !drops.contains_key(&gone)
        });
        let offloaded = dpu.fabric.offloaded(&[gone, there].into()).unwrap();
        assert_eq!(offloaded.get(&gone).copied().unwrap_or_default(), Offloaded::default());
    }
}
