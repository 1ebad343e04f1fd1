//! Programs that are down, killed and restarted; hosts and cards that are reset.

use std::{
    collections::BTreeMap,
    fs::{self, DirEntry, OpenOptions},
    io,
    time::Duration,
};

use e2e::{
    Call, Card, HostEnd, Lab, Netns, Settings, Stopwatch, Timeouts, has_answered,
    scenarios::outages::{self, Pair, ids},
    wait_for,
};
use mtls::Role;
use nix::sys::signal::Signal;
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(30);
/// Limit for failing fast: far below the timeouts of runtimes.
const FAST: Duration = Duration::from_secs(5);
const NEXT_BOOT: &str = "7d0c4ae0-0000-4000-8000-000000000002\n";
const HALF_A_PAGE: u64 = 2048;

#[test]
fn dpu_outage_fails_adds_and_defers_dels() {
    outages::dpu_outage_fails_adds_and_defers_dels(&Settings::default());
}

#[test]
fn killed_service_keeps_attachments_and_traffic() {
    outages::killed_service_keeps_attachments_and_traffic(&Settings::default());
}

#[test]
fn killed_agent_keeps_attachments() {
    outages::killed_agent_keeps_attachments(&Settings::default());
}

#[test]
fn dead_netns_releases_everything() {
    outages::dead_netns_releases_everything(&Settings::default());
}

#[test]
fn pods_get_vfs_back_after_card_reset() {
    outages::pods_get_vfs_back_after_card_reset(&Settings::default());
}

#[test]
fn calls_report_missing_agent() {
    let mut lab = Lab::start(&Settings::default());
    let pod = Netns::new("pod");
    let _ = lab.add("blue", &pod, "eth0").result();
    lab.agent.crash();
    lab.add("blue", &Netns::new("other"), "eth0").fails(11, &["agent.sock"]);
    lab.status().fails(50, &["agent.sock"]);
    lab.del("blue", &pod, "eth0").fails(11, &["agent.sock"]);
    lab.start_agent();
    lab.wait_until_good();
    lab.assert_invariants();
    lab.del("blue", &pod, "eth0").nothing();
    lab.assert_clean_slate();
}

#[test]
fn deferred_release_survives_agent_death() {
    let mut lab = Lab::start(&Settings::default());
    let pair = Pair::attach(&lab);
    lab.service.crash();
    lab.del("blue", &pair.a, "eth0").nothing();
    lab.agent.crash();
    lab.start_service();
    lab.start_agent();
    lab.wait_until_good();
    wait_for("the release to be delivered", LIMIT, || (ids(&lab).len() == 1).then_some(()));
    lab.assert_invariants();
}

#[test]
fn stopped_service_keeps_pings() {
    let mut lab = Lab::start(&Settings::default());
    let pair = Pair::attach(&lab);
    let status = lab.service.stop();
    assert!(status.success(), "{status}");
    pair.assert_reach();
    let status = lab.agent.stop();
    assert!(status.success(), "{status}");
    pair.assert_reach();
    lab.start_service();
    lab.start_agent();
    lab.wait_until_good();
    lab.assert_invariants();
    pair.detach(&lab);
}

/// Leaves the fabric as after a reboot of the DPU.
fn take_ports_out(lab: &Lab) {
    for link in lab.card.representors() {
        let name = link["ifname"].as_str().unwrap();
        let _ = match &lab.vswitch {
            None => lab.card.dpu.ip(&["link", "set", name, "nomaster", "down"]),
            Some(vswitch) => vswitch.vsctl(&format!("--if-exists del-port br-offload {name}")),
        };
    }
}

/// The DPU reboots: nothing is programmed, and its certificate or its clock is wrong.
#[test]
fn pods_are_programmed_before_certificates_are_valid() {
    let mut lab = Lab::start(&Settings::default());
    let pair = Pair::attach(&lab);
    let expire: fn(&Lab) = |lab| lab.pki.expire(Role::Dpu, "dpu-1");
    let postdate: fn(&Lab) = |lab| lab.pki.postdate(Role::Dpu, "dpu-1");
    for (what, invalidate) in [("expired on ", expire), ("is valid only from ", postdate)] {
        lab.service.stop();
        invalidate(&lab);
        take_ports_out(&lab);
        assert!(!pair.reach(), "nothing is programmed");
        lab.start_service();
        wait_for("pods that reach each other", LIMIT, || pair.reach().then_some(()));
        wait_for("the reason in the log", LIMIT, || lab.service.log().contains(what).then_some(()));
        assert!(lab.service.ended().is_none(), "the API waits");
        assert!(!lab.operator().dpuctl(&["status"]).status.success(), "{what}");
        lab.pki.issue("dpu", "dpu-1");
        lab.wait_until_good();
        lab.assert_invariants();
    }
    pair.detach(&lab);
}

