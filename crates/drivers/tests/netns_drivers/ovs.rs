//! A bridge of Open vSwitch, its uplinks and its ports, checked with `ovs-vsctl` and `ovs-ofctl`.

use std::{collections::BTreeSet, time::Duration};

use bootstrap::Chain;
use drivers::{
    driver::{Fault, Refused},
    fabric::{EgressLimit, Membership},
};
use model::{Bandwidth, PortSettings};
use netlink::{Request, VethEnd};
use test_clock::{DEFAULT_TIMEOUT, Stopwatch, wait_for, wait_until};

use crate::{
    support::TestNetns,
    veth_dpu::{BRIDGE, Capture, Dpu, On, OpenVswitch, Pod, at_once, mark},
};

/// A DPU on Open vSwitch with that many programmed pods.
pub(crate) fn with_pods(count: u16) -> (Dpu, Vec<Pod>) {
    let dpu = Dpu::on(On::OpenVswitch, &[]);
    dpu.prepare().unwrap();
    let pods: Vec<_> = (0..count).map(|number| dpu.plug(number)).collect();
    pods.iter().for_each(|pod| dpu.program(pod));
    (dpu, pods)
}

fn is_member(dpu: &Dpu, pod: &Pod) -> bool {
    let port = dpu.representor(pod);
    let found = dpu.fabric.member(&port).unwrap();
    let of_all = dpu.fabric.members().unwrap().remove(&port.index);
    assert_eq!(found, of_all);
    found == Some(Membership::of(&pod.settings))
}

pub(crate) fn is_guarded(dpu: &Dpu, pod: &Pod) -> bool {
    dpu.fabric.guard(&dpu.representor(pod), &pod.settings).unwrap().in_place
}

/// The flows of the service.
pub(crate) fn own_flows(dpu: &mut Dpu) -> BTreeSet<String> {
    let shown = dpu.vswitch().flows(BRIDGE);
    shown.lines().filter(|line| line.contains("cookie=0xff10ad0")).map(str::to_owned).collect()
}

#[test]
fn guarded_pods_reach_each_other() {
    let (mut dpu, pods) = with_pods(2);
    pods[0].reaches("10.9.0.2");
    pods[0].reaches("fd09::2");
    assert!(pods.iter().all(|pod| is_member(&dpu, pod) && is_guarded(&dpu, pod)));
    let port = dpu.vswitch().vsctl("--bare --columns=external_ids list port pf0vf0");
    assert_eq!(port.trim(), "owner=dpu-offload purpose=pf0vf0");
    let bridge = dpu.vswitch().vsctl(&format!("get bridge {BRIDGE} fail_mode"));
    assert_eq!(bridge.trim(), "secure");
    let datapaths = dpu.vswitch().appctl(&["dpif/show"]);
    assert!(datapaths.starts_with(&format!("{}@", OpenVswitch::datapath())), "{datapaths}");

    let forwards = |dpu: &Dpu, pod: &Pod| dpu.fabric.forwards(dpu.representor(pod).index).unwrap();
    wait_until("the port forwards", || forwards(&dpu, &pods[0]));
    pods[1].netns.run("ip link set eth0 down");
    wait_until("nothing passes without a carrier", || !forwards(&dpu, &pods[1]));
    pods[1].netns.run("ip link set eth0 up");

    // A joined port without a guard sends nothing.
    let late = dpu.plug(2);
    let port = dpu.representor(&late);
    dpu.fabric.join(&port, &late.settings).unwrap();
    dpu.netns.run("ip link set pf0vf2 up");
    assert!(!late.pings("10.9.0.1"));
    dpu.program(&late);
    late.reaches("10.9.0.1");
}

#[test]
fn vlans_and_trunks_are_kept_apart() {
    let (dpu, mut pods) = with_pods(4);
    for (pod, vlan) in pods.iter_mut().zip([Some(100), Some(100), Some(200), None]) {
        pod.settings.vlan = vlan;
        dpu.program(pod);
    }
    dpu.forget_decisions();
    pods[0].reaches("10.9.0.2");
    assert!(!pods[0].pings("10.9.0.3"));
    assert!(!pods[0].pings("10.9.0.4"));
    assert!(pods.iter().all(|pod| is_member(&dpu, pod)));

    pods[2].settings.trunk = [100].into();
    dpu.program(&pods[2]);
    assert!(is_member(&dpu, &pods[2]));
    dpu.forget_decisions();
    let capture = Capture::of(&pods[0].netns);
    for (number, tags) in [&[[0x81, 0, 0, 200]][..], &[], &[[0x81, 0, 0, 100]]].iter().enumerate() {
        pods[2].sends([0xff; 6], tags, mark(number));
    }
    assert_eq!(capture.marks_until(mark(2)), [mark(2)], "that of the trunk, and no other");
}

