//! The report on the host, the DPU's view of refused peers, and the archive for a bug report.

use std::{collections::BTreeMap, fs, process::Command, process::Output, time::Duration};

use e2e::{FabricKind, Lab, Netns, Settings, program, run, wait_for};
use mtls::Role;
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::gateway;

const DPU: &str = "192.168.100.2:7443";
const LIMIT: Duration = Duration::from_secs(60);

/// `host-shim-agent status` with these arguments, on the lab's host.
fn agent_status(lab: &Lab, arguments: &[&str]) -> Output {
    let mut command = lab.card.host.command(program("host-shim-agent").to_str().unwrap());
    run(command.arg("status").arg("--socket").arg(lab.socket()).args(arguments))
}

/// The report as JSON, and its exit code.
fn report(lab: &Lab) -> (Value, Option<i32>) {
    let output = agent_status(lab, &["-o", "json"]);
    let report = serde_json::from_slice(&output.stdout);
    (report.unwrap_or_else(|error| panic!("{error}: {output:?}")), output.status.code())
}

/// Connects to the DPU from the host with `openssl` and these arguments.
fn openssl(lab: &Lab, arguments: &[&str]) {
    let mut command = lab.card.host.command("openssl");
    command.args(["s_client", "-connect", DPU, "-alpn", "h2", "-ign_eof", "-CAfile"]);
    let _ = run(command.arg(lab.pki.ca()).args(arguments));
}

#[test]
fn agent_status_shows_session_certificate_vfs_and_pods() {
    let lab = Lab::start(&Settings::default());
    let pod = Netns::new("pod");
    let _ = lab.add("blue", &pod, "eth0").result();
    let (found, exit) = report(&lab);
    assert_eq!((&found["session"]["connected"], exit), (&true.into(), Some(0)), "{found:#}");
    let certificate = &found["certificate"];
    assert!(certificate["identity"].as_str().unwrap().ends_with("/host/node-1"), "{found:#}");
    let states: Vec<_> = found["vfs"].as_array().unwrap().iter().map(|vf| &vf["state"]).collect();
    assert_eq!(states.iter().filter(|state| **state == "held").count(), 1, "{found:#}");
    assert_eq!((states.len(), found["pods"].as_array().unwrap().len()), (4, 1));
    let reported = &found["pods"][0];
    assert_eq!((&reported["interface"], &reported["network"]), (&"eth0".into(), &"blue".into()));
    assert_eq!(reported["attachment"], lab.operator().get("attachments")[0]["id"]);
    let text = String::from_utf8(agent_status(&lab, &[]).stdout).unwrap();
    assert!(text.contains("Session:          connected since 20"), "{text}");
    assert!(text.contains("10.1."), "{text}");
}

#[test]
fn agent_status_lists_containers_with_vfs() {
    let mut lab = Lab::start(&Settings::default());
    let listed = || {
        let output = agent_status(&lab, &["-o", "containers"]);
        (String::from_utf8(output.stdout).unwrap(), output.status.code())
    };
    assert_eq!(listed(), (String::new(), Some(0)));
    let pod = Netns::new("pod");
    let _ = lab.add("blue", &pod, "eth0").result();
    assert_eq!(listed(), (format!("{}\n", pod.name()), Some(0)));
    lab.agent.stop();
    let output = agent_status(&lab, &["-o", "containers"]);
    assert!(output.stdout.is_empty() && output.status.code() == Some(3), "{output:?}");
}

#[test]
fn agent_status_says_why_there_is_no_session() {
    let mut lab = Lab::start(&Settings::default());
    lab.service.stop();
    wait_for("an agent without a session", LIMIT, || {
        let (found, exit) = report(&lab);
        // The first report says that the service is stopping.
        let session = &found["session"];
        let is_gone = session["connected"] == false && session["code"] == "DPU_UNREACHABLE";
        (is_gone && exit == Some(5)).then_some(())
    });
    lab.agent.stop();
    let output = agent_status(&lab, &[]);
    let reported = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(3), "{reported}");
    assert!(reported.contains(lab.socket().to_str().unwrap()), "{reported}");
}

#[test]
fn agent_status_shows_refused_adds() {
    let lab = Lab::start(&Settings::with_vfs(1));
    let (pod, other) = (Netns::new("pod"), Netns::new("other"));
    let _ = lab.add("blue", &pod, "eth0").result();
    let _ = lab.add("blue", &other, "eth0").error();
    let (found, exit) = report(&lab);
    let latest = found["failures"].as_array().unwrap().last().unwrap();
    assert_eq!((&latest["verb"], &latest["code"]), (&"ADD".into(), &"VFS_EXHAUSTED".into()));
    assert!(latest["subject"].as_str().unwrap().contains(other.name()), "{found:#}");
    assert!(exit == Some(5) && found["problems"][0].as_str().unwrap().contains("VFS_EXHAUSTED"));
}

