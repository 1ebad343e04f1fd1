//! A pod changes everything on its interface; the next pod with the VF must not notice.

use std::{collections::BTreeMap, thread, time::Duration};

use offload_proto::log_event;
use serde_json::{Value, json};

use super::{figure, pods::addresses};
use crate::{
    Call, Card, FaultAction, HostEnd, Lab, Netns, Settings,
    card::{OTHER_QUESTIONS, QUESTIONS_OF_VETH},
    eventually, run, wait_for,
};

/// Timeout for the reset of a VF.
const LIMIT: Duration = Duration::from_secs(60);

/// Upper devices of a pod's `eth0`, by name. `third` stands for a namespace that belongs to no pod.
pub const STACKED: [(&str, &str); 6] = [
    ("macvlan that takes all frames", "link add stacked link eth0 type macvlan mode passthru"),
    ("macvlan elsewhere", "link add stacked link eth0 netns third type macvlan mode bridge"),
    ("macvlan elsewhere of which the VF knows nothing", QUIET),
    ("vlan", "link add stacked link eth0 type vlan id 7"),
    ("vlan elsewhere", "link add stacked link eth0 netns third type vlan id 8"),
    ("ipvlan", "link add stacked link eth0 type ipvlan mode l2"),
];

/// A macvlan without promiscuous mode: other modes set it on the lower link.
const QUIET: &str = "link add stacked link eth0 netns third type macvlan mode passthru nopromisc";

/// Changes by a pod with `CAP_NET_ADMIN` of its interface, beyond name, MAC address and MTU.
const CHANGES: [&[&str]; 14] = [
    &["ip", "link", "set", "eth0", "arp", "off"],
    &["ip", "link", "set", "eth0", "multicast", "off"],
    &["ip", "link", "set", "eth0", "dynamic", "on"],
    &["ip", "link", "set", "eth0", "broadcast", "ff:ff:ff:ff:ff:fe"],
    &["ip", "link", "set", "eth0", "gso_max_size", "2000"],
    &["ip", "link", "set", "eth0", "gso_max_segs", "2"],
    &["ip", "link", "set", "eth0", "gro_max_size", "2000"],
    &["ip", "link", "set", "eth0", "txqueuelen", "7"],
    &["ip", "link", "set", "eth0", "promisc", "on"],
    &["ethtool", "-K", "eth0", "tx", "off", "rx", "off", "tso", "off", "gro", "off"],
    &["ethtool", "-L", "eth0", "tx", "2", "rx", "2"],
    &["ethtool", "-G", "eth0", "rx", "128", "tx", "128"],
    &["ethtool", "-C", "eth0", "rx-usecs", "77"],
    &["ethtool", "-s", "eth0", "msglvl", "0x7fff"],
];

/// Changes by one pod: an emulated machine needs much time for each pod.
const AT_ONCE: usize = 5;

/// Changes in sysfs, which only the machine's root may write. A card without NAPI has no `threaded`.
const FILES: &str = "mount -t sysfs sysfs /mnt && cd /mnt/class/net/eth0 && \
    echo 7000 >gro_flush_timeout && echo 3 >napi_defer_hard_irqs && \
    echo 1 >queues/rx-0/rps_cpus && echo 64 >queues/rx-0/rps_flow_cnt && \
    { echo 1 >threaded || true; }";

/// A network with one resident pod and one more VF.
struct OneFreeVf {
    lab: Lab,
    resident: Netns,
    reaches: Vec<String>,
}

impl OneFreeVf {
    fn open(settings: &Settings) -> Self {
        let lab = Lab::start(&Settings { vfs: 2, pool: 2, ..settings.clone() });
        let resident = Netns::new("resident");
        let reaches = addresses(&lab.add("blue", &resident, "eth0").result());
        Self { lab, resident, reaches }
    }

    /// A new pod gets the remaining VF as soon as it is free, and has its network.
    fn assert_next_pod_has_a_network(&self, after: &str) {
        let next = Netns::new("next");
        let result = wait_for(&format!("a VF after {after}"), LIMIT, || {
            let added = self.lab.add("blue", &next, "eth0");
            added.status.success().then(|| added.result())
        });
        for address in &self.reaches {
            assert!(next.pings(address), "{address} is not reached after {after}");
        }
        for address in addresses(&result) {
            assert!(self.resident.pings(&address), "{address} is not reached after {after}");
        }
        self.lab.assert_invariants();
        self.lab.del("blue", &next, "eth0").nothing();
    }

    /// State of the free VF.
    fn free_vf(&self) -> BTreeMap<String, HostEnd> {
        Card::ends_in(&self.lab.card.host)
    }

