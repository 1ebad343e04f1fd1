//! `dpuctl doctor`: it names everything that external tools break, and `--fix` repairs it.

use std::{
    cell::Cell,
    fs,
    os::unix::fs::{MetadataExt, symlink},
    process::Output,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use e2e::{
    Call, Card, CardSettings, FabricKind, Lab, Netns, Program, Settings,
    scenarios::{figure, pods::addresses},
    wait_for,
};
use nix::sys::signal::Signal;
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(20);

/// The agent's timer is off, so that the doctor finds damage that causes no event.
fn lab_without_a_timer() -> Lab {
    Lab::start(&Settings { timeouts: "reconcile_s = 3600".into(), ..Settings::default() })
}

/// The findings of `dpuctl doctor` with these arguments, and its exit code.
fn doctor(lab: &Lab, arguments: &[&str]) -> (Value, Option<i32>) {
    let all = [&["doctor", "-o", "json"], arguments].concat();
    let Output { status, stdout, stderr } = lab.operator().dpuctl(&all);
    let text = String::from_utf8_lossy(&stdout);
    let found = serde_json::from_str(&text)
        .unwrap_or_else(|error| panic!("{error}: {text}: {}", String::from_utf8_lossy(&stderr)));
    (found, status.code())
}

/// Whether an exit code reports findings or affected pods.
fn has_found(exit: Option<i32>) -> bool {
    matches!(exit, Some(1 | 5))
}

/// Code and state of the findings that were found.
fn findings(diagnosis: &Value) -> Vec<(String, String)> {
    let text = |found: &Value, key: &str| found[key].as_str().unwrap().to_owned();
    let all = diagnosis["findings"].as_array().unwrap().iter();
    all.map(|found| (text(found, "code"), text(found, "state"))).collect()
}

/// Asserts that the doctor names damage by `code` and that a fix repairs it.
fn assert_named_and_fixed(lab: &Lab, code: &str) {
    let (found, exit) = doctor(lab, &[]);
    let is_named = findings(&found).iter().any(|(named, _)| named == code);
    assert!(is_named && has_found(exit), "{code} is not in {found:#}");
    let (fixed, exit) = doctor(lab, &["--fix"]);
    let expected = (code.to_owned(), "FINDING_STATE_REPAIRED".to_owned());
    assert!(findings(&fixed).contains(&expected) && exit == Some(0), "{fixed:#}");
    assert_healthy(lab);
    figure(1, "breakages that doctor named and repaired");
}

/// Asserts that the doctor names damage of a free VF by `code` and that a fix repairs it. A listing of VFs may make the
/// agent repair it first; then the damage is repeated.
fn assert_fixed_on_request(lab: &Lab, code: &str, breakage: impl Fn()) -> Value {
    let expected = (code.to_owned(), "FINDING_STATE_REPAIRED".to_owned());
    let fixed = wait_for("a fix that is before the agent", LIMIT, || {
        breakage();
        let (fixed, exit) = doctor(lab, &["--fix"]);
        assert_eq!(exit, Some(0), "{fixed:#}");
        (findings(&fixed) == [expected.clone()]).then_some(fixed)
    });
    assert_healthy(lab);
    figure(1, "breakages that doctor named and repaired");
    fixed
}

fn assert_healthy(lab: &Lab) {
    let (found, exit) = doctor(lab, &[]);
    assert!(findings(&found).is_empty() && exit == Some(0), "{found:#}");
    lab.assert_invariants();
}

/// Asserts that damage is repaired without a request and reported as a repair.
fn assert_repaired_automatically(lab: &Lab, what: &str, breakage: impl FnOnce()) {
    let count = || {
        let (found, _) = doctor(lab, &[]);
        let repairs = found["repairs"].as_array().unwrap().clone();
        let is_it = |repair: &&Value| repair["message"].as_str().unwrap().contains(what);
        repairs.iter().filter(is_it).count()
    };
    let before = count();
    breakage();
    wait_for("a repair", LIMIT, || (count() > before).then_some(()));
    wait_for("good health", LIMIT, || (doctor(lab, &[]).1 == Some(0)).then_some(()));
    lab.assert_invariants();
    figure(1, "breakages repaired without being asked");
}

#[test]
fn doctor_shows_healthy_state_of_both_sides() {
    let lab = Lab::start(&Settings::default());
    let pod = Netns::new("pod");
    let _ = lab.add("blue", &pod, "eth0").result();
    assert_healthy(&lab);
    let (found, _) = doctor(&lab, &[]);
    assert_eq!(found["hosts"][0]["connected"], true);
    let vfs = found["vfs"].as_array().unwrap();
    let of = |place: &str| vfs.iter().filter(|vf| vf["found"]["place"] == place).count();
    assert_eq!((of("VF_PLACE_POD"), of("VF_PLACE_HOST"), vfs.len()), (1, 3, 4), "{found:#}");
    let attached = vfs.iter().find(|vf| vf["found"]["place"] == "VF_PLACE_POD").unwrap();
    assert_eq!(attached["found"]["attachmentId"], attached["attachmentId"]);
    assert_eq!(attached["found"]["netns"], pod.path().to_str().unwrap());
    assert_eq!(attached["joined"], true);
    assert!(lab.operator().dpuctl(&["doctor"]).status.success());
}

/// A card without a DPU has no representors, and none are missing.
#[test]
fn host_without_eswitch_is_healthy() {
    let networks = "[[network]]\nname = \"plain\"\nanti_spoofing = \"off\"\n\
                    [[network.subnets]]\ncidr = \"10.1.0.0/24\"\n";
    let card = CardSettings { has_eswitch: false, ..CardSettings::default() };
    let settings = Settings { card, networks: networks.into(), ..Settings::default() };
    let lab = Lab::start(&settings);
    let pod = Netns::new("pod");
    let _ = lab.add("plain", &pod, "eth0").result();
    let (found, exit) = doctor(&lab, &[]);
    assert!(findings(&found).is_empty() && exit == Some(0), "{found:#}");
    let vfs = found["vfs"].as_array().unwrap();
    assert!(vfs.len() == 4 && vfs.iter().all(|vf| vf["representor"] == ""), "{found:#}");
    lab.card.host.ip(&["link", "set", "p0v2", "group", "7"]);
    lab.card.host.ip(&["link", "set", "p0v3", "group", "7"]);
    let (fixed, exit) = doctor(&lab, &["--fix"]);
    assert_eq!(exit, Some(0), "{fixed:#}");
}

#[test]
fn changed_vfs_on_host_are_restored() {
    let lab = lab_without_a_timer();
    let host = &lab.card.host;
    for (what, setting) in [
        ("its name is lost0 instead of p0v1", ["p0v1", "name", "lost0"].as_slice()),
        ("its MTU is 1400 instead of 1500", &["p0v2", "mtu", "1400"]),
        ("it is up", &["p0v3", "up"]),
        ("multicast is on", &["p0v1", "allmulticast", "on"]),
    ] {
        let change = [&["link", "set"], setting].concat();
        assert_repaired_automatically(&lab, what, || drop(host.ip(&change)));
    }
    // The kernel sends no event for a new group of a link that is down.
    let _ = assert_fixed_on_request(&lab, "VF_DIFFERS", || {
        host.ip(&["link", "set", "p0v2", "group", "7"]);
    });
}

#[test]
fn fix_reports_each_repair_once() {
    let lab = lab_without_a_timer();
    let repairs = |found: &Value| found["repairs"].as_array().unwrap().len();
    let before = Cell::new(0);
    let fixed = assert_fixed_on_request(&lab, "VF_DIFFERS", || {
        before.set(repairs(&doctor(&lab, &[]).0));
        lab.card.host.ip(&["link", "set", "p0v2", "group", "7"]);
    });
    assert_eq!(repairs(&fixed), before.get(), "{fixed:#}");
    let (later, _) = doctor(&lab, &[]);
    assert_eq!(repairs(&later), before.get() + 1, "{later:#}");
}

/// While another link has a VF's name, the VF cannot be restored.
#[test]
fn doctor_says_why_vf_is_not_restored() {
    let lab = Lab::start(&Settings::default());
    let host = &lab.card.host;
    lab.agent.signal(Signal::SIGSTOP);
    host.ip(&["link", "set", "p0v1", "name", "lost0"]);
    host.ip(&["link", "add", "p0v1", "type", "bridge"]);
    lab.agent.signal(Signal::SIGCONT);
    let (found, exit) = doctor(&lab, &["--fix"]);
    assert!(has_found(exit), "{found:#}");
    let unrepaired = &found["findings"][0];
    assert_eq!(
        (&unrepaired["code"], &unrepaired["subject"]),
        (&"VF_DIFFERS".into(), &"pf0vf1".into())
    );
    assert_eq!(unrepaired["state"], "FINDING_STATE_NOT_REPAIRED");
    let why = unrepaired["why"].as_str().unwrap();
    assert!(why.contains("exists") && why.contains(" a bridge, "), "{found:#}");
    assert!(!unrepaired["advice"].as_str().unwrap().contains("--fix"), "{found:#}");
    host.ip(&["link", "del", "p0v1"]);
    let _ = doctor(&lab, &["--fix"]);
    assert_healthy(&lab);
}

#[test]
fn pod_gets_lost_settings_back() {
    let lab = lab_without_a_timer();
    let (pod, other) = (Netns::new("pod"), Netns::new("other"));
    let held = addresses(&lab.add("blue", &pod, "eth0").result());
    let _ = lab.add("blue", &other, "eth0").result();
    for address in &held {
        let length = if address.contains(':') { 64 } else { 16 };
        pod.ip(&["addr", "del", &format!("{address}/{length}"), "dev", "eth0"]);
        assert_named_and_fixed(&lab, "POD_DIFFERS");
        assert!(other.pings(address));
    }
    pod.ip(&["link", "set", "eth0", "down"]);
    pod.ip(&["link", "set", "eth0", "address", "02:00:00:ff:ff:ff"]);
    assert_named_and_fixed(&lab, "POD_DIFFERS");
    pod.ip(&["route", "del", "default"]);
    assert_named_and_fixed(&lab, "POD_DIFFERS");
    assert!(held.iter().all(|address| other.pings(address)));
}

#[test]
fn fix_clears_the_condition_of_a_pod() {
    let lab = lab_without_a_timer();
    let pod = Netns::new("pod");
    let _ = lab.add("blue", &pod, "eth0").result();
    pod.ip(&["link", "set", "eth0", "arp", "off"]);
    // Makes the agent look at its pods.
    lab.agent.signal(Signal::SIGHUP);
    wait_for("the condition", LIMIT, || lab.operator().fault("POD_DIFFERS"));
    let (repaired, exit) = doctor(&lab, &["--fix"]);
    let expected = ("POD_DIFFERS".to_owned(), "FINDING_STATE_REPAIRED".to_owned());
    assert_eq!((findings(&repaired), exit), (vec![expected], Some(0)), "{repaired:#}");
}

/// A namespace that the agent searches, like those of processes.
fn foreign_netns(lab: &Lab) -> Netns {
    let netns = Netns::new("foreign");
    let folder = lab.path().join("netns");
    fs::create_dir_all(&folder).unwrap();
    symlink(netns.path(), folder.join(netns.name())).unwrap();
    netns
}

#[test]
fn misplaced_vfs_are_moved_back() {
    let lab = lab_without_a_timer();
    let foreign = foreign_netns(&lab);
    let _ = assert_fixed_on_request(&lab, "VF_ELSEWHERE", || {
        lab.card.host.ip(&["link", "set", "p0v1", "netns", foreign.name(), "name", "net1"]);
    });
    assert_eq!(foreign.json("ip", &["link"]).len(), 1, "only lo is left");

    let (pod, other) = (Netns::new("pod"), Netns::new("other"));
    let held = addresses(&lab.add("blue", &pod, "eth0").result());
    let _ = lab.add("blue", &other, "eth0").result();
    pod.ip(&["link", "set", "eth0", "netns", foreign.name(), "name", "stolen"]);
    assert_named_and_fixed(&lab, "POD_VF_MISSING");
    assert!(held.iter().all(|address| other.pings(address)));
}

#[test]
fn misplaced_vf_of_release_is_named_and_fixed() {
    let timeouts = "vf_return_s = 1\nreconcile_s = 3600".into();
    let lab = Lab::start(&Settings { timeouts, ..Settings::default() });
    let foreign = foreign_netns(&lab);
    let pod = Netns::new("pod");
    let _ = lab.add("blue", &pod, "eth0").result();
    pod.ip(&["link", "set", "eth0", "netns", foreign.name(), "name", "stolen"]);
    lab.del("blue", &pod, "eth0").nothing();
    let (found, _) = doctor(&lab, &[]);
    let reported = &found["findings"][0];
    assert_eq!(reported["code"], "RELEASE_PENDING", "{found:#}");
    let message = reported["message"].as_str().unwrap();
    let place = format!("{} as stolen", foreign.name());
    assert!(message.contains("not back yet") && message.contains(&place), "{message}");
    let _ = doctor(&lab, &["--fix"]);
    assert_healthy(&lab);
}

#[test]
fn vf_released_meanwhile_is_not_lost() {
    let lab = Lab::start(&Settings::default());
    let pod = Netns::new("pod");
    let folder = lab.path().join("netns");
    fs::create_dir_all(&folder).unwrap();
    symlink(pod.path(), folder.join(pod.name())).unwrap();
    let churns = AtomicBool::new(true);
    thread::scope(|scope| {
        let _ = scope.spawn(|| {
            while churns.load(Ordering::Relaxed) {
                let _ = lab.add("blue", &pod, "eth0").result();
                lab.del("blue", &pod, "eth0").nothing();
            }
        });
        let found: Vec<_> = (0..40).flat_map(|_| findings(&doctor(&lab, &[]).0)).collect();
        churns.store(false, Ordering::Relaxed);
        let lost = ["VF_ELSEWHERE", "VF_NOWHERE", "VF_UNKNOWN_TO_HOST"];
        assert!(found.iter().all(|(code, _)| !lost.contains(&code.as_str())), "{found:?}");
    });
    assert_healthy(&lab);
}

/// An agent without records leaves a running pod its VF.
#[test]
fn pod_without_record_keeps_held_vf() {
    let mut lab = Lab::start(&Settings::default());
    let pod = Netns::new("pod");
    let _ = lab.add("blue", &pod, "eth0").result();
    lab.agent.stop();
    fs::remove_dir_all(lab.path().join("agent")).unwrap();
    fs::create_dir_all(lab.path().join("netns")).unwrap();
    symlink(pod.path(), lab.path().join("netns/pod")).unwrap();
    lab.start_agent();
    lab.wait_until_good();
    let (found, exit) = doctor(&lab, &["--fix"]);
    assert!(has_found(exit));
    let all = found["findings"].as_array().unwrap();
    let elsewhere = all.iter().find(|found| found["code"] == "VF_ELSEWHERE").unwrap();
    assert!(elsewhere["why"].as_str().unwrap().contains("a pod may"), "{found:#}");
    assert!(pod.json("ip", &["link"]).iter().any(|link| link["ifname"] == "eth0"));
    lab.del("blue", &pod, "eth0").nothing();
    wait_for("health", LIMIT, || (doctor(&lab, &[]).1 == Some(0)).then_some(()));
}

#[test]
fn damaged_representor_is_programmed_again() {
    let lab = Lab::start(&Settings::default());
    let pod = Netns::new("pod");
    let _ = lab.add("blue", &pod, "eth0").result();
    let vf = &lab.operator().get("attachments")[0]["vf"]["vf"];
    let representor = format!("pf0vf{vf}");
    for breakage in ["nomaster", "down"] {
        let change = ["link", "set", &representor, breakage];
        assert_repaired_automatically(&lab, "programmed again", || drop(lab.card.dpu.ip(&change)));
    }
}

/// Ports of Open vSwitch cause events. Flows are compared when a host connects, and every minute.
#[test]
fn wiped_ports_and_flows_of_ovs_are_repaired() {
    let settings = Settings { kind_of_fabric: FabricKind::OpenVswitch, ..Settings::with_vfs(2) };
    let mut lab = Lab::start(&settings);
    let (pod, other) = (Netns::new("pod"), Netns::new("other"));
    let held = addresses(&lab.add("blue", &pod, "eth0").result());
    let _ = lab.add("blue", &other, "eth0").result();
    let assert_reach = || {
        let reaches = || held.iter().all(|address| other.pings(address)).then_some(());
        wait_for("the pods' traffic", LIMIT, reaches);
    };
    assert_reach();
    let repaired = |lab: &Lab| doctor(lab, &[]).0["repairs"].as_array().unwrap().len();
    let before = repaired(&lab);
    let vswitch = lab.vswitch.as_ref().unwrap();
    for port in ["pf0vf0", "pf0vf1"] {
        assert_repaired_automatically(&lab, "programmed again", || {
            let _ = vswitch.vsctl(&format!("del-port br-offload {port}"));
        });
    }
    assert_reach();
    let with_ports = repaired(&lab);
    assert!(with_ports >= before + 2, "{with_ports} repairs");
    let _ = vswitch.ofctl(&["del-flows"], "br-offload", &[]);
    lab.agent.stop();
    lab.start_agent();
    lab.wait_until_good();
    wait_for("two repairs", LIMIT, || (repaired(&lab) >= with_ports + 2).then_some(()));
    assert_reach();
    lab.assert_invariants();
}

/// Names of VFs' links in a namespace.
fn names(netns: &Netns) -> Vec<String> {
    Card::ends_in(netns).into_values().map(|end| end.name).collect()
}

/// When a VF returns to the host and its names are taken, the kernel names it by index.
#[test]
fn vf_with_taken_name_returns_later() {
    let timeouts = "reconcile_s = 1".into();
    let lab = Lab::start(&Settings { timeouts, ..Settings::with_vfs(1) });
    let host = &lab.card.host;
    let pod = Netns::new("pod");
    let _ = lab.add("blue", &pod, "eth0").result();
    for name in ["p0v0", "eth0"] {
        host.ip(&["link", "add", "name", name, "type", "bridge"]);
    }
    let del = Call::new("DEL", &lab.configuration("blue")).of(pod.name(), None, "eth0");
    drop(pod);
    wait_for("the VF", LIMIT, || {
        names(host).iter().any(|name| name.starts_with("dev")).then_some(())
    });
    lab.execute(&del).nothing();
    let (found, exit) = doctor(&lab, &[]);
    let reported = found["findings"].to_string();
    let words = ["d000:00:00.1", "RELEASE_PENDING", " dev"];
    assert!(has_found(exit) && words.iter().all(|word| reported.contains(word)), "{found:#}");
    let refused = lab.add("blue", &Netns::new("early"), "eth0");
    assert!(!refused.status.success(), "it was given to another pod: {refused:?}");

    host.ip(&["link", "delete", "p0v0"]);
    // The pauses between failed attempts double.
    wait_for("its own name", 3 * LIMIT, || (names(host) == ["p0v0"]).then_some(()));
    lab.assert_clean_slate();
    let next = Netns::new("next");
    let _ = lab.add("blue", &next, "eth0").result();
    lab.assert_invariants();
}

/// Whether a process, a thread or an open file of a program is in the network namespace with this inode.
fn is_held_by(program: &Program, inode: u64) -> bool {
    let (process, netns) = (format!("/proc/{}", program.id()), format!("net:[{inode}]"));
    let links = |pattern: &str| fs::read_dir(format!("{process}/{pattern}")).into_iter().flatten();
    let files = links("fd").map(|entry| entry.unwrap().path());
    let threads = links("task").map(|entry| entry.unwrap().path().join("ns/net"));
    let mut all = files.chain(threads).filter_map(|path| fs::read_link(path).ok());
    all.any(|target| target.to_str() == Some(&netns))
}

#[test]
fn vf_in_process_namespace_is_moved_back() {
    let timeouts = "vf_return_s = 1\nreconcile_s = 3600".into();
    let lab = Lab::start(&Settings { timeouts, ..Settings::with_vfs(1) });
    let pod = Netns::new("pod");
    let _ = lab.add("blue", &pod, "eth0").result();
    let del = Call::new("DEL", &lab.configuration("blue")).of(pod.name(), None, "eth0");
    let inode = fs::metadata(pod.path()).unwrap().ino();
    for program in [&lab.agent, &lab.service, &lab.card.program] {
        wait_for("its release", LIMIT, || (!is_held_by(program, inode)).then_some(()));
    }
    let mut holder = pod.command("sleep").arg("1000").spawn().unwrap();
    let process = format!("/proc/{}", holder.id());
    let is_inside = || {
        let netns = fs::metadata(format!("{process}/ns/net")).ok()?;
        (netns.ino() == inode).then_some(())
    };
    wait_for("the process", LIMIT, is_inside);
    let folder = lab.path().join("netns");
    fs::create_dir_all(&folder).unwrap();
    symlink(&process, folder.join("process")).unwrap();
    drop(pod);
    lab.execute(&del).nothing();
    let (found, exit) = doctor(&lab, &[]);
    let reported = found["findings"].to_string();
    let is_found = reported.contains("d000:00:00.1") && reported.contains("process/ns/net as eth0");
    assert!(has_found(exit) && is_found, "{found:#}");
    let _ = doctor(&lab, &["--fix"]);
    wait_for("its VF", LIMIT, || (names(&lab.card.host) == ["p0v0"]).then_some(()));
    assert!(holder.try_wait().unwrap().is_none(), "the process goes on");
    lab.assert_clean_slate();
    holder.kill().unwrap();
    holder.wait().unwrap();
}

#[test]
fn absent_and_silent_hosts_are_shown() {
    // The session must survive the agent's silence.
    let service = "[limits]\nheartbeat_ms = 60000".into();
    let mut lab = Lab::start(&Settings { service, ..Settings::default() });
    lab.agent.signal(Signal::SIGSTOP);
    for arguments in [["--timeout", "1"].as_slice(), &["--fix", "--timeout", "2"]] {
        let (found, exit) = doctor(&lab, arguments);
        let code = &found["findings"][0]["code"];
        assert!(has_found(exit) && code == "HOST_NOT_EXAMINED", "{found:#}");
    }
    lab.agent.signal(Signal::SIGCONT);
    lab.agent.stop();
    wait_for("the session's end", LIMIT, || {
        let (found, exit) = doctor(&lab, &[]);
        let problem = found["hosts"][0]["problem"].as_str().unwrap().to_owned();
        (has_found(exit) && problem.contains("not connected")).then_some(())
    });
    let text = String::from_utf8(lab.operator().dpuctl(&["doctor"]).stdout).unwrap();
    assert!(text.contains("HOST_NOT_CONNECTED  node-1: "), "{text}");
}

#[test]
fn only_operators_may_fix() {
    let lab = Lab::start(&Settings::default());
    let guest = lab.dpuctl_as("viewer", "guest");
    let _ = guest.output(&["doctor"]);
    let complaint = guest.is_refused(&["doctor", "--fix"]);
    assert!(complaint.contains("NOT_AUTHORISED"), "{complaint}");
}
