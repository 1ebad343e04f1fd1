//! Workloads without CNI: attached by gRPC on the agent's socket.

use std::{
    fs,
    io::{self, Read, Write},
    net::IpAddr,
    os::unix::net::UnixStream,
    path::Path,
    process::Command,
    time::Duration,
};

use e2e::{Call, FaultAction, Lab, Netns, Settings, Timeouts, netns_of, run, wait_for};
use nix::sys::signal::Signal;
use offload_proto::{
    Failure, Reason, log_event,
    workloads::{AttachRequest, NetNsAttachment},
};
use serde_json::{Value, json};
use tonic::{Code, Status};

const AGENT: &str = "host-shim-agent";
const LIMIT: Duration = Duration::from_secs(60);

/// A lab whose workloads are attached to this network.
fn lab_on(network: &str) -> Lab {
    lab_with(network, Settings::default())
}

fn lab_with(network: &str, settings: Settings) -> Lab {
    let others = format!("[workloads]\nnetwork = {network:?}\n");
    Lab::start(&Settings { timeouts: Timeouts { others, ..Timeouts::default() }, ..settings })
}

/// Addresses of an interface without link-local ones, as in `ip`.
fn addresses_of(pod: &Netns, interface: &str) -> Vec<IpAddr> {
    let link = pod.json("ip", &["address", "show", "dev", interface]).remove(0);
    let held = link["addr_info"].as_array().unwrap().iter();
    let held = held.filter(|held| held["scope"] == "global");
    held.map(|held| held["local"].as_str().unwrap().parse().unwrap()).collect()
}

#[track_caller]
fn is_refused<T: std::fmt::Debug>(answer: Result<T, Status>, code: Code, words: &[&str]) {
    let status = answer.unwrap_err();
    assert_eq!(status.code(), code, "{status:?}");
    for word in words {
        assert!(status.message().contains(word), "{word:?} is not in: {}", status.message());
    }
}

#[test]
fn workload_keeps_interface_until_detach() {
    let lab = Lab::start(&Settings::default());
    let (caller, pod) = (lab.workloads(), Netns::new("pod"));
    caller.status().unwrap();
    let reported = caller.attach(&pod, "eth0").unwrap();
    assert!(matches!(reported[..], [IpAddr::V4(_), IpAddr::V6(_)]), "{reported:?}");
    assert_eq!(addresses_of(&pod, "eth0"), reported);
    let loopback = pod.json("ip", &["link", "show", "dev", "lo"]).remove(0);
    assert!(loopback["flags"].as_array().unwrap().contains(&"UP".into()), "{loopback}");
    assert!(pod.pings("127.0.0.1"));
    lab.assert_invariants();

    let advice = Reason::WorkloadAttached.advice();
    let attached = [pod.name(), "interface eth0", "WORKLOAD_ATTACHED", advice];
    for interface in ["eth0", "net1"] {
        let again = caller.attach(&pod, interface);
        let reason = Failure::from_status(again.as_ref().unwrap_err()).unwrap().reason;
        assert_eq!(reason, Reason::WorkloadAttached);
        is_refused(again, Code::AlreadyExists, &attached);
    }
    // Workloads belong to no CNI configuration, so no GC detaches them.
    let mut gc = lab.configuration("blue");
    gc["cni.dev/valid-attachments"] = json!([]);
    lab.execute(&Call::new("GC", &gc)).nothing();
    assert_eq!(addresses_of(&pod, "eth0"), reported);
    lab.assert_invariants();

    caller.detach(pod.name(), None).unwrap();
    lab.assert_clean_slate();
    caller.detach(pod.name(), Some(netns_of(&pod, "eth0"))).unwrap();
    caller.detach("never-there", None).unwrap();
    let _ = caller.attach(&pod, "net1").unwrap();
    caller.detach(pod.name(), Some(netns_of(&pod, "eth0"))).unwrap();
    lab.assert_clean_slate();
}

#[test]
fn workload_detach_works_without_namespace() {
    let lab = Lab::start(&Settings::default());
    let (caller, pod) = (lab.workloads(), Netns::new("pod"));
    let _ = caller.attach(&pod, "eth0").unwrap();
    let (id, netns) = (pod.name().to_owned(), netns_of(&pod, "eth0"));
    drop(pod);
    for _ in 0..2 {
        caller.detach(&id, Some(netns.clone())).unwrap();
        lab.assert_clean_slate();
    }
}

