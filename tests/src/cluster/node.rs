//! The programs of the cluster's node, which tests break and mend.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;

use super::{Cluster, LIMIT, NODE, is_ready, manifests::SLEEP, script, variable};
use crate::{run, wait_for};

impl Cluster {
    /// Starts `kubelet`, `containerd` or another of its programs, and waits until it is ready.
    ///
    /// # Panics
    /// When it does not become so.
    pub fn start(&self, program: &str) {
        call(&["start", program]);
    }

    /// Ends it.
    ///
    /// # Panics
    /// When it goes on.
    pub fn stop(&self, program: &str) {
        call(&["stop", program]);
    }

    /// Ends it as a crash would.
    ///
    /// # Panics
    /// When it goes on.
    pub fn kill(&self, program: &str) {
        call(&["kill", program]);
    }

    /// Ends all that runs on the node and its namespaces, and starts it with another boot id.
    ///
    /// # Panics
    /// When it does not come up.
    pub fn reboot(&self) {
        call(&["reboot"]);
    }

    /// Has the `agent` or the `service` end and start again, and waits for their session.
    ///
    /// # Panics
    /// When it gets none.
    pub fn restart(&self, program: &str) {
        let lab = PathBuf::from(variable("OFFLOAD_ROOT")).join("hack/lab");
        let output = run(Command::new(lab).args(["restart", program]));
        assert!(output.status.success(), "{output:?}");
        self.wait_for_session();
    }

    /// Waits until the agent has its session with the DPU.
    ///
    /// # Panics
    /// When it gets none.
    pub fn wait_for_session(&self) {
        self.operator().wait_for_host(NODE, LIMIT);
    }

    /// Waits until the scheduler gives the node pods: it is ready, and no taint of a time when it was not is left.
    ///
    /// # Panics
    /// When it gives none.
    pub fn wait_until_it_takes_pods(&self) {
        wait_for("a node that takes pods", LIMIT, || {
            let node = self.get(&format!("node/{NODE}"));
            (is_ready(&node) && node["spec"]["taints"].is_null()).then_some(())
        });
    }

    /// Ends the DPU's service until it is restarted.
    ///
    /// # Panics
    /// When it goes on.
    pub fn stop_service(&self) {
        let state = PathBuf::from(variable("STATE_DIR")).with_file_name("service.pid");
        let id: i32 = fs::read_to_string(state).unwrap().trim().parse().unwrap();
        kill(Pid::from_raw(id), Signal::SIGTERM).unwrap();
        let folder = PathBuf::from(format!("/proc/{id}"));
        wait_for("the service's end", LIMIT, || (!folder.exists()).then_some(()));
    }

    /// The process of a pod's one container, which is not that of its sandbox, while it runs.
    ///
    /// # Panics
    /// When processes can't be listed.
    #[must_use]
    pub fn process_of(&self, pod: &Value) -> Option<i32> {
        let group = format!("/pod{}/", pod["metadata"]["uid"].as_str().unwrap());
        let mut folders = fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().path());
        let is_its = |folder: &PathBuf| {
            let read = |file| fs::read_to_string(folder.join(file)).unwrap_or_default();
            read("cgroup").contains(&group) && read("cmdline").contains(SLEEP)
        };
        number(&folders.find(is_its)?)
    }

    /// Ends that process as a crash would.
    ///
    /// # Panics
    /// When there is none.
    pub fn crash(&self, pod: &Value) {
        let process = self.process_of(pod).expect("a container that runs");
        kill(Pid::from_raw(process), Signal::SIGKILL).unwrap();
    }

    /// Whether the API server has the node for ready.
    #[must_use]
    pub fn node_is_ready(&self) -> bool {
        is_ready(&self.get(&format!("node/{NODE}")))
    }
}

fn number(folder: &Path) -> Option<i32> {
    folder.file_name()?.to_str()?.parse().ok()
}

fn call(arguments: &[&str]) {
    let output = run(script().args(arguments));
    assert!(output.status.success(), "{arguments:?}: {output:?}");
}

/// What a program of the cluster said last, for a test that failed.
pub(super) fn show_logs() {
    let logs = variable("CLUSTER_LOGS");
    for program in ["kubelet", "containerd"] {
        let said = fs::read_to_string(format!("{logs}/{program}")).unwrap_or_default();
        // Of a file that some kernels lack, told of each container.
        let lines: Vec<_> = said.lines().filter(|line| !line.contains("perf_event")).collect();
        let last = &lines[lines.len().saturating_sub(30)..];
        eprintln!("--- {program} said last:\n{}", last.join("\n"));
    }
}