#[test]
fn host_reboot_releases_earlier_attachments() {
    let mut lab = Lab::start(&Settings::default());
    let pair = Pair::attach(&lab);
    lab.agent.crash();
    drop(pair);
    lab.new_boot_id(NEXT_BOOT);
    lab.start_agent();
    lab.wait_until_good();
    lab.assert_clean_slate();
    let pair = Pair::attach(&lab);
    pair.detach(&lab);
}

/// The agent's records are not synced: after a power loss their file may have any content. The card has created its VFs
/// again.
#[test]
fn torn_records_after_power_cut_are_released() {
    let mut lab = Lab::start(&Settings::default());
    let pair = Pair::attach(&lab);
    lab.agent.crash();
    drop(pair);
    lab.reset_card();
    let records = lab.path().join("agent/records.redb");
    let records = OpenOptions::new().write(true).open(records).unwrap();
    records.set_len(HALF_A_PAGE).unwrap();
    lab.new_boot_id(NEXT_BOOT);
    lab.start_agent();
    lab.wait_until_good();
    let is_aside = |file: io::Result<DirEntry>| {
        file.unwrap().file_name().to_str().unwrap().starts_with("records.torn-in-")
    };
    assert!(fs::read_dir(lab.path().join("agent")).unwrap().any(is_aside), "{}", lab.agent.log());
    lab.assert_clean_slate();
    let pair = Pair::attach(&lab);
    pair.detach(&lab);
}

#[test]
fn agent_reload_keeps_pods_connected() {
    let lab = Lab::start(&Settings::default());
    let pair = Pair::attach(&lab);
    lab.agent.signal(Signal::SIGHUP);
    lab.service.signal(Signal::SIGHUP);
    lab.wait_until_good();
    pair.assert_reach();
    lab.assert_invariants();
}

/// A tenant that may change its own network: its link is down, and it has another default route.
#[test]
fn self_blocking_pod_keeps_its_vf() {
    let lab = Lab::start(&Settings::default());
    let pod = Netns::new("pod");
    let _ = lab.add("blue", &pod, "eth0").result();
    pod.ip(&["link", "set", "eth0", "down"]);
    pod.ip(&["route", "add", "default", "dev", "lo"]);
    let index = pod.json("ip", &["link", "show", "eth0"])[0]["ifindex"].clone();
    let logged = || lab.agent.log().lines().count();
    let before = logged();
    for tries in 1..=3 {
        lab.agent.signal(Signal::SIGHUP);
        let reported = || lab.agent.log().matches("not in order").count() >= tries;
        wait_for("a failed try", LIMIT, || reported().then_some(()));
        pod.ip(&["link", "set", "eth0", "down"]);
    }
    let reported = logged() - before;
    assert!(reported <= 12, "{reported} lines:\n{}", lab.agent.log());
    assert_eq!(pod.json("ip", &["link", "show", "eth0"])[0]["ifindex"], index);
    pod.ip(&["route", "del", "default", "dev", "lo"]);
    lab.agent.signal(Signal::SIGHUP);
    lab.assert_invariants();
    lab.del("blue", &pod, "eth0").nothing();
    lab.assert_clean_slate();
}

#[test]
fn silent_dpu_is_reported_soon() {
    let grace = 6;
    let timeouts = Timeouts { grace, ..Timeouts::default() };
    let lab = Lab::start(&Settings { timeouts, ..Settings::default() });
    let pair = Pair::attach(&lab);
    lab.service.signal(Signal::SIGSTOP);
    let silent = Stopwatch::start();
    lab.add("blue", &Netns::new("other"), "eth0").fails(11, &["DPU_UNREACHABLE"]);
    assert!(silent.unstalled() < FAST, "{:?}", silent.unstalled());
    let start = Stopwatch::start();
    lab.add("blue", &Netns::new("another"), "eth0").fails(11, &["DPU_UNREACHABLE"]);
    assert!(start.unstalled() < Duration::from_secs(1), "{:?}", start.unstalled());
    pair.assert_reach();
    wait_for("a STATUS of 50", LIMIT, || (!lab.status().status.success()).then_some(()));
    let limit = Duration::from_secs(u64::from(grace)) + FAST;
    assert!(silent.unstalled() < limit, "{:?}", silent.unstalled());
    lab.status().fails(50, &["DPU_UNREACHABLE"]);
    lab.service.signal(Signal::SIGCONT);
    lab.wait_until_good();
    lab.assert_invariants();
    pair.detach(&lab);
}

