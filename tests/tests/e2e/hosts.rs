//! Two hosts on one DPU, each with its own certificate, card and agent.

use std::{fs, thread, time::Duration};

use e2e::{Agent, Call, DpuPlan, Fleet, Netns, Settings, scenarios::pods::addresses, wait_for};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

const LIMIT: Duration = Duration::from_secs(60);
const NEXT_BOOT: &str = "7d0c4ae0-0000-4000-8000-000000000002\n";

/// node-1 and node-2 with four VFs each.
fn two_hosts() -> Fleet {
    two_hosts_with(Settings::default())
}

fn two_hosts_with(settings: Settings) -> Fleet {
    Fleet::start(&[DpuPlan { name: "dpu-1", hosts: vec!["node-1", "node-2"], settings }])
}

/// IDs of a host's attachments, sorted.
fn ids_of(fleet: &Fleet, host: &str) -> Vec<String> {
    let attachments = fleet.operator(0).get("attachments");
    let own = attachments.iter().filter(|attachment| attachment["host"] == host);
    let mut ids: Vec<_> = own.map(|a| a["id"].as_str().unwrap().to_owned()).collect();
    ids.sort();
    ids
}

/// A pod of each host.
struct Pods {
    a: Netns,
    b: Netns,
    addresses: [Vec<String>; 2],
}

impl Pods {
    fn attach(fleet: &Fleet) -> Self {
        let (a, b) = (Netns::new("a"), Netns::new("b"));
        let added = |agent: &Agent, pod| addresses(&agent.add("blue", pod, "eth0").result());
        let addresses = [added(&fleet.agents[0], &a), added(&fleet.agents[1], &b)];
        let pods = Self { a, b, addresses };
        pods.assert_reach();
        fleet.assert_invariants();
        pods
    }

    /// In both families and directions.
    fn reach(&self) -> bool {
        let [of_a, of_b] = &self.addresses;
        of_b.iter().all(|to| self.a.pings(to)) && of_a.iter().all(|to| self.b.pings(to))
    }

    fn assert_reach(&self) {
        assert!(self.reach(), "{} and {} don't reach each other", self.a.name(), self.b.name());
    }

    fn detach(&self, fleet: &Fleet) {
        fleet.agents[0].del("blue", &self.a, "eth0").nothing();
        fleet.agents[1].del("blue", &self.b, "eth0").nothing();
        fleet.assert_clean_slate();
    }
}

#[test]
fn pods_of_two_hosts_ping_each_other() {
    let fleet = two_hosts();
    let pods = Pods::attach(&fleet);
    let attachments = fleet.operator(0).get("attachments");
    for (pod, host, controller) in [(&pods.a, "node-1", 0), (&pods.b, "node-2", 1)] {
        let own = attachments.iter().find(|a| a["key"]["containerId"] == pod.name()).unwrap();
        assert_eq!((&own["host"], &own["vf"]["controller"]), (&json!(host), &json!(controller)));
    }
    let found = fleet.operator(0).output(&["doctor", "-o", "json"]);
    let found: Value = serde_json::from_str(&found).unwrap();
    assert_eq!(found["hosts"].as_array().map(Vec::len), Some(2), "{found}");
    assert_eq!(found["findings"], json!([]), "{found}");
    pods.detach(&fleet);
}

