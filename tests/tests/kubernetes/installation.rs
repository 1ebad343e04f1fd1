//! The manifests of `configs/kubernetes`: installed, upgraded and removed with the exact commands of
//! docs/KUBERNETES.md, on a bare node.

use std::{
    env, fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
    thread,
};

use e2e::{
    cluster::{Cluster, LIMIT, NODE, addresses, deployment, name, pod},
    program, run, wait_for,
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Value, json};
use tempfile::TempDir;

const PAGE: &str = include_str!("../../../docs/KUBERNETES.md");
const IMAGE: &str = "localhost/dpu-offload-agent";
/// The plugin's path for the cluster's containerd, which is Debian's.
const PLUGIN: &str = "/usr/lib/cni/host-shim";
const CONFLIST: &str = "/etc/cni/net.d/10-dpu-offload.conflist";
/// Pods that start while the agent is replaced. There are VFs for them and for the running ones.
const MOST_STARTED: usize = 16;
/// Pods that start while another agent stands by.
const STARTED_BESIDE: usize = 4;

/// The DaemonSet's strategy, and the one in its comment for older Kubernetes.
const SURGE: &str = "{maxSurge: 1, maxUnavailable: 0}";
const WITHOUT_SURGE: &str = "{maxUnavailable: 1}";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().unwrap()
}

