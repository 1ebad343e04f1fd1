//! The Kubernetes cluster of `hack/cluster run`, seen from its node. All tests share it, one after the other.

mod manifests;
mod node;
mod scene;

use std::{
    collections::BTreeMap,
    fs,
    path::PathBuf,
    process::{Command, Output},
    time::Duration,
};

use serde_json::Value;

pub use manifests::{deployment, pod, service};

use crate::{HostEnd, Netns, Operator, card::Card, run, wait_for};

/// Timeout for anything in the cluster.
pub const LIMIT: Duration = Duration::from_secs(120);

/// Name of the lab's host on the DPU, and of its node.
pub const NODE: &str = "node-1";

/// Kinds of objects that tests create and delete.
const KINDS: &str = "deployments,services,pods";

/// The cluster, without pods when a test begins.
#[derive(Debug)]
pub struct Cluster {
    /// The namespace of the node.
    pub host: Netns,
    /// The DPU's namespace.
    pub dpu: Netns,
    /// Baselines of the VFs by PCI address.
    clean: BTreeMap<String, HostEnd>,
}

impl Cluster {
    /// Takes the cluster over from the previous test, which may have failed.
    ///
    /// # Panics
    /// If the cluster cannot be emptied.
    #[must_use]
    pub fn take() -> Self {
        let [host, dpu] = ["HOST_NETNS", "DPU_NETNS"].map(|name| Netns::existing(&variable(name)));
        let mut cluster = Self { host, dpu, clean: BTreeMap::new() };
        cluster.empty();
        cluster.clean = cluster.free_vfs();
        cluster
    }

    /// Baselines of the free VFs: without the host port's VF, which may be another after a reboot.
    fn free_vfs(&self) -> BTreeMap<String, HostEnd> {
        let mut ends = Card::ends_in(&self.host);
        for attachment in self.operator().get("attachments") {
            ends.remove(attachment["vf"]["device"].as_str().unwrap());
        }
        ends
    }

    /// Runs `kubectl` with these arguments.
    #[must_use]
    pub fn try_kubectl(&self, arguments: &[&str]) -> Output {
        run(self.host.command("kubectl").args(arguments))
    }

    /// The output of `kubectl`.
    ///
    /// # Panics
    /// If it fails.
    pub fn kubectl(&self, arguments: &[&str]) -> String {
        let output = self.try_kubectl(arguments);
        assert!(output.status.success(), "kubectl {arguments:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Applies these manifests.
    ///
    /// # Panics
    /// If the API server refuses one.
    pub fn apply(&self, manifests: &[Value]) {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("manifests.json");
        let text: Vec<_> = manifests.iter().map(Value::to_string).collect();
        fs::write(&file, text.join("\n")).unwrap();
        self.kubectl(&["apply", "--filename", file.to_str().unwrap()]);
    }

    /// Reads an object from the API server.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn get(&self, object: &str) -> Value {
        serde_json::from_str(&self.kubectl(&["get", object, "--output", "json"])).unwrap()
    }

    /// All pods.
    #[must_use]
    pub fn pods(&self) -> Vec<Value> {
        self.get("pods")["items"].as_array().unwrap().clone()
    }

    /// Deletes pods without waiting.
    pub fn delete(&self, pods: &[&str]) {
        self.kubectl(&[&["delete", "pod", "--wait=false"], pods].concat());
    }

    /// Waits until exactly this many pods are ready, and returns them.
    ///
    /// # Panics
    /// If that does not happen in time.
    pub fn wait_for_ready(&self, count: usize) -> Vec<Value> {
        wait_for(&format!("{count} ready pods"), LIMIT, || {
            let ready: Vec<_> = self.pods().into_iter().filter(is_ready).collect();
            (ready.len() == count).then_some(ready)
        })
    }

    /// Waits until a pod has this readiness.
    ///
    /// # Panics
    /// If that does not happen in time.
    pub fn wait_for_readiness(&self, pod: &str, wanted: bool) {
        wait_for(&format!("{pod} to be ready: {wanted}"), LIMIT, || {
            (is_ready(&self.get(&format!("pod/{pod}"))) == wanted).then_some(())
        });
    }

    /// Waits for an event of a pod that contains these words, and returns its message.
    ///
    /// # Panics
    /// If there is none.
    pub fn wait_for_event(&self, pod: &str, words: &str) -> String {
        let field = format!("involvedObject.name={pod}");
        wait_for(&format!("{words:?} in the events of {pod}"), LIMIT, || {
            let events =
                self.kubectl(&["get", "events", "--field-selector", &field, "--output", "json"]);
            let events: Value = serde_json::from_str(&events).unwrap();
            let messages =
                events["items"].as_array()?.iter().filter_map(|it| it["message"].as_str());
            messages.map(str::to_owned).find(|message| message.contains(words))
        })
    }

    /// The output of a shell script in a pod.
    ///
    /// # Panics
    /// If it fails.
    pub fn in_pod(&self, pod: &str, script: &str) -> String {
        self.kubectl(&["exec", pod, "--", "sh", "-c", script])
    }

    /// Whether a shell script succeeds in a pod.
    #[must_use]
    pub fn succeeds_in(&self, pod: &str, script: &str) -> bool {
        self.try_kubectl(&["exec", pod, "--", "sh", "-c", script]).status.success()
    }

    /// The operator of the cluster's DPU.
    #[must_use]
    pub fn operator(&self) -> Operator<'_> {
        Operator::new(&self.host, variable("DPUCTL_CONFIG").into())
    }