#[test]
fn uplink_carries_all_vlans_and_can_be_replaced() {
    let outside = TestNetns::new();
    let mut dpu = Dpu::on(On::OpenVswitch, &["p0"]);
    let refused = dpu.prepare().unwrap_err();
    let reported = refused.to_string();
    assert!(reported.contains("no uplink p0 for bridge br-offload"), "{reported}");
    assert!(refused.is_partial(), "pods reach each other without");
    for _ in 0..2 {
        let wire = VethEnd::new("wire").netns(&outside.netns);
        dpu.netns.rtnl().change(Request::add_veth(&VethEnd::new("p0"), &wire)).unwrap();
        outside.run("ip link set wire up");
        outside.run("ip addr add 10.9.0.99/24 dev wire");
        dpu.prepare().unwrap();
        assert_eq!(dpu.fabric.uplink_mtu(None), Some(1500));
        assert_eq!(dpu.fabric.own_macs().len(), 2);
        let mut pod = dpu.plug(0);
        dpu.program(&pod);
        pod.reaches("10.9.0.99");
        pod.settings.vlan = Some(100);
        dpu.program(&pod);
        let capture = Capture::of(&outside);
        pod.sends([0xff; 6], &[], mark(0));
        assert_eq!(capture.marks_until(mark(0)), [mark(0)]);
        drop(pod);
        dpu.netns.run("ip link delete p0");
        wait_until("the pod's link is gone", || !dpu.netns.link_names().contains(&"pf0vf0".into()));
    }
    let ports = dpu.vswitch().vsctl(&format!("list-ports {BRIDGE}"));
    assert_eq!(ports.lines().collect::<Vec<_>>(), ["p0", "pf0vf0"]);
}

#[test]
fn flows_return_after_the_daemon_ends() {
    let (mut dpu, pods) = with_pods(2);
    let mut changes = dpu.fabric.changes().pop().unwrap();
    wait_until("both connections are watched", || *changes.borrow() >= 2);
    let flows = own_flows(&mut dpu);
    changes.mark_unchanged();
    dpu.vswitch().kill_daemon();
    let port = dpu.representor(&pods[0]);
    let refused = dpu.fabric.guard(&port, &pods[0].settings).unwrap_err();
    assert!(Chain(&refused).to_string().contains("does ovs-vswitchd run?"), "{refused}");
    assert_eq!(refused.fault(), Fault::FabricAway);
    wait_until("the report of its end", || changes.has_changed().unwrap());
    assert_eq!(dpu.prepare().unwrap_err().fault(), Fault::FabricAway);
    changes.mark_unchanged();
    dpu.vswitch().start_daemon();
    wait_until("its return is reported", || changes.has_changed().unwrap());
    dpu.prepare().unwrap();
    assert!(pods.iter().all(|pod| is_member(&dpu, pod) && !is_guarded(&dpu, pod)));
    assert!(!pods[0].pings("10.9.0.2"), "what is not guarded sends nothing");
    pods.iter().for_each(|pod| dpu.program(pod));
    assert!(own_flows(&mut dpu) == flows, "ports keep their numbers");
    pods[0].reaches("10.9.0.2");
}

#[test]
fn database_connection_is_restored() {
    let (mut dpu, pods) = with_pods(2);
    pods[0].reaches("10.9.0.2");
    dpu.vswitch().kill_database();
    let port = dpu.representor(&pods[0]);
    // Until the fabric has seen the connection's end, no change is needed for a joined port.
    let refused = wait_for("the database's end", DEFAULT_TIMEOUT, || {
        dpu.fabric.join(&port, &pods[0].settings).err()
    });
    let reported = Chain(&refused).to_string();
    assert!(reported.contains("Open vSwitch's database"), "{reported}");
    assert_eq!(refused.fault(), Fault::FabricAway);
    assert!(dpu.fabric.members().is_err());
    dpu.vswitch().start_database();
    assert!(pods.iter().all(|pod| is_member(&dpu, pod) && is_guarded(&dpu, pod)));
    let third = dpu.plug(2);
    dpu.program(&third);
    third.reaches("10.9.0.1");
}