#[test]
fn refused_reload_of_an_agent_is_shown() {
    let lab = Lab::start(&Settings::default());
    let path = lab.path().join("host-shim.toml");
    let text = fs::read_to_string(&path).unwrap();
    let reload = |text: String| {
        fs::write(&path, text).unwrap();
        lab.agent.signal(Signal::SIGHUP);
    };
    let fault = || lab.operator().fault("HOST_CONFIGURATION_REFUSED");
    reload(format!("{text}\n[nonsense]\n"));
    let fault_shown = wait_for("the condition", LIMIT, fault);
    assert!(fault_shown["message"].as_str().unwrap().contains("nonsense"), "{fault_shown}");
    let (found, exit) = report(&lab);
    let problem = found["problems"][0].as_str().unwrap();
    assert!(problem.contains("host-shim.toml is not in force"), "{found:#}");
    assert!(exit == Some(5) && problem.contains("nonsense"), "{found:#}");
    reload(text);
    wait_for("the condition's end", LIMIT, || fault().is_none().then_some(()));
    let (found, exit) = report(&lab);
    assert_eq!((exit, found["problems"].as_array().unwrap().len()), (Some(0), 0), "{found:#}");
}

#[test]
fn agent_status_shows_pods_unknown_to_the_dpu() {
    let mut lab = Lab::start(&Settings::default());
    let pod = Netns::new("pod");
    let _ = lab.add("blue", &pod, "eth0").result();
    lab.lose_journal();
    wait_for("the pod's problem", LIMIT, || {
        let (found, exit) = report(&lab);
        let problem = found["pods"][0]["problem"].as_str()?;
        (exit == Some(5) && problem.contains("no record")).then_some(())
    });
}

#[test]
fn dpu_shows_why_a_hosts_connection_was_refused() {
    let lab = Lab::start(&Settings::default());
    let host = || lab.operator().json(&["status"])["hosts"][0].clone();
    assert_eq!((&host()["address"], &host()["refusal"]), (&"192.168.100.1".into(), &"".into()));
    lab.pki.expire(Role::Host, "node-1");
    let (certificate, key) = (lab.pki.certificate("host", "node-1"), lab.pki.key("host", "node-1"));
    openssl(&lab, &["-cert", certificate.to_str().unwrap(), "-key", key.to_str().unwrap()]);
    let refused = || host()["refusal"].as_str().unwrap().contains("expired").then_some(());
    wait_for("the refusal", LIMIT, refused);
    let described = lab.operator().output(&["describe", "host", "node-1"]);
    assert!(described.lines().any(|line| line.starts_with("Refused:") && line.contains("expired")));
}

#[test]
fn dpu_shows_why_a_hosts_hello_was_refused() {
    let mut lab = Lab::start(&Settings::default());
    let path = lab.path().join("dpu-service.toml");
    let text = fs::read_to_string(&path).unwrap();
    let others = "pfs = [\"p9\"]\n\n[[host]]\nname = \"other\"\npfs = [\"p0\"]\n";
    fs::write(&path, text.replacen("pfs = [\"p0\"]\n", others, 1)).unwrap();
    assert!(lab.service.stop().success());
    lab.start_service();
    let wait = ["status", "--wait", "JournalWritable", "--timeout", "60"];
    assert!(lab.operator().dpuctl(&wait).status.success());
    let host = || lab.operator().json(&["status"])["hosts"][0].clone();
    let is_refused = || (!host()["refusal"].as_str()?.is_empty()).then_some(());
    wait_for("the refusal", LIMIT, is_refused);
    assert_eq!(host()["connected"], false);
    let event = || {
        let events = lab.operator().output(&["events", "--object", "node-1"]);
        events.contains("HostRefused").then_some(())
    };
    wait_for("the event", LIMIT, event);
}

#[test]
fn dpu_shows_refused_peers_that_are_no_hosts() {
    let lab = Lab::start(&Settings::default());
    assert!(!lab.operator().output(&["status"]).contains("Refused peers"));
    openssl(&lab, &["-tls1_3"]);
    let peers = || lab.operator().json(&["status"])["refusedPeers"].clone();
    let is_listed = || (peers()[0]["address"] == "192.168.100.1").then_some(());
    wait_for("a refused peer", LIMIT, is_listed);
    assert!(peers()[0]["reason"].as_str().unwrap().contains("no certificate"), "{:#}", peers());
    let described = lab.operator().output(&["describe", "dpu"]);
    assert!(described.contains("no certificate was presented"), "{described}");
    let events = lab.operator().output(&["events", "--type", "PeerRefused"]);
    assert!(events.contains("192.168.100.1") && events.contains("no certificate"), "{events}");
}