#[test]
fn workloads_use_the_configured_network() {
    let lab = lab_on("green");
    let (caller, pod) = (lab.workloads(), Netns::new("pod"));
    caller.status().unwrap();
    let reported = caller.attach(&pod, "eth0").unwrap();
    assert!(reported[0].to_string().starts_with("10.2.0."), "{reported:?}");
    caller.detach(pod.name(), None).unwrap();
    lab.assert_clean_slate();
}

#[test]
fn workload_status_needs_the_named_network() {
    let lab = lab_on("later");
    let (caller, pod) = (lab.workloads(), Netns::new("pod"));
    let unknown = ["network \"later\"", "NETWORK_UNKNOWN"];
    is_refused(caller.status(), Code::Unavailable, &unknown);
    is_refused(caller.attach(&pod, "eth0"), Code::NotFound, &unknown);
    lab.status().nothing();
    apply(&lab, "later", "");
    is_refused(caller.status(), Code::Unavailable, &["no prefixes available", "later"]);
    apply(&lab, "later", r#", "subnets": [{"cidr": "10.9.0.0/24"}]"#);
    caller.status().unwrap();
    let reported = caller.attach(&pod, "eth0").unwrap();
    assert!(matches!(reported[..], [IpAddr::V4(_)]), "{reported:?}");
    caller.detach(pod.name(), None).unwrap();
    lab.assert_clean_slate();
}

#[test]
fn workload_status_needs_a_subnet() {
    let lab = lab_on("later");
    let (caller, pod) = (lab.workloads(), Netns::new("pod"));
    let bare = ["no prefixes available", "network \"later\" has no subnet"];
    apply(&lab, "later", "");
    is_refused(caller.status(), Code::Unavailable, &bare);
    let operator = lab.operator();
    let _ = operator.output(&["add", "subnet", "later", "10.9.0.0/24"]);
    caller.status().unwrap();
    let reported = caller.attach(&pod, "eth0").unwrap();
    assert!(reported[0].to_string().starts_with("10.9.0."), "{reported:?}");
    let delete = ["delete", "subnet", "later", "10.9.0.0/24"];
    let refused = operator.is_refused(&delete);
    assert!(refused.contains("LEASE_IN_THE_WAY"), "{refused}");
    assert!(refused.contains(&format!("address {} ", reported[0])), "{refused}");
    caller.detach(pod.name(), None).unwrap();
    lab.await_settled();
    let _ = operator.output(&delete);
    is_refused(caller.status(), Code::Unavailable, &bare);
    lab.assert_clean_slate();
}

/// The first network comes after its agent, its first subnet later, and more room under a running pod.
#[test]
fn late_prefixes_serve_next_pods_beside_running_ones() {
    let mut lab = lab_with("later", Settings { networks: String::new(), ..Settings::default() });
    let [first, second, third] = ["first", "second", "third"].map(Netns::new);
    let of_subnet = |cidr: &str| format!(r#", "subnets": [{{"cidr": "{cidr}"}}]"#);
    let file = lab.path().join("network.json");
    let apply_refused = |lab: &Lab, cidr: &str| {
        fs::write(&file, format!(r#"{{"name": "later"{}}}"#, of_subnet(cidr))).unwrap();
        lab.operator().is_refused(&["apply", "-f", file.to_str().unwrap()])
    };
    let attach = |lab: &Lab, pod: &Netns| lab.workloads().attach(pod, "eth0").unwrap().remove(0);
    let status = |lab: &Lab| lab.workloads().status();
    is_refused(status(&lab), Code::Unavailable, &["NETWORK_UNKNOWN"]);
    apply(&lab, "later", "");
    is_refused(status(&lab), Code::Unavailable, &["network \"later\" has no subnet"]);
    apply(&lab, "later", &of_subnet("10.9.0.0/30"));
    status(&lab).unwrap();
    let of_first = attach(&lab, &first);
    let of_second = attach(&lab, &second);
    let full = lab.workloads().attach(&third, "eth0");
    is_refused(full, Code::ResourceExhausted, &["ADDRESSES_EXHAUSTED"]);

    apply(&lab, "later", &of_subnet("10.9.0.0/24"));
    let of_third = attach(&lab, &third);
    assert!(third.pings(&of_third.to_string()), "its own address");
    let shown = [&first, &second, &third].map(|pod| addresses_of(pod, "eth0"));
    assert_eq!(shown, [of_first, of_second, of_third].map(|of| vec![of]));
    assert!(first.pings(&of_second.to_string()), "pods that ran go on");

    let refused = apply_refused(&lab, "10.9.0.0/30");
    let is_named = refused.contains("LEASE_IN_THE_WAY") && refused.contains(&of_third.to_string());
    assert!(is_named, "{refused}");
    lab.service.crash();
    lab.start_service();
    lab.wait_until_good();
    status(&lab).unwrap();
    lab.assert_invariants();
    lab.workloads().detach(third.name(), None).unwrap();
    lab.await_settled();
    apply(&lab, "later", &of_subnet("10.9.0.0/30"));
    for pod in [&first, &second] {
        lab.workloads().detach(pod.name(), None).unwrap();
    }
    lab.assert_clean_slate();
}

/// If the client omits the name, which no CNI runtime can.
#[test]
fn networks_prefix_names_first_interface() {
    let lab = lab_on("later");
    let caller = lab.workloads();
    let has = |pod: &Netns, name: &str| {
        pod.json("ip", &["link", "show"]).iter().any(|link| link["ifname"] == name)
    };
    // The agent learns about the change without a request.
    let await_name = |name: &str| {
        wait_for(&format!("a first interface {name}"), LIMIT, || {
            let pod = Netns::new("pod");
            let reported = caller.attach(&pod, "").unwrap();
            let is_named = has(&pod, name) && addresses_of(&pod, name) == reported;
            caller.detach(pod.name(), None).unwrap();
            is_named.then_some(())
        });
    };
    let say = |prefix: &str| {
        let more = r#", "subnets": [{"cidr": "10.9.0.0/24"}], "interface_prefix": "#;
        apply(&lab, "later", &format!("{more}{prefix:?}"));
    };
    say("data");
    await_name("data0");
    let (pod, other) = (Netns::new("pod"), Netns::new("other"));
    let _ = caller.attach(&pod, "").unwrap();
    let again = caller.attach(&pod, "");
    is_refused(again, Code::AlreadyExists, &["interface data0", "WORKLOAD_ATTACHED"]);
    let _ = caller.attach(&other, "wan").unwrap();
    assert!(has(&other, "wan") && !has(&other, "data0"), "who names it is heard");
    lab.assert_invariants();
    for pod in [&pod, &other] {
        caller.detach(pod.name(), None).unwrap();
    }
    say("");
    await_name("eth0");
    lab.assert_clean_slate();
}

fn apply(lab: &Lab, name: &str, more: &str) {
    let file = lab.path().join("network.json");
    fs::write(&file, format!(r#"{{"name": {name:?}{more}}}"#)).unwrap();
    let _ = lab.operator().output(&["apply", "-f", file.to_str().unwrap()]);
}

/// If no network is configured, a DPU with any network is enough: the default may come later.
#[test]
fn workload_status_needs_any_network() {
    let lab = Lab::start(&Settings { networks: String::new(), ..Settings::default() });
    let caller = lab.workloads();
    is_refused(caller.status(), Code::Unavailable, &["no network", "NETWORK_UNKNOWN"]);
    lab.status().nothing();
    apply(&lab, "bare", "");
    is_refused(caller.status(), Code::Unavailable, &["no prefixes available"]);
    apply(&lab, "red", r#", "subnets": [{"cidr": "10.9.0.0/24"}]"#);
    caller.status().unwrap();
    is_refused(caller.attach(&Netns::new("pod"), "eth0"), Code::NotFound, &["NETWORK_UNKNOWN"]);
    lab.assert_clean_slate();
}

#[test]
fn invalid_workload_requests_are_refused() {
    let lab = Lab::start(&Settings::default());
    let (caller, pod) = (lab.workloads(), Netns::new("pod"));
    let asked = |id: &str, path: &str, name: &str| AttachRequest {
        workload_id: id.into(),
        netns: Some(NetNsAttachment { netns_path: path.into(), if_name: name.into() }),
    };
    let path = pod.path();
    let (path, long) = (path.to_str().unwrap(), "a".repeat(300));
    let (file, own) = (lab.path().join("host-shim.toml"), lab.card.host.path());
    for (request, words) in [
        (asked("", path, "eth0"), ["workload_id", "INVALID_REQUEST"]),
        (asked(&long, path, "eth0"), ["of 300 bytes", "INVALID_REQUEST"]),
        (asked("a/../b", path, "eth0"), ["a/../b", "INVALID_REQUEST"]),
        (asked("host-port", path, "offload0"), ["host-port", "INVALID_REQUEST"]),
        (asked("a", path, "sixteen-letters-"), ["sixteen-letters-", "INVALID_REQUEST"]),
        (asked("a", path, "lo"), ["loopback", "INVALID_REQUEST"]),
        (asked("a", "", "eth0"), ["netns_path", "NETNS_INVALID"]),
        (asked("a", "/run/netns/none", "eth0"), ["/run/netns/none", "NETNS_INVALID"]),
        (asked("a", &"/x".repeat(50_000), "eth0"), ["/x", "NETNS_INVALID"]),
        (asked("a", file.to_str().unwrap(), "eth0"), ["host-shim.toml", "NETNS_INVALID"]),
        (asked("a", own.to_str().unwrap(), "eth0"), ["the host's own", "NETNS_INVALID"]),
        (AttachRequest { workload_id: "a".into(), netns: None }, ["netns is", "INVALID_REQUEST"]),
    ] {
        is_refused(caller.attach_by(request), Code::InvalidArgument, &words);
    }
    is_refused(caller.detach("a b", None), Code::InvalidArgument, &["a b", "INVALID_REQUEST"]);
    is_refused(caller.detach("host-port", None), Code::InvalidArgument, &["host-port"]);
    // 10 MB, and slightly more than the limit.
    for length in [10 << 20, 1 << 20] {
        let request = asked(&"a".repeat(length), path, "eth0");
        is_refused(caller.attach_by(request), Code::OutOfRange, &["too large"]);
    }
    caller.status().unwrap();
    lab.assert_clean_slate();
}

#[test]
fn unknown_protocol_is_disconnected() {
    let lab = Lab::start(&Settings::default());
    for beginning in [
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nnonsense that is no frame",
        "POST / HTTP/1.1\r\n\r\n",
        "P",
    ] {
        let mut caller = UnixStream::connect(lab.socket()).unwrap();
        caller.set_read_timeout(Some(LIMIT)).unwrap();
        caller.write_all(beginning.as_bytes()).unwrap();
        let ended = caller.read_to_end(&mut Vec::new());
        let is_reset = |error: &io::Error| error.kind() == io::ErrorKind::ConnectionReset;
        assert!(ended.is_ok() || ended.as_ref().is_err_and(is_reset), "{beginning:?}: {ended:?}");
    }
    lab.workloads().status().unwrap();
    lab.status().nothing();
}

#[test]
fn concurrent_workload_calls_attach_once() {
    let lab = Lab::start(&Settings::default());
    let (caller, pod) = (lab.workloads(), Netns::new("pod"));
    let calls: Vec<_> = (0..8).map(|_| caller.begin_attach(&pod, "eth0")).collect();
    let answers: Vec<_> = calls.into_iter().map(|call| call.end(&caller)).collect();
    let (good, refused): (Vec<_>, Vec<_>) = answers.into_iter().partition(Result::is_ok);
    assert_eq!(good.len(), 1, "{good:?}");
    for answer in refused {
        is_refused(answer, Code::AlreadyExists, &["WORKLOAD_ATTACHED"]);
    }
    lab.assert_invariants();
    caller.detach(pod.name(), None).unwrap();
    lab.assert_clean_slate();
}

#[test]
fn workload_attaches_are_bounded() {
    let lab = Lab::start(&Settings::default());
    let caller = lab.workloads();
    let pods = [(); 5].map(|()| Netns::new("pod"));
    let calls: Vec<_> = pods.iter().map(|pod| caller.begin_attach(pod, "eth0")).collect();
    let answers: Vec<_> = calls.into_iter().map(|call| call.end(&caller)).collect();
    let (good, refused): (Vec<_>, Vec<_>) = answers.into_iter().partition(Result::is_ok);
    assert_eq!(good.len(), 4, "{good:?}");
    for answer in refused {
        is_refused(answer, Code::ResourceExhausted, &["VFS_EXHAUSTED"]);
    }
    caller.status().unwrap();
    lab.assert_invariants();
    for pod in &pods {
        caller.detach(pod.name(), None).unwrap();
    }
    lab.assert_clean_slate();
}

/// A heartbeat of 60 s: the session survives while the service is suspended.
fn lab_to_suspend() -> Lab {
    let service = "[limits]\nheartbeat_ms = 60000".into();
    Lab::start(&Settings { service, ..Settings::default() })
}

/// Starts a call while the service is suspended, and waits until the request is sent.
fn begin<T>(lab: &Lab, begin: impl FnOnce() -> T) -> T {
    let before = unread(lab);
    let begun = begin();
    wait_for("the DPU to be asked", LIMIT, || (unread(lab) > before).then_some(()));
    begun
}

/// Bytes that the service has not read.
fn unread(lab: &Lab) -> u64 {
    let sockets = ["-H", "-t", "-n", "state", "established", "sport", "=", ":7443"];
    let listed = run(lab.card.dpu.command("ss").args(sockets));
    assert!(listed.status.success(), "{listed:?}");
    let text = String::from_utf8(listed.stdout).unwrap();
    text.lines().map(|line| line.split_whitespace().next().unwrap().parse::<u64>().unwrap()).sum()
}

fn wait_until_undone(lab: &Lab) {
    let is_reported = || lab.agent.log().contains(Reason::DeadlineExceeded.as_str()).then_some(());
    wait_for("the end of the call", LIMIT, is_reported);
}

#[test]
fn cancelled_workload_call_leaves_nothing() {
    let lab = lab_to_suspend();
    let (caller, pod) = (lab.workloads(), Netns::new("pod"));
    lab.service.signal(Signal::SIGSTOP);
    begin(&lab, || caller.begin_attach(&pod, "eth0")).take_back();
    wait_until_undone(&lab);
    lab.service.signal(Signal::SIGCONT);
    lab.wait_until_good();
    lab.assert_clean_slate();
}

#[test]
fn dead_workload_client_leaves_nothing() {
    let lab = lab_to_suspend();
    let (caller, pod) = (lab.workloads(), Netns::new("pod"));
    lab.service.signal(Signal::SIGSTOP);
    let _call = begin(&lab, || caller.begin_attach(&pod, "eth0"));
    caller.end();
    wait_until_undone(&lab);
    lab.service.signal(Signal::SIGCONT);
    lab.wait_until_good();
    lab.assert_clean_slate();
}

#[test]
fn repeat_after_cancel_attaches_workload() {
    let lab = lab_to_suspend();
    let (caller, pod) = (lab.workloads(), Netns::new("pod"));
    lab.service.signal(Signal::SIGSTOP);
    let first = begin(&lab, || caller.begin_attach(&pod, "eth0"));
    let repeat = caller.begin_attach(&pod, "eth0");
    first.take_back();
    wait_until_undone(&lab);
    lab.service.signal(Signal::SIGCONT);
    assert_eq!(repeat.end(&caller).unwrap(), addresses_of(&pod, "eth0"));
    lab.assert_invariants();
    caller.detach(pod.name(), None).unwrap();
    lab.assert_clean_slate();
}

/// The next agent or service knows what its predecessor has done.
fn a_workload_outlives(restart: impl FnOnce(&mut Lab)) {
    let mut lab = Lab::start(&Settings::default());
    let (caller, pod) = (lab.workloads(), Netns::new("pod"));
    let reported = caller.attach(&pod, "eth0").unwrap();
    restart(&mut lab);
    lab.wait_until_good();
    assert_eq!(addresses_of(&pod, "eth0"), reported);
    lab.assert_invariants();
    is_refused(caller.attach(&pod, "eth0"), Code::AlreadyExists, &["WORKLOAD_ATTACHED"]);
    caller.detach(pod.name(), None).unwrap();
    lab.assert_clean_slate();
}

#[test]
fn workload_survives_agent_restart() {
    a_workload_outlives(|lab| {
        lab.agent.stop();
        lab.start_agent();
    });
    a_workload_outlives(|lab| {
        lab.agent.signal(Signal::SIGKILL);
        lab.agent_ends();
        lab.start_agent();
    });
}

#[test]
fn workload_survives_service_restart() {
    a_workload_outlives(|lab| {
        lab.service.signal(Signal::SIGKILL);
        lab.service_ends();
        lab.start_service();
    });
}

#[test]
fn killed_agent_undoes_workload_attach() {
    let mut lab = Lab::start(&Settings { cool_down: 0, ..Settings::default() });
    let caller = lab.workloads();
    for point in
        ["attach-answered", "attach-recorded", "move-in", "attach-done", "attach-committed"]
    {
        let pod = Netns::new("pod");
        let armed = lab.arm(AGENT, FaultAction::Kill, point);
        let unanswered = caller.attach(&pod, "eth0").unwrap_err();
        assert!(!armed.exists(), "{point} was not passed: {unanswered:?}");
        lab.agent_ends();
        lab.start_agent();
        lab.wait_until_good();
        if point == "attach-committed" {
            is_refused(caller.attach(&pod, "eth0"), Code::AlreadyExists, &["WORKLOAD_ATTACHED"]);
        } else {
            lab.assert_clean_slate();
            let _ = caller.attach(&pod, "eth0").unwrap();
        }
        caller.detach(pod.name(), None).unwrap();
        lab.assert_clean_slate();
    }
}

/// An idle client does not delay the end.
#[test]
fn stopping_agent_answers_open_calls() {
    let mut lab = lab_to_suspend();
    let (caller, idle, pod) = (lab.workloads(), lab.workloads(), Netns::new("pod"));
    idle.status().unwrap();
    lab.service.signal(Signal::SIGSTOP);
    let call = begin(&lab, || caller.begin_attach(&pod, "eth0"));
    lab.agent.signal(Signal::SIGTERM);
    lab.service.signal(Signal::SIGCONT);
    let reported = call.end(&caller).unwrap();
    assert!(lab.agent_ends().success());
    let events = [log_event::SESSION_OPENED, log_event::WORK_LEFT];
    assert_eq!(events.map(|event| lab.agent.events(event)), [1, 0], "{}", lab.agent.log());
    assert_eq!(addresses_of(&pod, "eth0"), reported);
    lab.start_agent();
    lab.wait_until_good();
    idle.detach(pod.name(), None).unwrap();
    lab.assert_clean_slate();
}

/// Clients of different gRPC versions send different authorities for the socket.
#[test]
fn grpc_library_client_attaches_and_detaches() {
    let lab = Lab::start(&Settings::default());
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut protoc = Command::new("protoc");
    protoc.current_dir(root.join("proto")).arg("--python_out").arg(lab.path());
    let made = run(protoc.arg("metropolis/workloads.proto"));
    assert!(made.status.success(), "{made:?}");
    for authority in ["", "/run/dpu-offload/agent.sock", "%2Frun%2Fdpu-offload%2Fagent.sock"] {
        let pod = Netns::new("pod");
        // Debian's Python, which has the library.
        let mut client = Command::new("/usr/bin/python3");
        client.arg(root.join("tests/fixtures/workloads.py")).args([lab.path(), &lab.socket()]);
        let output = run(client.arg(pod.name()).arg(pod.path()).arg(authority));
        assert!(output.status.success(), "{output:?}");
        let reported: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(
            (&reported["status"], &reported["refused"]),
            (&Value::Null, &Value::Null),
            "{reported}"
        );
        assert_eq!(reported["ip"].as_array().unwrap().len(), 2, "{reported}");
        assert_eq!(reported["again"][0], "ALREADY_EXISTS");
        assert!(reported["again"][1].as_str().unwrap().contains("WORKLOAD_ATTACHED"), "{reported}");
        assert_eq!(reported["detached"], json!([null, null]));
        lab.assert_clean_slate();
    }
}