#[test]
fn suspended_daemon_is_reported_as_fabric_fault() {
    let (mut dpu, pods) = with_pods(1);
    let pod = dpu.plug(1);
    dpu.vswitch().signal_daemon("STOP");
    let port = dpu.representor(&pod);
    let refused = dpu.fabric.join(&port, &pod.settings).unwrap_err();
    assert!(refused.to_string().contains("ovs-vswitchd"), "{refused}");
    assert_eq!(refused.fault(), Fault::FabricAway);
    let guarded = dpu.representor(&pods[0]);
    assert!(dpu.fabric.guard(&guarded, &pods[0].settings).is_err());

    // The next calls do not wait as long as the first one, which would be eight seconds each time.
    let begun = Stopwatch::start();
    for _ in 0..10 {
        assert!(dpu.fabric.guard(&guarded, &pods[0].settings).is_err());
        assert!(dpu.fabric.leave(&port).is_err());
    }
    assert!(begun.unstalled() < Duration::from_secs(8), "{:?}", begun.unstalled());
    dpu.vswitch().signal_daemon("CONT");
    // Until the daemon has caught up, each call waits 50 ms for it. A slow machine exceeds that.
    wait_until("the daemon carries out changes again", || {
        dpu.fabric.join(&port, &pod.settings).is_ok()
            && dpu.fabric.guard(&guarded, &pods[0].settings).is_ok()
    });
    dpu.program(&pod);
    pod.reaches("10.9.0.1");
    assert!(is_member(&dpu, &pods[0]));
}

/// No call asks either daemon.
#[test]
fn daemons_that_stand_still_are_reported() {
    let (mut dpu, _pods) = with_pods(1);
    let mut changes = dpu.fabric.changes().pop().unwrap();
    wait_until("both connections are watched", || *changes.borrow() >= 2);
    for signal in [OpenVswitch::signal_daemon, OpenVswitch::signal_database] {
        signal(dpu.vswitch(), "STOP");
        let begun = Stopwatch::start();
        // Earlier changes may be reported as well.
        wait_until("the report", || {
            let is_reported = changes.has_changed().unwrap();
            changes.mark_unchanged();
            let is_away = |refused: Refused| refused.fault() == Fault::FabricAway;
            is_reported && dpu.prepare().is_err_and(is_away)
        });
        assert!(begun.unstalled() < Duration::from_secs(9), "{:?}", begun.unstalled());
        signal(dpu.vswitch(), "CONT");
        wait_until("the report that it goes on", || changes.has_changed().unwrap());
        wait_until("the fabric is complete", || dpu.prepare().is_ok());
    }
}

/// A call finds that the daemon is suspended, before the watch has asked.
#[test]
fn return_of_a_daemon_is_reported_early() {
    let (mut dpu, _pods) = with_pods(1);
    let mut changes = dpu.fabric.changes().pop().unwrap();
    wait_until("both connections are watched", || *changes.borrow() >= 2);
    // A daemon that has just answered is often asked again only after the call has ended.
    dpu.vswitch().signal_daemon("STOP");
    assert!(dpu.prepare().is_err());
    changes.mark_unchanged();
    dpu.vswitch().signal_daemon("CONT");
    wait_until("the report that it goes on", || changes.has_changed().unwrap());
}

/// The daemon's listen queue holds 64 connections that it has not accepted.
#[test]
fn calls_end_though_the_daemons_queue_is_full() {
    let (mut dpu, pods) = with_pods(1);
    dpu.vswitch().signal_daemon("STOP");
    let port = dpu.representor(&pods[0]);
    for _ in 0..80 {
        assert!(dpu.fabric.guard(&port, &pods[0].settings).is_err());
    }
    dpu.vswitch().signal_daemon("CONT");
    wait_until("the daemon answers", || dpu.fabric.guard(&port, &pods[0].settings).is_ok());
}