#[test]
fn same_container_id_on_two_hosts_is_distinct() {
    let fleet = two_hosts();
    let pods = [Netns::new("a"), Netns::new("b")];
    let call = |verb: &str, host: usize, previous: Option<&Value>| {
        let agent = &fleet.agents[host];
        let mut configuration = agent.configuration("blue");
        if let Some(previous) = previous {
            configuration["prevResult"] = previous.clone();
        }
        let call = Call::new(verb, &configuration);
        agent.execute(&call.of("c0ffee", Some(&pods[host].path()), "eth0"))
    };
    let results = [0, 1].map(|host| call("ADD", host, None).result());
    assert_ne!(results[0]["ips"], results[1]["ips"]);
    let all_of = |host| ids_of(&fleet, host);
    let (of_first, of_second) = (all_of("node-1"), all_of("node-2"));
    assert_eq!((of_first.len(), of_second.len()), (1, 1));
    for (host, result) in results.iter().enumerate() {
        call("CHECK", host, Some(result)).nothing();
    }

    call("DEL", 0, None).nothing();
    let is_given_back = || all_of("node-1").is_empty().then_some(());
    wait_for("the end of the first one", LIMIT, is_given_back);
    assert_eq!(all_of("node-2"), of_second);
    call("CHECK", 1, Some(&results[1])).nothing();
    call("CHECK", 0, Some(&results[0])).fails(120, &["ATTACHMENT_UNKNOWN"]);
    call("DEL", 1, None).nothing();
    fleet.assert_clean_slate();
}

#[test]
fn host_cannot_touch_other_hosts_attachments() {
    let fleet = two_hosts();
    let pods = Pods::attach(&fleet);
    let before = ids_of(&fleet, "node-2");
    let first = &fleet.agents[0];
    first.del("blue", &pods.b, "eth0").nothing();
    let mut configuration = first.configuration("blue");
    configuration["prevResult"] = fleet.agents[1].add("blue", &pods.b, "eth0").result();
    let check = Call::new("CHECK", &configuration);
    first
        .execute(&check.of(pods.b.name(), Some(&pods.b.path()), "eth0"))
        .fails(120, &["ATTACHMENT_UNKNOWN"]);
    let mut configuration = first.configuration("blue");
    configuration["cni.dev/valid-attachments"] = json!([]);
    first.execute(&Call::new("GC", &configuration)).nothing();
    assert_eq!(ids_of(&fleet, "node-1"), Vec::<String>::new());
    assert_eq!(ids_of(&fleet, "node-2"), before);
    fleet.assert_invariants();
    pods.detach(&fleet);
}

#[test]
fn host_gets_only_its_own_vfs() {
    let fleet = two_hosts_with(Settings { cool_down: 0, ..Settings::with_vfs(2) });
    let (first, second) = (&fleet.agents[0], &fleet.agents[1]);
    let of_second = second.card.clean().keys().next().unwrap();
    let mut configuration = first.configuration("blue");
    configuration["runtimeConfig"] = json!({ "deviceID": of_second });
    let pod = Netns::new("pod");
    let add = Call::new("ADD", &configuration).of(pod.name(), Some(&pod.path()), "eth0");
    first.execute(&add).fails(107, &[of_second]);
    for interface in ["eth0", "eth1"] {
        let _ = first.add("blue", &pod, interface).result();
    }
    first.add("blue", &pod, "eth2").fails(102, &["default"]);
    first.status().nothing();
    fleet.assert_invariants();
    let other = Netns::new("other");
    let _ = second.add("blue", &other, "eth0").result();
    fleet.assert_invariants();
    for interface in ["eth0", "eth1"] {
        first.del("blue", &pod, interface).nothing();
    }
    second.del("blue", &other, "eth0").nothing();
    fleet.assert_clean_slate();
}

/// DEL is answered before the DPU has the pod's resources on the first host back.
#[test]
fn moved_pod_keeps_its_addresses() {
    let fleet = two_hosts_with(Settings { proxied: true, ..Settings::default() });
    fleet.agents[0].proxy().delay(Duration::from_millis(50));
    let pod = Netns::new("pod");
    for agent in fleet.agents.iter().cycle().take(6) {
        let mut configuration = agent.configuration("blue");
        configuration["runtimeConfig"] =
            json!({ "ips": ["10.1.200.7/16"], "mac": "02:50:a4:00:00:07" });
        let call = |verb| Call::new(verb, &configuration).of(pod.name(), Some(&pod.path()), "eth0");
        let added = agent.execute(&call("ADD")).result();
        assert_eq!(addresses(&added)[0], "10.1.200.7");
        assert_eq!(pod.json("ip", &["link", "show", "eth0"])[0]["address"], "02:50:a4:00:00:07");
        agent.execute(&call("DEL")).nothing();
    }
    fleet.assert_clean_slate();
}

