//! The agent inside another program: the one in docs/EMBEDDING.md, instead of the lab's own agent.

use std::{
    fs,
    io::{BufRead, BufReader, Lines},
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Stdio},
    time::Duration,
};

use e2e::{FaultAction, Lab, Netns, Settings, program, wait_for};
use serde_json::Value;

const AGENT: &str = "host-shim-agent";
const LIMIT: Duration = Duration::from_secs(60);

/// The example, with its own workloads.
struct InitSystem {
    process: Child,
    printed: Lines<BufReader<ChildStdout>>,
    /// Closing it ends the program.
    input: Option<ChildStdin>,
}

impl InitSystem {
    /// Starts the example instead of the lab's agent, with that agent's configuration and faults.
    fn start(lab: &Lab, pods: &[&Netns]) -> Self {
        let mut command = lab.netns().command(program("examples/init_system"));
        let configuration = lab.path().join("host-shim.toml");
        command.arg(configuration).args(pods.iter().map(|pod| pod.path()));
        command.env("OFFLOAD_FAULTS", lab.path().join(format!("faults-{AGENT}")));
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let printed = BufReader::new(process.stdout.take().unwrap()).lines();
        let input = process.stdin.take();
        Self { process, printed, input }
    }

    /// The next output for this many workloads, with an address of each family; less if the program ends.
    fn read_lines_for(&mut self, workloads: usize) -> Vec<String> {
        self.printed.by_ref().take(2 * workloads).map(Result::unwrap).collect()
    }

    fn end(&mut self) {
        drop(self.input.take());
        let status = wait_for("its end", LIMIT, || self.process.try_wait().unwrap());
        assert!(status.success(), "{status}");
    }

    fn crash(&mut self) {
        self.process.kill().unwrap();
        let _ = self.process.wait().unwrap();
    }
}

impl Drop for InitSystem {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn lab_without_agent() -> Lab {
    let mut lab = Lab::start(&Settings::default());
    lab.agent.stop();
    lab
}

/// Expected output of the example for a pod with these addresses, as in `ip`.
fn lines_of(pod: &Netns) -> Vec<String> {
    let link = pod.json("ip", &["address", "show", "dev", "eth0"]).remove(0);
    let held = link["addr_info"].as_array().unwrap().iter();
    let held = held.filter(|held| held["scope"] == "global");
    let of = |held: &Value| format!("{}/{}", held["local"].as_str().unwrap(), held["prefixlen"]);
    held.map(|held| format!("{} eth0 {}", pod.name(), of(held))).collect()
}

fn address_of(line: &str) -> &str {
    line.split([' ', '/']).nth(2).unwrap()
}

#[test]
fn embedded_agent_attaches_workloads() {
    let lab = lab_without_agent();
    let (web, db) = (Netns::new("web"), Netns::new("db"));
    let mut init = InitSystem::start(&lab, &[&web, &db]);
    let reported = init.read_lines_for(2);
    assert_eq!(reported, [lines_of(&web), lines_of(&db)].concat());
    assert_eq!(reported.len(), 4);
    assert!(reported[2..].iter().all(|line| web.pings(address_of(line))));
    assert!(reported[..2].iter().all(|line| db.pings(address_of(line))));
    lab.assert_invariants();
    init.end();
    lab.assert_clean_slate();
}

#[test]
fn embedded_agent_recovers_its_workloads() {
    let mut lab = lab_without_agent();
    let (web, db) = (Netns::new("web"), Netns::new("db"));
    let mut init = InitSystem::start(&lab, &[&web, &db]);
    let reported = init.read_lines_for(2);
    assert_eq!(reported, [lines_of(&web), lines_of(&db)].concat());
    // The DPU is informed after the answer, and gets no message from a dead agent.
    lab.assert_invariants();
    init.crash();
    assert!(reported[2..].iter().all(|line| web.pings(address_of(line))));
    lab.assert_invariants();

    let mut again = InitSystem::start(&lab, &[&web, &db]);
    assert_eq!(again.read_lines_for(2), reported);
    lab.assert_invariants();
    again.crash();

    // The agent's own program takes over what remains, from the same records.
    lab.start_agent();
    lab.wait_until_good();
    for pod in [&web, &db] {
        lab.workloads().detach(pod.name(), None).unwrap();
    }
    lab.assert_clean_slate();
}

/// The program dies at this point during the attach of its workload.
fn dies_at(point: &str) {
    let lab = lab_without_agent();
    let web = Netns::new("web");
    let armed = lab.arm(AGENT, FaultAction::Kill, point);
    let mut init = InitSystem::start(&lab, &[&web]);
    assert!(init.read_lines_for(1).is_empty(), "it was to die at {point}");
    assert!(!armed.exists(), "it did not come to {point}");
    drop(init);

    let mut again = InitSystem::start(&lab, &[&web]);
    assert_eq!(again.read_lines_for(1), lines_of(&web));
    lab.assert_invariants();
    again.end();
    lab.assert_clean_slate();
}

#[test]
fn interrupted_embedded_attach_is_completed() {
    for point in ["attach-answered", "attach-done"] {
        dies_at(point);
    }
}

#[test]
fn host_has_only_one_agent() {
    let lab = Lab::start(&Settings::default());
    let configuration = lab.path().join("host-shim.toml");
    let mut command = lab.netns().command(program("examples/init_system"));
    let output = e2e::run(command.arg(configuration).arg("/run/netns/web"));
    let printed = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && printed.contains("in use"), "{printed}");
    lab.wait_until_good();
}

#[test]
fn embedding_page_shows_the_tested_program() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let page = fs::read_to_string(root.join("docs/EMBEDDING.md")).unwrap();
    let example = fs::read_to_string(root.join("host-shim/examples/init_system.rs")).unwrap();
    let (_page_of_the_file, program) = example.split_once("\n\n").unwrap();
    assert!(page.contains(&format!("```rust\n{program}```\n")), "docs/EMBEDDING.md shows another");
}