#[test]
fn ports_that_others_hold_back_are_opened() {
    let (mut dpu, pods) = with_pods(2);
    pods[0].reaches("10.9.0.2");
    for setting in ["no-receive", "no-forward", "no-flood"] {
        let command = ["-O", "OpenFlow10", "mod-port"];
        dpu.vswitch().ofctl(&command, BRIDGE, &["pf0vf1", setting]);
        dpu.forget_decisions();
        for pod in &pods {
            pod.netns.run("ip neigh flush dev eth0");
        }
        assert!(!pods[0].pings("10.9.0.2"), "{setting}");
        dpu.prepare().unwrap();
        let repairs = dpu.fabric.take_repairs().concat();
        assert!(repairs.contains("pf0vf1") && repairs.contains(setting), "{repairs}");
        let shown = dpu.vswitch().ofctl(&["-O", "OpenFlow10", "show"], BRIDGE, &[]);
        assert!(!shown.contains("NO_"), "{shown}");
        dpu.forget_decisions();
        pods[0].reaches("10.9.0.2");
    }
    dpu.prepare().unwrap();
    assert_eq!(dpu.fabric.take_repairs(), [""; 0]);
}

#[test]
fn ports_take_no_part_in_spanning_trees() {
    let (mut dpu, pods) = with_pods(2);
    for (tree, key) in [("stp", "stp-enable"), ("rstp", "rstp-enable")] {
        dpu.vswitch().vsctl(&format!("set bridge {BRIDGE} {tree}_enable=true"));
        pods[0].reaches("10.9.0.2");
        dpu.vswitch().vsctl("set port pf0vf0 other_config:priority-tags=never");
        dpu.vswitch().vsctl(&format!("remove port pf0vf0 other_config {key}"));
        let port = dpu.representor(&pods[0]);
        let held_back_by = |dpu: &Dpu| dpu.fabric.member(&port).unwrap().unwrap().held_back_by;
        let name = tree.to_uppercase();
        wait_until("it is found", || Vec::from_iter(held_back_by(&dpu)) == [name.as_str()]);
        dpu.program(&pods[0]);
        assert!(is_member(&dpu, &pods[0]), "{tree}");
        let options = dpu.vswitch().vsctl("get port pf0vf0 other_config");
        for option in [format!("{key}=\"false\""), "priority-tags=never".into()] {
            assert!(options.contains(&option), "{options}");
        }
        pods[0].reaches("10.9.0.2");
        dpu.vswitch().vsctl(&format!("set bridge {BRIDGE} {tree}_enable=false"));
    }
}

#[test]
fn replaced_representor_joins_again() {
    let (mut dpu, pods) = with_pods(2);
    dpu.netns.run("ip link delete pf0vf0");
    dpu.plug_into(&pods[0]);
    assert!(!is_member(&dpu, &pods[0]));
    let flows = own_flows(&mut dpu);
    dpu.program(&pods[0]);
    assert!(is_member(&dpu, &pods[0]) && is_guarded(&dpu, &pods[0]));
    pods[0].reaches("10.9.0.2");
    assert!(own_flows(&mut dpu) == flows, "under the number that it had");
}

#[test]
fn foreign_changes_are_detected_and_repaired() {
    let (mut dpu, pods) = with_pods(2);
    let mut changes = dpu.fabric.changes().pop().unwrap();
    wait_until("both connections are watched", || *changes.borrow() >= 2);
    for damage in ["del-port pf0vf0", "set port pf0vf0 tag=7", "set port pf0vf0 vlan_mode=trunk"] {
        changes.mark_unchanged();
        dpu.vswitch().vsctl(damage);
        wait_until(damage, || changes.has_changed().unwrap());
        assert!(!is_member(&dpu, &pods[0]), "{damage}");
        dpu.program(&pods[0]);
        assert!(is_member(&dpu, &pods[0]) && is_guarded(&dpu, &pods[0]), "{damage}");
        pods[0].reaches("10.9.0.2");
    }
    let drop_all = "priority=1,in_port=1000,actions=drop";
    for damage in
        [("add-flow", drop_all), ("del-flows", "in_port=1000"), ("del-flows", "table=241")]
    {
        dpu.vswitch().ofctl(&[damage.0], BRIDGE, &[damage.1]);
        let is_harmless = damage.1 == drop_all;
        assert_eq!(is_guarded(&dpu, &pods[0]), is_harmless, "{damage:?}");
        dpu.program(&pods[0]);
        assert!(is_guarded(&dpu, &pods[0]), "{damage:?}");
    }
    assert!(!is_guarded(&dpu, &pods[1]), "that was of all ports");
    dpu.program(&pods[1]);
    pods[0].reaches("10.9.0.2");
}