#[test]
fn two_hosts_attach_and_detach_at_once() {
    const PODS: usize = 4;
    let fleet = two_hosts();
    let pods: Vec<_> = (0..2 * PODS).map(|_| Netns::new("pod")).collect();
    let at_once = |work: &(dyn Fn(&Agent, &Netns) + Sync)| {
        thread::scope(|scope| {
            for (number, pod) in pods.iter().enumerate() {
                let agent = &fleet.agents[number % 2];
                scope.spawn(move || work(agent, pod));
            }
        });
    };
    at_once(&|agent, pod| drop(agent.add("blue", pod, "eth0").result()));
    assert_eq!(ids_of(&fleet, "node-1").len(), PODS);
    assert_eq!(ids_of(&fleet, "node-2").len(), PODS);
    fleet.assert_invariants();
    at_once(&|agent, pod| agent.del("blue", pod, "eth0").nothing());
    fleet.assert_clean_slate();
}

#[test]
fn dead_agent_does_not_affect_other_host() {
    let mut fleet = two_hosts();
    let pods = Pods::attach(&fleet);
    let before = ids_of(&fleet, "node-2");
    fleet.agents[1].program.crash();
    fleet.agents[1].status().fails(50, &["AGENT_UNREACHABLE"]);
    pods.assert_reach();
    let first = &fleet.agents[0];
    first.status().nothing();
    let another = Netns::new("another");
    let _ = first.add("blue", &another, "eth0").result();
    first.del("blue", &another, "eth0").nothing();
    assert_eq!(ids_of(&fleet, "node-2"), before);

    fleet.agents[1].start();
    fleet.wait_until_good();
    fleet.assert_invariants();
    assert_eq!(ids_of(&fleet, "node-2"), before);
    pods.detach(&fleet);
}

#[test]
fn rebooted_host_releases_only_its_attachments() {
    let mut fleet = two_hosts();
    let pods = Pods::attach(&fleet);
    let before = ids_of(&fleet, "node-1");
    let rebooting = &mut fleet.agents[1];
    rebooting.program.crash();
    let Pods { a, b, addresses } = pods;
    drop(b);
    rebooting.new_boot_id(NEXT_BOOT);
    rebooting.start();
    fleet.wait_until_good();
    wait_for("the earlier boot's attachment to be released", LIMIT, || {
        ids_of(&fleet, "node-2").is_empty().then_some(())
    });
    assert_eq!(ids_of(&fleet, "node-1"), before);
    fleet.assert_invariants();
    let b = Netns::new("b");
    let _ = fleet.agents[1].add("blue", &b, "eth0").result();
    assert!(addresses[0].iter().all(|address| b.pings(address)), "{addresses:?}");
    fleet.agents[1].del("blue", &b, "eth0").nothing();
    fleet.agents[0].del("blue", &a, "eth0").nothing();
    fleet.assert_clean_slate();
}

#[test]
fn lost_host_records_keep_pods_connected() {
    let mut fleet = two_hosts();
    let pods = Pods::attach(&fleet);
    let before = [ids_of(&fleet, "node-1"), ids_of(&fleet, "node-2")];
    let forgetful = &mut fleet.agents[1];
    forgetful.program.crash();
    forgetful.lose_records();
    forgetful.start();
    fleet.wait_until_good();
    pods.assert_reach();
    assert_eq!([ids_of(&fleet, "node-1"), ids_of(&fleet, "node-2")], before);
    fleet.agents[1].del("blue", &pods.b, "eth0").nothing();
    wait_for("its attachment to be released", LIMIT, || {
        ids_of(&fleet, "node-2").is_empty().then_some(())
    });
    assert_eq!(ids_of(&fleet, "node-1"), before[0]);
    fleet.agents[0].del("blue", &pods.a, "eth0").nothing();
    wait_for("the other one's end", LIMIT, || ids_of(&fleet, "node-1").is_empty().then_some(()));
}