    /// Attaches a pod, runs `does` and detaches it. Its namespace stays.
    fn pod_that(&self, does: impl FnOnce(&Netns)) -> Netns {
        let pod = Netns::new("pod");
        let added =
            eventually(LIMIT, || self.lab.add("blue", &pod, "eth0").status.success().then_some(()));
        assert!(added.is_some(), "no VF is free");
        does(&pod);
        self.lab.del("blue", &pod, "eth0").nothing();
        pod
    }

    fn close(self) {
        self.lab.del("blue", &self.resident, "eth0").nothing();
        self.lab.assert_clean_slate();
    }
}

/// Adds so many alternative names that no other link has a longer description.
fn name_at_length(netns: &Netns, link: &str) {
    let script = format!(
        "for name in $(seq -f %0127.0f 496); do echo link property add dev {link} altname $name; done | \
         ip -batch -"
    );
    let named = run(netns.command("sh").args(["-c", &script]));
    assert!(named.status.success(), "{named:?}");
}

fn links_of(netns: &Netns) -> Vec<String> {
    let links = netns.json("ip", &["link"]);
    let names = links.iter().map(|link| link["ifname"].as_str().unwrap().to_owned());
    names.filter(|name| name != "lo").collect()
}

/// Upper devices that a pod creates on its interface, in any namespace, end with its attachment. Returns the number of
/// tested kinds: not every kernel has all.
///
/// # Panics
/// If one remains, or a later pod has no network.
#[must_use]
pub fn upper_devices_reach_no_later_pod(settings: &Settings) -> usize {
    let fixture = OneFreeVf::open(settings);
    let mut tried = 0;
    for (name, stacked) in STACKED {
        let third = Netns::new("third");
        name_at_length(&third, "lo");
        let in_third = stacked.replace("third", third.name());
        let pod = fixture.pod_that(|pod| {
            let added = run(pod.command("ip").args(in_third.split(' ')));
            if String::from_utf8_lossy(&added.stderr).contains("Unknown device type") {
                return;
            }
            assert!(added.status.success(), "{added:?}");
            tried += 1;
            let place = if stacked.contains("third") { &third } else { pod };
            place.ip(&["link", "set", "stacked", "up"]);
        });
        fixture.assert_next_pod_has_a_network(name);
        for netns in [&pod, &third] {
            assert_eq!(links_of(netns), [""; 0], "{name} is left in {}", netns.name());
        }
    }
    figure(tried, "kinds of links that pods stacked on their interfaces");
    fixture.close();
    tried
}

/// A VF has its baseline again when the next pod can get it, whatever a pod changed. Returns whether changes in sysfs
/// were tested.
///
/// # Panics
/// If a difference remains, or a later pod has no network.
#[must_use]
pub fn changed_settings_reach_no_later_pod(settings: &Settings) -> bool {
    assert_all_answers_are_asked_for();
    let fixture = OneFreeVf::open(settings);
    let before = fixture.free_vf();
    let mut changed = 0;
    for changes in CHANGES.chunks(AT_ONCE) {
        let _pod = fixture.pod_that(|pod| {
            // Not every card supports every change.
            let could =
                |change: &&&[&str]| run(pod.command(change[0]).args(&change[1..])).status.success();
            changed += changes.iter().filter(could).count();
        });
        let reported = format!("{changes:?}");
        fixture.assert_next_pod_has_a_network(&reported);
        assert_becomes(&fixture, &before, &reported);
    }
    assert!(changed >= 9, "only {changed} changes could be made");
    let mut are_written = false;
    let _pod = fixture.pod_that(|pod| {
        let reported = settings_of(pod);
        assert!(
            reported.iter().any(|line| line.starts_with("tcp-segmentation-offload: ")),
            "{reported:?}"
        );
        let written = run(pod.command("unshare").args(["--mount", "sh", "-c", FILES]));
        are_written = written.status.success();
        assert!(
            !are_written || settings_of(pod) != reported,
            "what was written is not seen: {reported:?}"
        );
    });
    fixture.assert_next_pod_has_a_network("files");
    assert_becomes(&fixture, &before, "files");
    let changed = changed + usize::from(are_written);
    figure(changed, "changes that pods made of their interfaces");
    fixture.close();
    are_written
}

/// Settings of a pod's interfaces that the tests see.
fn settings_of(pod: &Netns) -> Vec<String> {
    Card::ends_in(pod).into_values().flat_map(|end| end.settings).collect()
}