/// Whatever the agent has open in a namespace keeps it alive, with the VFs in it.
#[test]
fn waiting_add_keeps_no_namespace_alive() {
    // It must wait as long as the test takes.
    let service = "[limits]\nheartbeat_ms = 60000".into();
    let lab = Lab::start(&Settings { service, ..Settings::default() });
    let pod = Netns::new("pod");
    let (name, path) = (pod.name().to_owned(), pod.path());
    let call = |verb, interface| {
        Call::new(verb, &lab.configuration("blue")).of(&name, Some(&path), interface)
    };
    let away = || lab.card.clean().len() - Card::ends_in(&lab.card.host).len();
    let _ = lab.execute(&call("ADD", "eth0")).result();
    lab.service.signal(Signal::SIGSTOP);
    let mut waiting = call("ADD", "eth1").begin(&lab.card.host);
    // The VF moves before the DPU answers.
    wait_for("the move", LIMIT, || (away() == 2).then_some(()));
    drop(pod);
    wait_for("both VFs to come home", LIMIT, || (away() == 0).then_some(()));
    assert!(waiting.try_wait().unwrap().is_none(), "nothing waited for the DPU");
    lab.service.signal(Signal::SIGCONT);
    waiting.wait().unwrap();
    for interface in ["eth0", "eth1"] {
        lab.execute(&call("DEL", interface)).nothing();
    }
    lab.wait_until_good();
    lab.assert_clean_slate();
}

#[test]
fn del_without_records_returns_the_vf() {
    let mut lab = Lab::start(&Settings::with_vfs(2));
    let pair = Pair::attach(&lab);
    lab.agent.crash();
    let state = lab.path().join("agent");
    fs::rename(&state, lab.path().join("moved-away")).unwrap();
    lab.start_agent();
    lab.wait_until_good();
    pair.assert_reach();
    assert_eq!(ids(&lab).len(), 2);
    for pod in [&pair.a, &pair.b] {
        lab.del("blue", pod, "eth0").nothing();
    }
    wait_for("nothing attached", LIMIT, || ids(&lab).is_empty().then_some(()));
    assert_homes(&lab);
    let _ = Pair::attach(&lab);
}

/// All VFs are back on the host. Their MAC addresses are lost with the records: these cards have no permanent ones.
fn assert_homes(lab: &Lab) {
    let ends = |ends: &BTreeMap<String, HostEnd>| -> Vec<_> {
        ends.values().map(|end| (end.name.clone(), end.mtu, end.up)).collect()
    };
    assert_eq!(ends(&Card::ends_in(&lab.card.host)), ends(lab.card.clean()));
}

/// One pod ends while no agent runs, the other one after the next agent has started.
#[test]
fn del_needs_neither_records_nor_namespace() {
    let mut lab = Lab::start(&Settings::with_vfs(2));
    let Pair { a, b, .. } = Pair::attach(&lab);
    lab.agent.crash();
    fs::rename(lab.path().join("agent"), lab.path().join("moved-away")).unwrap();
    let configuration = lab.configuration("blue");
    let del = |pod: Netns| Call::new("DEL", &configuration).of(pod.name(), None, "eth0");
    let first = del(a);
    lab.start_agent();
    lab.wait_until_good();
    let second = del(b);
    for del in [first, second] {
        lab.execute(&del).nothing();
    }
    wait_for("nothing attached", LIMIT, || ids(&lab).is_empty().then_some(()));
    assert_homes(&lab);
    let _ = Pair::attach(&lab);
}

/// Both programs may have lost what the other one knows: see also the test above.
#[test]
fn del_of_what_the_dpu_lost_succeeds() {
    let mut lab = Lab::start(&Settings::with_vfs(2));
    let pair = Pair::attach(&lab);
    lab.service.crash();
    fs::rename(lab.path().join("service"), lab.path().join("moved-away")).unwrap();
    lab.start_service();
    lab.wait_until_good();
    assert_eq!(ids(&lab), [Value::Null; 0]);
    pair.detach(&lab);
    let pair = Pair::attach(&lab);
    pair.detach(&lab);
}

#[test]
fn programs_start_in_either_order() {
    let mut lab = Lab::start(&Settings::with_vfs(2));
    lab.agent.stop();
    lab.service.stop();
    lab.new_boot_id(NEXT_BOOT);
    lab.start_agent();
    lab.status().fails(50, &["DPU_UNREACHABLE"]);
    lab.add("blue", &Netns::new("early"), "eth0").fails(11, &["DPU_UNREACHABLE"]);
    lab.start_service();
    lab.wait_until_good();
    Pair::attach(&lab).detach(&lab);

    lab.agent.stop();
    lab.service.stop();
    lab.start_service();
    let is_up = || has_answered(&lab.operator().dpuctl(&["status"])).then_some(());
    wait_for("a service without a host", LIMIT, is_up);
    lab.status().fails(50, &["AGENT_UNREACHABLE"]);
    lab.start_agent();
    lab.wait_until_good();
    Pair::attach(&lab).detach(&lab);
}