#[test]
fn card_reset_does_not_affect_other_host() {
    let mut fleet = two_hosts();
    let pods = Pods::attach(&fleet);
    let index = |pod: &Netns| pod.json("ip", &["link", "show", "eth0"])[0]["ifindex"].clone();
    let before = index(&pods.a);
    fleet.agents[1].reset_card();
    wait_for("the pods to reach each other again", LIMIT, || pods.reach().then_some(()));
    assert_eq!(index(&pods.a), before, "it was not reset");
    fleet.wait_until_good();
    fleet.assert_invariants();
    pods.detach(&fleet);
}

/// Restarted below both hosts, the service keeps the attachments of each.
#[test]
fn killed_service_keeps_both_hosts_attachments() {
    let mut fleet = two_hosts();
    let pods = Pods::attach(&fleet);
    let before = [ids_of(&fleet, "node-1"), ids_of(&fleet, "node-2")];
    fleet.dpus[0].service.crash();
    pods.assert_reach();
    fleet.dpus[0].start();
    fleet.wait_until_good();
    fleet.assert_invariants();
    assert_eq!([ids_of(&fleet, "node-1"), ids_of(&fleet, "node-2")], before);
    pods.assert_reach();
    pods.detach(&fleet);
}

/// Writes the service's configuration atomically and reloads it.
fn reload(fleet: &Fleet, text: &str) {
    let file = fleet.path().join("dpu-1/dpu-service.toml");
    let new = file.with_extension("new");
    fs::write(&new, text).unwrap();
    fs::rename(new, file).unwrap();
    fleet.dpus[0].service.signal(Signal::SIGHUP);
}

#[test]
fn removed_host_keeps_running_pods() {
    let fleet = two_hosts();
    let pods = Pods::attach(&fleet);
    let ids = ids_of(&fleet, "node-2");
    let file = fs::read_to_string(fleet.path().join("dpu-1/dpu-service.toml")).unwrap();
    let begin = file.find("[[host]]\nname = \"node-2\"").unwrap();
    let end = begin + 1 + file[begin + 1..].find("[[").unwrap();
    // A pool still selects the host's PF.
    reload(&fleet, &[&file[..begin], &file[end..]].concat());
    let state = |id: &str| {
        let all = fleet.operator(0).get("attachments");
        all.iter().find(|one| one["id"] == *id).map(|one| one["state"].clone())
    };
    let removed = json!("ATTACHMENT_STATE_HOST_REMOVED");
    wait_for("the host's end", LIMIT, || (state(&ids[0]) == Some(removed.clone())).then_some(()));
    assert!(fleet.operator(0).output(&["get", "attachments"]).contains("HostRemoved"));
    let another = Netns::new("another");
    assert!(!fleet.agents[1].call("ADD", "blue", &another, "eth0").status.success());
    pods.assert_reach();

    let release = ["release", "--host", "node-2", "--reason", "gone", "--yes"];
    let released = fleet.operator(0).output(&release);
    assert_eq!(released, format!("attachment/{} released\n", ids[0]));
    assert_eq!(ids_of(&fleet, "node-2"), Vec::<String>::new());
    assert!(!pods.reach(), "it is programmed still");
    assert_eq!(ids_of(&fleet, "node-1").len(), 1);

    reload(&fleet, &file);
    fleet.wait_until_good();
    let _ = fleet.agents[1].add("blue", &another, "eth0").result();
    fleet.agents[1].del("blue", &another, "eth0").nothing();
    pods.detach(&fleet);
}