/// Tests ask `ethtool` only what the kernel answers for veth. A kernel that answers more requires more questions.
fn assert_all_answers_are_asked_for() {
    let netns = Netns::new("veth");
    netns.ip(&["link", "add", "veth0", "type", "veth", "peer", "name", "veth1"]);
    let is_answered = |question: &&str| {
        let shown = run(netns.command("ethtool").args([question, "*"]));
        String::from_utf8_lossy(&shown.stdout).contains(" for veth0:")
    };
    let all = QUESTIONS_OF_VETH.into_iter().chain(OTHER_QUESTIONS);
    assert_eq!(all.filter(is_answered).collect::<Vec<_>>(), QUESTIONS_OF_VETH);
}

fn assert_becomes(fixture: &OneFreeVf, before: &BTreeMap<String, HostEnd>, after: &str) {
    let settled = eventually(LIMIT, || (fixture.free_vf() == *before).then_some(()));
    assert!(settled.is_some(), "{:#?}\ninstead of\n{before:#?} after {after}", fixture.free_vf());
}

/// Pods that changed everything are attached and detached at the same time, some by the end of their namespaces.
///
/// # Panics
/// If anything remains.
pub fn tampering_pods_attach_and_detach_concurrently(settings: &Settings) {
    let lab = Lab::start(settings);
    let pods: Vec<_> = (0..settings.vfs).map(|_| Netns::new("pod")).collect();
    thread::scope(|scope| {
        for (number, pod) in pods.into_iter().enumerate() {
            let lab = &lab;
            scope.spawn(move || {
                let _ = lab.add("blue", &pod, "eth0").result();
                pod.ip(&["link", "set", "eth0", "arp", "off"]);
                pod.ip(&["link", "add", "stacked", "link", "eth0", "type", "macvlan"]);
                if number % 2 == 0 {
                    return drop(pod);
                }
                lab.del("blue", &pod, "eth0").nothing();
            });
        }
    });
    collect(&lab);
    lab.assert_clean_slate();
}

/// GC with an empty list.
fn collect(lab: &Lab) {
    let mut configuration = lab.configuration("blue");
    configuration["cni.dev/valid-attachments"] = json!([]);
    lab.execute(&Call::new("GC", &configuration)).nothing();
}

/// An agent that is killed before a VF's reset does it after its restart.
///
/// # Panics
/// If the VF keeps its differences, or does not come back.
pub fn vf_reset_survives_agent_kill(settings: &Settings) {
    let mut fixture = OneFreeVf::open(settings);
    let points = ["reset-begun", "reset-made", "reset-verified", "release-reported"];
    for (earlier, point) in points.into_iter().enumerate() {
        // Each round has two releases, which the agent finishes after the DEL's answer, so that no earlier one reaches
        // this point.
        let is_over =
            || (fixture.lab.agent.events(log_event::DETACHED) == 2 * earlier).then_some(());
        wait_for("the end of earlier releases", LIMIT, is_over);
        let armed = fixture.lab.arm("host-shim-agent", FaultAction::Kill, point);
        let pod = Netns::new("pod");
        let _ = fixture.lab.add("blue", &pod, "eth0").result();
        pod.ip(&["link", "set", "eth0", "arp", "off"]);
        pod.ip(&["link", "add", "stacked", "link", "eth0", "type", "macvlan"]);
        let _ = fixture.lab.del("blue", &pod, "eth0");
        wait_for(point, LIMIT, || (!armed.exists()).then_some(()));
        fixture.lab.agent_ends();
        fixture.lab.start_agent();
        fixture.lab.wait_until_good();
        let _ = fixture.lab.del("blue", &pod, "eth0");
        fixture.assert_next_pod_has_a_network(point);
        assert_eq!(links_of(&pod), [""; 0], "{point}");
    }
    fixture.close();
}

/// After a pod damages its network, CHECK reports it and an ADD repairs it.
///
/// # Panics
/// If an expectation is not met.
pub fn damaged_network_is_reported_and_repaired(settings: &Settings) {
    let fixture = OneFreeVf::open(settings);
    let pod = Netns::new("pod");
    let result = fixture.lab.add("blue", &pod, "eth0").result();
    let mut configuration = fixture.lab.configuration("blue");
    configuration["prevResult"] = result;
    let check = Call::new("CHECK", &configuration).of(pod.name(), Some(&pod.path()), "eth0");
    for (change, reported) in [
        (["arp", "off"], "ARP off"),
        (["multicast", "off"], "multicast off"),
        (["broadcast", "ff:ff:ff:ff:ff:fe"], "broadcast address"),
    ] {
        pod.ip(&["link", "set", "eth0", change[0], change[1]]);
        fixture.lab.execute(&check).fails(132, &[reported]);
        let again: Value = fixture.lab.add("blue", &pod, "eth0").result();
        assert!(addresses(&again).iter().all(|address| fixture.resident.pings(address)));
        fixture.lab.execute(&check).nothing();
    }
    fixture.lab.del("blue", &pod, "eth0").nothing();
    fixture.close();
}