#[test]
fn changed_vlan_limit_prevents_guards() {
    let (mut dpu, pods) = with_pods(1);
    for limit in ["0", "2"] {
        dpu.vswitch().vsctl(&format!("set Open_vSwitch . other_config:vlan-limit={limit}"));
        let expected = format!("flows of pf0vf0: with vlan-limit {limit}, ");
        wait_until("it is missed", || {
            let refused = dpu.fabric.set_guard(&dpu.representor(&pods[0]), &pods[0].settings);
            refused.is_err_and(|refused| Chain(&refused).to_string().contains(&expected))
        });
        assert!(!is_guarded(&dpu, &pods[0]));
    }
    dpu.vswitch().vsctl("remove Open_vSwitch . other_config vlan-limit");
    wait_until("it is noticed", || is_guarded(&dpu, &pods[0]));
}

#[test]
fn foreign_ports_stay_and_are_reported() {
    let (mut dpu, _pods) = with_pods(1);
    let pod = dpu.plug(1);
    dpu.vswitch().vsctl(&format!("add-port {BRIDGE} pf0vf1"));
    let port = dpu.representor(&pod);
    let refused = dpu.fabric.join(&port, &pod.settings).unwrap_err().to_string();
    assert!(refused.contains("another program's") && refused.contains("br-offload"), "{refused}");
    dpu.fabric.leave(&port).unwrap();
    assert!(dpu.vswitch().vsctl(&format!("list-ports {BRIDGE}")).contains("pf0vf1"));
    dpu.vswitch().vsctl("del-port pf0vf1");

    dpu.netns.run("ip link add br0 type bridge");
    dpu.netns.run("ip link set pf0vf1 master br0");
    let port = dpu.representor(&pod);
    let named = ["representor pf0vf1", "br0", "`ip link set pf0vf1 nomaster`"];
    // The fabric may learn a moment later that the port is no longer another program's.
    wait_until("the master is named", || {
        let refused = dpu.fabric.join(&port, &pod.settings).unwrap_err().to_string();
        named.iter().all(|named| refused.contains(named))
    });
}

#[test]
fn foreign_ovs_bridge_is_used_unchanged() {
    let mut dpu = Dpu::on(On::OpenVswitch, &[]);
    dpu.netns.run("ip link add pf0hpf type veth peer name host");
    let vswitch = dpu.vswitch();
    let datapath = OpenVswitch::datapath();
    vswitch.vsctl(&format!("add-br {BRIDGE} -- set bridge {BRIDGE} datapath_type={datapath}"));
    vswitch.vsctl(&format!("add-port {BRIDGE} pf0hpf"));
    let drop_all = "table=0,priority=40000,in_port=LOCAL,actions=drop";
    vswitch.ofctl(&["add-flow"], BRIDGE, &[drop_all]);
    let before = vswitch.vsctl(&format!("list bridge {BRIDGE}"));
    dpu.prepare().unwrap();
    let fragments = dpu.vswitch().ofctl(&["get-frags"], BRIDGE, &[]);
    assert!(fragments.contains("nx-match"), "{fragments}");
    let pods = [dpu.plug(0), dpu.plug(1)];
    pods.iter().for_each(|pod| dpu.program(pod));
    pods[0].reaches("10.9.0.2");
    let thief =
        PortSettings { mac: "02:00:00:00:01:77".parse().unwrap(), ..pods[0].settings.clone() };
    dpu.fabric.set_guard(&dpu.representor(&pods[0]), &thief).unwrap();
    dpu.forget_decisions();
    assert!(!pods[0].pings("10.9.0.2"), "the guard comes before the bridge's own flows");
    for pod in &pods {
        dpu.fabric.leave(&dpu.representor(pod)).unwrap();
    }
    dpu.prepare().unwrap();
    // The common flows are in tables that no frame reaches without flows of ports.
    for flow in own_flows(&mut dpu) {
        let table = flow.split("table=").nth(1).and_then(|rest| rest.split(',').next());
        let table: u8 = table.unwrap().parse().unwrap();
        assert!(flow.contains("cookie=0xff10ad000000000,") && table >= 240, "{flow}");
    }
    assert_eq!(dpu.vswitch().vsctl(&format!("list bridge {BRIDGE}")), before);
    assert!(dpu.vswitch().flows(BRIDGE).contains("priority=40000,in_port=LOCAL actions=drop"));
}