fn succeeds(command: &mut Command) -> String {
    let output = run(command);
    assert!(output.status.success(), "{command:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn variable(name: &str) -> PathBuf {
    env::var_os(name).unwrap_or_else(|| panic!("{name}: run it by hack/cluster run")).into()
}

/// A node without agent, plugin and CNI configuration. They are restored on drop.
struct BareNode {
    cluster: Cluster,
    /// Working folder of the page's commands: a clone's `configs`, and the output of `dpuctl pki`.
    folder: TempDir,
    plugin: Vec<u8>,
    conflist: Vec<u8>,
}

impl BareNode {
    fn take() -> Self {
        let cluster = Cluster::take();
        let folder = tempfile::tempdir().unwrap();
        symlink(root().join("configs"), folder.path().join("configs")).unwrap();
        symlink(lab_folder().join("pki"), folder.path().join("pki")).unwrap();
        let [plugin, conflist] = [PLUGIN, CONFLIST].map(|path| fs::read(path).unwrap());
        let node = Self { cluster, folder, plugin, conflist };
        end_agent();
        for path in [PLUGIN, CONFLIST] {
            fs::remove_file(path).unwrap();
        }
        node
    }

    /// Runs the commands in one `sh` block of a section of the page; the first block is 0.
    fn type_lines(&self, section: &str, block: usize) -> String {
        let text = PAGE.split("\n## ").find(|text| text.starts_with(section)).unwrap();
        let lines = text.split("```sh\n").nth(block + 1).unwrap().split("```").next().unwrap();
        let mut shell = self.cluster.host.command("bash");
        succeeds(shell.args(["-euxc", lines]).current_dir(self.folder.path()))
    }

    /// Edits a file of the copy, as the page says.
    fn edit(&self, file: &str, old: &str, new: &str) {
        let path = self.folder.path().join("agent").join(file);
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains(old), "{file}: {old}");
        fs::write(path, text.replace(old, new)).unwrap();
    }

    /// Loads the image of the tested programs under two versions: a rollout changes the name.
    fn load_image(&self) -> [String; 2] {
        let (from, to) = (self.folder.path().join("programs"), self.folder.path().join("packages"));
        fs::create_dir(&from).unwrap();
        for name in ["virtual-nic", "dpu-service", "host-shim", "host-shim-agent", "dpuctl"] {
            succeeds(Command::new("strip").arg("-o").arg(from.join(name)).arg(program(name)));
        }
        let mut package = Command::new(root().join("hack/package"));
        package.args(["--only", "image", "--with-libraries", "--from"]).arg(&from);
        succeeds(package.arg("--to").arg(&to).env("CARGO_NET_OFFLINE", "true"));
        let made = fs::read_dir(&to).unwrap().map(|entry| entry.unwrap().path());
        let mut agents = made.filter(|path| path.to_str().unwrap().contains("dpu-offload-agent_"));
        succeeds(Command::new("ctr").args(["images", "import"]).arg(agents.next().unwrap()));
        let next = format!("{IMAGE}:next");
        let images = succeeds(Command::new("ctr").args(["images", "ls", "-q"]));
        let is_it = |image: &&str| image.starts_with(IMAGE) && *image != next;
        let image = images.lines().find(is_it).unwrap();
        succeeds(Command::new("ctr").args(["images", "tag", "--force", image, &next]));
        [image.split_once(':').unwrap().1.to_owned(), "next".to_owned()]
    }

    /// Makes the edits that the page leaves to a person.
    fn edit_manifests(&self) {
        self.edit("host-shim.toml", "kind = \"pci\"", "kind = \"virtual\"");
        self.edit(
            "host-shim.toml",
            "[vf_source]",
            "[[host_port]]\nnetwork = \"pods\"\n\n[vf_source]",
        );
        self.edit("10-dpu-offload.conflist", "\"network\": \"\"", "\"network\": \"pods\"");
        self.edit("daemonset.yaml", "path: /opt/cni/bin", "path: /usr/lib/cni");
        if is_without_surge(&self.cluster) {
            self.edit("daemonset.yaml", SURGE, WITHOUT_SURGE);
        }
        // The previous agent's records become this one's.
        let state = variable("STATE_DIR");
        self.edit(
            "daemonset.yaml",
            "path: /var/lib/dpu-offload,",
            &format!("path: {},", state.display()),
        );
    }

    fn install(&self, version: &str) -> String {
        self.type_lines("Install by manifests", 0);
        self.edit("kustomization.yaml", "newTag: 0.1.0", &format!("newTag: {version}"));
        self.edit_manifests();
        self.type_lines("Install by manifests", 1);
        self.type_lines("Install by manifests", 2)
    }

    /// The only pod of the agent.
    fn agent(&self) -> String {
        let list =
            self.cluster.kubectl(&["--namespace", "dpu-offload", "get", "pods", "-o", "name"]);
        assert_eq!(list.lines().count(), 1, "{list}");
        list
    }

    /// Warnings about pods with this name prefix, except about volumes.
    fn warnings(&self, beginning: &str) -> Vec<Value> {
        let events = self.cluster.kubectl(&[
            "get",
            "events",
            "-o",
            "json",
            "--field-selector",
            "type=Warning",
        ]);
        let events: Value = serde_json::from_str(&events).unwrap();
        // A kubelet that learns late about a pod's Secret reports that, and mounts it at its next attempt.
        let is_theirs = |event: &&Value| {
            event["involvedObject"]["name"].as_str().unwrap().starts_with(beginning)
                && event["reason"] != "FailedMount"
        };
        events["items"].as_array().unwrap().iter().filter(is_theirs).cloned().collect()
    }
}

#[expect(clippy::print_stderr, reason = "what a failed test shows")]
impl Drop for BareNode {
    /// Restores the node for the next test, whatever the result.
    fn drop(&mut self) {
        let kubectl = |arguments: &[&str]| drop(self.cluster.try_kubectl(arguments));
        if thread::panicking() {
            let logs = ["--namespace", "dpu-offload", "logs", "--all-containers", "--selector"];
            let logs = [&logs[..], &["app.kubernetes.io/name=dpu-offload-agent"]].concat();
            eprintln!("--- the agent: {:?}", self.cluster.try_kubectl(&logs));
        }
        kubectl(&["delete", "namespace", "dpu-offload", "--ignore-not-found", "--timeout=120s"]);
        kubectl(&["uncordon", NODE]);
        kubectl(&["label", "node", NODE, "dpu-offload.io/host-"]);
        let restored = [(PLUGIN, &self.plugin), (CONFLIST, &self.conflist)].into_iter().all(
            |(path, content)| {
                let copy = Path::new(path).with_extension("kept");
                fs::write(&copy, content).is_ok()
                    && make_executable(&copy)
                    && fs::rename(&copy, path).is_ok()
            },
        );
        let lab = run(Command::new(root().join("hack/lab")).args(["restart", "agent"]));
        eprintln!("the node is as it was: {restored}, {lab:?}");
    }
}