    /// Attachments of pods, without the host port.
    #[must_use]
    pub fn attachments(&self) -> Vec<Value> {
        let mut all = self.operator().get("attachments");
        all.retain(|attachment| attachment["key"]["containerId"] != "host-port");
        all
    }

    /// Waits until this many pods have an attachment.
    ///
    /// # Panics
    /// If they do not.
    pub fn wait_for_attachments(&self, count: usize) {
        wait_for(&format!("{count} attachments"), LIMIT, || {
            (self.attachments().len() == count).then_some(())
        });
    }

    /// Deletes everything and asserts that all VFs and addresses are free and clean.
    ///
    /// # Panics
    /// If something is left.
    pub fn assert_gives_everything_back(&self) {
        self.empty();
        self.assert_invariants();
        // A pool that was just exhausted still has a condition, which is no difference.
        let found = self.operator().json(&["doctor"]);
        assert_eq!(found["findings"], Value::Array(Vec::new()), "{found:#}");
    }

    /// Deletes by force: pod objects can stay for a while after everything else of a pod is gone.
    fn empty(&self) {
        let delete = |options: &[&str]| {
            let own = ["delete", KINDS, "--selector", "provider!=kubernetes", "--all-namespaces"];
            let _ = self.try_kubectl(&[&own, options].concat());
        };
        delete(&["--wait=false"]);
        self.wait_for_attachments(0);
        delete(&["--force", "--grace-period=0", "--timeout=20s"]);
        wait_for("no pods", LIMIT, || self.pods().is_empty().then_some(()));
    }
}

/// Whether a pod or a node is ready and not being deleted.
#[must_use]
pub fn is_ready(object: &Value) -> bool {
    let conditions = object["status"]["conditions"].as_array().into_iter().flatten();
    let mut ready = conditions.filter(|condition| condition["type"] == "Ready");
    object["metadata"]["deletionTimestamp"].is_null()
        && ready.any(|condition| condition["status"] == "True")
}

/// An object's name.
#[must_use]
pub fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap()
}

/// A pod's addresses of both families.
#[must_use]
pub fn addresses(pod: &Value) -> Vec<String> {
    let addresses = pod["status"]["podIPs"].as_array().into_iter().flatten();
    addresses.map(|address| address["ip"].as_str().unwrap().to_owned()).collect()
}

/// Number of restarts of a pod's container.
#[must_use]
pub fn restarts(pod: &Value) -> u64 {
    pod["status"]["containerStatuses"][0]["restartCount"].as_u64().unwrap_or_default()
}

/// A variable of the cluster's environment.
pub(crate) fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name}: run it by hack/cluster run"))
}

/// The cluster's own script.
pub(crate) fn script() -> Command {
    Command::new(PathBuf::from(variable("CLUSTER_NODE")))
}