#[test]
fn foreign_flows_before_guards_are_reported() {
    let (mut dpu, _pods) = with_pods(1);
    assert_eq!(dpu.fabric.problems(), [""; 0]);
    for (priority, is_reported) in [(64_998, false), (65_535, true)] {
        let flow = format!("cookie=0x77,table=0,priority={priority},in_port=1000,actions=NORMAL");
        dpu.vswitch().ofctl(&["add-flow"], BRIDGE, &[&flow]);
        dpu.prepare().unwrap();
        let reported = dpu.fabric.problems().concat();
        assert_eq!(
            reported.contains("0x77") && reported.contains("64999"),
            is_reported,
            "{reported}"
        );
    }
    assert!(dpu.vswitch().flows(BRIDGE).contains("priority=65535,in_port=1000 actions=NORMAL"));
    dpu.vswitch().ofctl(&["del-flows"], BRIDGE, &["cookie=0x77/-1"]);
    dpu.prepare().unwrap();
    assert_eq!(dpu.fabric.problems(), [""; 0]);
}

#[test]
fn own_bridge_forwards_only_by_flows() {
    let (mut dpu, _pods) = with_pods(1);
    dpu.vswitch().vsctl(&format!("set bridge {BRIDGE} fail_mode=standalone"));
    // The database reports the change to the fabric with a delay.
    wait_until("the bridge is secure again", || {
        dpu.prepare().unwrap();
        dpu.vswitch().vsctl(&format!("get bridge {BRIDGE} fail_mode")).trim() == "secure"
    });
}

#[test]
fn left_port_is_down_and_renumbering_detected() {
    let (mut dpu, pods) = with_pods(1);
    let mut changes = dpu.fabric.changes().pop().unwrap();
    wait_until("both connections are watched", || *changes.borrow() >= 2);
    changes.mark_unchanged();
    dpu.vswitch().vsctl("set interface pf0vf0 ofport_request=77");
    wait_until("it is noticed", || changes.has_changed().unwrap());
    dpu.program(&pods[0]);
    assert!(is_guarded(&dpu, &pods[0]));
    let port = dpu.representor(&pods[0]);
    // The order of the steps: the link goes down first, and the daemon notices with a delay.
    dpu.netns.run("ip link set pf0vf0 down");
    dpu.fabric.leave(&port).unwrap();
    let flags = dpu.netns.link("pf0vf0")["flags"].clone();
    assert!(!flags.as_array().unwrap().contains(&"UP".into()), "{flags}");
}

#[test]
fn unmarked_port_stays_guarded() {
    let (mut dpu, pods) = with_pods(2);
    dpu.vswitch().vsctl("clear port pf0vf0 external_ids");
    let before = own_flows(&mut dpu);
    dpu.prepare().unwrap();
    assert_eq!(own_flows(&mut dpu), before);
    pods[0].reaches("10.9.0.2");
    let refused = dpu.fabric.join(&dpu.representor(&pods[0]), &pods[0].settings).unwrap_err();
    assert!(refused.to_string().contains("another program's"), "{refused}");
}

#[test]
fn concurrent_ports_leave_nothing_behind() {
    let (mut dpu, _) = with_pods(0);
    let pods: Vec<_> = (0..8).map(|number| dpu.plug(number)).collect();
    let empty = own_flows(&mut dpu);
    for _ in 0..3 {
        at_once(&pods, |pod| dpu.program(pod));
        assert!(pods.iter().all(|pod| is_member(&dpu, pod) && is_guarded(&dpu, pod)));
        assert_eq!(dpu.fabric.members().unwrap().len(), pods.len());
        at_once(&pods, |pod| {
            let port = dpu.representor(pod);
            dpu.fabric.leave(&port).unwrap();
            dpu.fabric.leave(&port).unwrap();
        });
        assert!(pods.iter().all(|pod| dpu.fabric.member(&dpu.representor(pod)).unwrap().is_none()));
        assert!(own_flows(&mut dpu) == empty);
    }
}

/// The state that a crash between the two halves of a leave leaves.
#[test]
fn flows_of_ports_that_have_left_are_deleted() {
    let (mut dpu, pods) = with_pods(2);
    let number = dpu.vswitch().vsctl("get interface pf0vf0 ofport");
    let count = |dpu: &mut Dpu| {
        let port = format!("in_port={}", number.trim());
        dpu.vswitch().flows(BRIDGE).lines().filter(|line| line.contains(&port)).count()
    };
    assert!(count(&mut dpu) > 10);
    dpu.vswitch().vsctl("del-port pf0vf0");
    dpu.prepare().unwrap();
    assert_eq!(count(&mut dpu), 0);
    assert!(is_guarded(&dpu, &pods[1]));
}