/// Whether the cluster is older than Kubernetes 1.22, whose DaemonSets lack `maxSurge`.
fn is_without_surge(cluster: &Cluster) -> bool {
    let versions: Value =
        serde_json::from_str(&cluster.kubectl(&["version", "-o", "json"])).unwrap();
    let version = versions["serverVersion"]["gitVersion"].as_str().unwrap();
    version.split('.').nth(1).unwrap().parse::<u32>().unwrap() < 22
}

fn make_executable(path: &Path) -> bool {
    run(Command::new("chmod").arg("755").arg(path)).status.success()
}

fn lab_folder() -> PathBuf {
    variable("DPUCTL_CONFIG").parent().unwrap().to_owned()
}

/// Ends the lab's agent, which other tests may have restarted.
fn end_agent() {
    let id = fs::read_to_string(lab_folder().join("agent.pid")).unwrap();
    let process = Pid::from_raw(id.trim().parse().unwrap());
    let socket = variable("AGENT_SOCKET");
    kill(process, Signal::SIGTERM).unwrap();
    wait_for("the agent's end", LIMIT, || (!socket.exists()).then_some(()));
}

#[test]
fn documented_commands_install_upgrade_remove() {
    let node = BareNode::take();
    let cluster = &node.cluster;
    let [version, next] = node.load_image();
    let reported = node.install(&version);
    assert_eq!(reported.matches(": written\n").count(), 2, "{reported}");
    cluster.wait_for_session();
    cluster.wait_until_it_takes_pods();

    cluster.apply(&[deployment("roll-stays", 6, json!({})), deployment("roll-goes", 4, json!({}))]);
    let running = cluster.wait_for_ready(10);
    let staying: Vec<_> =
        running.iter().filter(|pod| name(pod).starts_with("roll-stays")).cloned().collect();
    let started = upgrade_under_pods(&node, &version, &next, &staying);
    let pods = cluster.wait_for_ready(staying.len() + started);
    let names = |pods: &[Value]| pods.iter().map(|pod| name(pod).to_owned()).collect::<Vec<_>>();
    assert!(
        names(&staying).iter().all(|name| names(&pods).contains(name)),
        "none of them restarted"
    );
    hand_over_side_by_side(&node);
    let pods = cluster.wait_for_ready(pods.len() + STARTED_BESIDE);
    cluster.wait_for_attachments(pods.len());
    cluster.assert_invariants();
    assert_eq!(node.warnings("roll-"), [Value::Null; 0]);

    remove(&node);
    for folder in [Path::new(PLUGIN), Path::new(CONFLIST)].map(|path| path.parent().unwrap()) {
        let entries = fs::read_dir(folder).unwrap().map(|it| it.unwrap().file_name());
        let ours = entries.filter(|it| {
            it.to_str().unwrap().contains("host-shim")
                || it.to_str().unwrap().contains("dpu-offload")
        });
        assert_eq!(ours.count(), 0, "{folder:?}");
    }
    assert_eq!(cluster.operator().get("attachments"), [Value::Null; 0], "not even the host's own");
    drop(node);
    let cluster = Cluster::take();
    cluster.wait_for_session();
    cluster.assert_gives_everything_back();
}