/// Files of an archive, from `tar`.
fn unpacked(archive: &str) -> BTreeMap<String, String> {
    let tar = |arguments: &[&str]| {
        let output = run(Command::new("tar").args(arguments));
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let names = tar(&["-tzf", archive]);
    names.lines().map(|name| (name.to_owned(), tar(&["-xzOf", archive, name]))).collect()
}

#[test]
fn bundle_holds_no_keys_and_no_tokens() {
    let settings = Settings::default();
    let networks = format!("# Bearer s3cret-t0ken\n{}", settings.networks);
    let lab = Lab::start(&Settings { networks, ..settings });
    let pod = Netns::new("pod");
    let _ = lab.add("blue", &pod, "eth0").result();
    let archive = lab.path().join("report.tar.gz");
    let archive = archive.to_str().unwrap();
    let _ = lab.operator().output(&["bundle", "-o", archive]);
    let files = unpacked(archive);
    assert!(!files.contains_key("failures.txt"), "{:?}", files.get("failures.txt"));
    assert!(files["configuration.toml"].contains("blue"), "{}", files["configuration.toml"]);
    assert!(files["configuration.toml"].contains("dpu-dpu-1.key"), "paths are no secrets");
    assert!(files["kernel.txt"].contains("pf0vf0") && files["kernel.txt"].contains("br-offload"));
    assert!(files["metrics.txt"].contains("dpu_offload_service_ready"), "{}", files["metrics.txt"]);
    assert!(files["attachments.json"].contains("10.1."), "{}", files["attachments.json"]);
    let keys = [("dpu", "dpu-1"), ("host", "node-1"), ("operator", "admin")];
    for (role, name) in keys {
        let key = fs::read_to_string(lab.pki.key(role, name)).unwrap();
        let secret = key.lines().nth(1).unwrap();
        assert!(files.values().all(|text| !text.contains(secret)), "the key of {name}");
    }
    for secret in ["-----BEGIN", "Bearer", "s3cret"] {
        let with_it: Vec<_> = files.iter().filter(|(_, text)| text.contains(secret)).collect();
        assert!(with_it.is_empty(), "{secret}: {with_it:?}");
    }
}

/// Lines of one part of `kernel.txt` in a new archive, below its heading.
fn kernel_part(lab: &Lab, heading: &str) -> Vec<String> {
    let archive = lab.path().join(format!("{heading}.tar.gz"));
    let archive = archive.to_str().unwrap();
    let _ = lab.operator().output(&["bundle", "-o", archive]);
    let kernel = &unpacked(archive)["kernel.txt"];
    let begin = format!("# {heading}: ");
    let lines = kernel.lines().skip_while(|line| !line.starts_with(&begin)).skip(1);
    lines.take_while(|line| !line.starts_with("# ")).map(str::to_owned).collect()
}

#[test]
fn bundle_holds_neighbours_and_nftables_rules() {
    let settings = Settings { kind_of_fabric: FabricKind::Bridge, ..Settings::with_gateways() };
    let (lab, _outside) = gateway::lab_of(&settings);
    let (_pod, held) = gateway::pod(&lab, "blue");
    let neighbours = kernel_part(&lab, "neighbours");
    for address in held {
        let begin = format!("{address} lladdr ");
        assert!(neighbours.iter().any(|line| line.starts_with(&begin)), "{neighbours:#?}");
    }
    let table = ["-j", "list", "table", "inet", "dpu-offload"];
    let rules = gateway::nft(&lab.card.dpu, &table).matches("\"rule\":").count();
    let listed = kernel_part(&lab, "nftables");
    // NFPROTO_INET
    let of_inet = listed
        .iter()
        .filter(|line| line.starts_with("family 1 ") && line.contains("Table: \"dpu-offload\","));
    assert_eq!(of_inet.count(), rules, "{listed:#?}");
}

#[test]
fn bundle_holds_flows_of_open_vswitch() {
    let settings = Settings { kind_of_fabric: FabricKind::OpenVswitch, ..Settings::default() };
    let lab = Lab::start(&settings);
    let pod = Netns::new("pod");
    let _ = lab.add("blue", &pod, "eth0").result();
    let flows = lab.vswitch.as_ref().unwrap().ofctl(&["dump-flows"], "br-offload", &[]);
    let flows = flows.lines().filter(|line| line.contains("actions=")).count();
    assert!(flows > 0);
    assert_eq!(kernel_part(&lab, "flows").len(), flows);
}