#[test]
fn unopened_link_is_reported_with_the_daemons_error() {
    let (mut dpu, _pods) = with_pods(1);
    let pod = dpu.plug(1);
    let port = dpu.representor(&pod);
    dpu.netns.run("ip link delete pf0vf1");
    let refused = dpu.fabric.join(&port, &pod.settings).unwrap_err().to_string();
    assert!(refused.contains("join pf0vf1 to bridge br-offload: "), "{refused}");
    assert!(refused.contains("No such device"), "{refused}");
    dpu.fabric.leave(&port).unwrap();
    assert!(!dpu.vswitch().vsctl(&format!("list-ports {BRIDGE}")).contains("pf0vf1"));
}

#[test]
fn leaving_port_spares_flows_of_joining_ones() {
    let (dpu, pods) = with_pods(8);
    at_once(&pods, |pod| {
        for _ in 0..30 {
            dpu.fabric.leave(&dpu.representor(pod)).unwrap();
            dpu.program(pod);
            assert!(is_guarded(&dpu, pod), "with whose number it has now");
        }
    });
}

/// The meters as `ovs-ofctl` lists them, and the flows that use one.
fn meters(dpu: &mut Dpu) -> (String, usize) {
    let shown = dpu.vswitch().ofctl(&["dump-meters"], BRIDGE, &[]);
    let meters = shown.lines().filter(|line| !line.contains("OFPST")).collect::<Vec<_>>().join(" ");
    (meters, dpu.vswitch().flows(BRIDGE).matches("actions=meter:").count())
}

#[test]
fn meter_follows_port_and_daemon() {
    let (mut dpu, pods) = with_pods(2);
    let bandwidth = Bandwidth { egress_rate: 10_485_760, ..Bandwidth::default() };
    let limit = EgressLimit::of(&bandwidth).unwrap();
    let port = dpu.representor(&pods[0]);
    let set = |dpu: &Dpu| dpu.fabric.set_egress_limit(&port, &limit).unwrap();
    let is_in_place = |dpu: &Dpu| dpu.fabric.egress_limit(&port, Some(&limit)).unwrap().in_place;
    set(&dpu);
    let (shown, flows) = meters(&mut dpu);
    let number = dpu.vswitch().vsctl("get interface pf0vf0 ofport").trim().to_owned();
    assert!(shown.contains(&format!("meter={number} kbps burst")), "{shown}");
    assert!(shown.contains("type=drop rate=10485 burst_size=1048"), "{shown}");
    assert_eq!(flows, 1);
    assert!(is_guarded(&dpu, &pods[0]) && is_in_place(&dpu));

    dpu.vswitch().kill_daemon();
    dpu.vswitch().start_daemon();
    wait_until("the daemon is back", || dpu.prepare().is_ok());
    assert_eq!(meters(&mut dpu), (String::new(), 0));
    assert!(!is_in_place(&dpu));
    pods.iter().for_each(|pod| dpu.program(pod));
    set(&dpu);
    assert_eq!(meters(&mut dpu), (shown, 1));
    assert!(is_in_place(&dpu));
    pods[0].reaches("10.9.0.2");

    let meddled = format!("meter={number},kbps,burst,band=type=drop,rate=9,burst_size=9");
    dpu.vswitch().ofctl(&["mod-meter"], BRIDGE, &[&meddled]);
    assert!(!is_in_place(&dpu));
    set(&dpu);
    assert!(is_in_place(&dpu));
    dpu.vswitch().ofctl(&["del-meters"], BRIDGE, &[]);
    assert!(!is_in_place(&dpu));
    assert!(is_guarded(&dpu, &pods[0]));
    set(&dpu);

    dpu.fabric.leave(&port).unwrap();
    assert_eq!(meters(&mut dpu), (String::new(), 0));
    dpu.program(&pods[0]);
    set(&dpu);
    // The state that a crash between the two halves of a leave leaves.
    dpu.vswitch().vsctl("del-port pf0vf0");
    dpu.prepare().unwrap();
    assert_eq!(meters(&mut dpu), (String::new(), 0));
}