#[test]
fn api_server_accepts_all_manifests() {
    let cluster = Cluster::take();
    let base = |name: &str| root().join("configs/kubernetes").join(name).display().to_string();
    for name in ["host", "dpu", "cert-manager", "networks", "admission"] {
        let objects = cluster.kubectl(&["kustomize", &base(name)]);
        assert!(objects.contains("\nkind: "), "{name}: {objects}");
    }
    cluster.kubectl(&["apply", "--filename", &base("namespace.yaml")]);
    let reported = cluster.kubectl(&["apply", "--dry-run=server", "--kustomize", &base("dpu")]);
    cluster.kubectl(&["delete", "namespace", "dpu-offload"]);
    assert_eq!(reported.matches("created (server dry run)").count(), 2, "{reported}");
}

/// Further nodes without a kubelet. The agent on the cluster's own node expands `${NODE_NAME}` in the test of the
/// page's commands.
const FURTHER_NODES: [&str; 3] = ["rack-a", "rack-b", "rack-c"];

/// The further nodes and their DaemonSet. Drop waits until the objects are gone.
struct FurtherNodes<'a>(&'a Cluster);

impl Drop for FurtherNodes<'_> {
    fn drop(&mut self) {
        let nodes = [&["delete", "node", "--ignore-not-found"], &FURTHER_NODES[..]].concat();
        let deletes: [&[&str]; 4] = [
            &["--namespace", "dpu-offload", "delete", "daemonset", "--all"],
            // Without a kubelet they do not end by themselves.
            &[
                "--namespace",
                "dpu-offload",
                "delete",
                "pods",
                "--all",
                "--force",
                "--grace-period=0",
            ],
            &["delete", "namespace", "dpu-offload", "--ignore-not-found", "--timeout=120s"],
            &nodes,
        ];
        deletes.iter().for_each(|delete| drop(self.0.try_kubectl(delete)));
    }
}

/// A node with a DPU and room for pods, as its kubelet would register it.
fn node_with_dpu(name: &str) -> Value {
    let room = json!({ "cpu": "1", "memory": "1Gi", "pods": "10" });
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": { "name": name, "labels": { "dpu-offload.io/host": "true" } },
        "status": { "capacity": room, "allocatable": room },
    })
}

/// The agents that the cluster has placed, with their nodes.
fn placed_agents(cluster: &Cluster) -> Vec<(String, Value)> {
    let listing = ["--namespace", "dpu-offload", "get", "pods", "--output", "json"];
    let pods: Value = serde_json::from_str(&cluster.kubectl(&listing)).unwrap();
    let placed = pods["items"].as_array().unwrap().iter().filter_map(|pod| {
        Some((pod["spec"]["nodeName"].as_str()?.to_owned(), pod["spec"]["containers"].clone()))
    });
    let mut placed: Vec<_> = placed.collect();
    placed.sort_by(|one, other| one.0.cmp(&other.0));
    placed
}

#[test]
fn one_daemon_set_serves_three_nodes() {
    let cluster = Cluster::take();
    let (shipped, copy) = (root().join("configs/kubernetes/host"), tempfile::tempdir().unwrap());
    for entry in fs::read_dir(&shipped).unwrap().map(|entry| entry.unwrap()) {
        let text = fs::read_to_string(entry.path()).unwrap();
        let surge = if is_without_surge(&cluster) { WITHOUT_SURGE } else { SURGE };
        fs::write(copy.path().join(entry.file_name()), text.replace(SURGE, surge)).unwrap();
    }
    let namespace = shipped.with_file_name("namespace.yaml");
    let _further = FurtherNodes(&cluster);
    cluster.kubectl(&["apply", "--filename", namespace.to_str().unwrap()]);
    cluster.apply(&FURTHER_NODES.map(node_with_dpu));
    cluster.kubectl(&["apply", "--kustomize", copy.path().to_str().unwrap()]);
    let agents = wait_for("an agent on each node", LIMIT, || {
        Some(placed_agents(&cluster)).filter(|agents| agents.len() == FURTHER_NODES.len())
    });
    assert!(agents.iter().map(|agent| agent.0.as_str()).eq(FURTHER_NODES), "{agents:?}");
    let name = json!({
        "name": "NODE_NAME",
        "valueFrom": { "fieldRef": { "apiVersion": "v1", "fieldPath": "spec.nodeName" } },
    });
    for (node, containers) in &agents {
        assert_eq!(containers[0]["env"], json!([name]), "{node}");
    }
}

/// Rolls out another version while pods ping each other, start and end. Returns the number of started pods.
fn upgrade_under_pods(node: &BareNode, version: &str, next: &str, staying: &[Value]) -> usize {
    let (cluster, before) = (&node.cluster, node.agent());
    let newer = fs::read(PLUGIN).unwrap();
    // Like the previous version, which the next one replaces.
    let older = [&newer[..], b"\n"].concat();
    fs::write("/usr/lib/cni/host-shim.older", older).unwrap();
    assert!(make_executable(Path::new("/usr/lib/cni/host-shim.older")));
    fs::rename("/usr/lib/cni/host-shim.older", PLUGIN).unwrap();
    node.edit("kustomization.yaml", &format!("newTag: {version}"), &format!("newTag: {next}"));
    let mut started = 0;
    thread::scope(|scope| {
        let rollout = scope.spawn(|| node.type_lines("Upgrade", 0));
        let pinging = scope.spawn(|| {
            let ping = format!("ping -q -c 40 -i 0.25 -W 5 {}", addresses(&staying[1])[0]);
            cluster.in_pod(name(&staying[0]), &ping)
        });
        cluster.kubectl(&["delete", "deployment", "roll-goes", "--wait=false"]);
        while !rollout.is_finished() && started < MOST_STARTED {
            cluster.apply(&[pod(&format!("roll-{started}"), json!({}))]);
            started += 1;
        }
        rollout.join().unwrap();
        let reported = pinging.join().unwrap();
        assert!(reported.contains(" 0% packet loss"), "{reported}");
    });
    assert_ne!(node.agent(), before);
    assert!(fs::read(PLUGIN).unwrap() == newer, "the plugin is the next version's");
    started
}

/// Hands over as a newer Kubernetes does within one DaemonSet: the next pod's agent stands by before the running one is
/// stopped. This cluster is too old, so a second DaemonSet is used.
fn hand_over_side_by_side(node: &BareNode) {
    let shell = |lines: &str| {
        let mut bash = node.cluster.host.command("bash");
        succeeds(bash.args(["-euxc", lines]).current_dir(node.folder.path()));
    };
    shell(
        "cp -r agent agent-next
        echo 'nameSuffix: -next' >>agent-next/kustomization.yaml
        sed -i 's#/name: dpu-offload-agent,#/name: dpu-offload-next,#' agent-next/daemonset.yaml
        sed -i 's#/name: dpu-offload-agent}#/name: dpu-offload-next}#' agent-next/daemonset.yaml
        kubectl apply --kustomize agent-next
        kubectl --namespace dpu-offload rollout status daemonset dpu-offload-agent-next",
    );
    let delete = "kubectl --namespace dpu-offload delete daemonset dpu-offload-agent";
    thread::scope(|scope| {
        scope.spawn(|| shell(delete));
        for number in 0..STARTED_BESIDE {
            node.cluster.apply(&[pod(&format!("roll-beside-{number}"), json!({}))]);
        }
    });
    node.cluster.wait_for_session();
    node.type_lines("Upgrade", 0);
    shell(&format!("{delete}-next"));
    node.cluster.wait_for_session();
}

fn remove(node: &BareNode) {
    node.edit("host-shim.toml", "[[host_port]]\nnetwork = \"pods\"\n\n", "");
    node.type_lines("Upgrade", 0);
    node.type_lines("Remove", 0);
    wait_for("no attachment", LIMIT, || {
        node.cluster.operator().get("attachments").is_empty().then_some(())
    });
    node.type_lines("Remove", 1);
}
