//! The programs of the cluster's node, which tests stop and restart.

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
    /// Starts a program such as `kubelet` or `containerd`, and waits until it is ready.
    ///
    /// # Panics
    /// If it does not become ready.
    pub fn start(&self, program: &str) {
        call(&["start", program]);
    }

    /// Stops a program.
    ///
    /// # Panics
    /// If it does not end.
    pub fn stop(&self, program: &str) {
        call(&["stop", program]);
    }

    /// Kills a program.
    ///
    /// # Panics
    /// If it does not end.
    pub fn kill(&self, program: &str) {
        call(&["kill", program]);
    }

    /// Stops everything on the node and its namespaces, and starts it with another boot ID.
    ///
    /// # Panics
    /// If it does not come up.
    pub fn reboot(&self) {
        call(&["reboot"]);
    }

    /// Restarts the `agent` or the `service`, and waits for their session.
    ///
    /// # Panics
    /// If it gets none.
    pub fn restart(&self, program: &str) {
        let lab = PathBuf::from(variable("OFFLOAD_ROOT")).join("hack/lab");
        let output = run(Command::new(lab).args(["restart", program]));
        assert!(output.status.success(), "{output:?}");
        self.wait_for_session();
    }

    /// Waits until the agent has its session with the DPU.
    ///
    /// # Panics
    /// If it gets none.
    pub fn wait_for_session(&self) {
        self.operator().wait_for_host(NODE, LIMIT);
    }

    /// Waits until the scheduler uses the node: it is ready, and has no taint left from a time when it was not.
    ///
    /// # Panics
    /// If that does not happen in time.
    pub fn wait_until_it_takes_pods(&self) {
        wait_for("a node that takes pods", LIMIT, || {
            let node = self.get(&format!("node/{NODE}"));
            (is_ready(&node) && node["spec"]["taints"].is_null()).then_some(())
        });
    }

    /// Stops the DPU's service until it is restarted.
    ///
    /// # Panics
    /// If it does not end.
    pub fn stop_service(&self) {
        let state = PathBuf::from(variable("STATE_DIR")).with_file_name("service.pid");
        let id: i32 = fs::read_to_string(state).unwrap().trim().parse().unwrap();
        kill(Pid::from_raw(id), Signal::SIGTERM).unwrap();
        let folder = PathBuf::from(format!("/proc/{id}"));
        wait_for("the service's end", LIMIT, || (!folder.exists()).then_some(()));
    }

    /// The process of a pod's container, not of its sandbox, while it runs.
    ///
    /// # Panics
    /// If processes cannot be listed.
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

    /// Kills that process.
    ///
    /// # Panics
    /// If there is none.
    pub fn crash(&self, pod: &Value) {
        let process = self.process_of(pod).expect("a container that runs");
        kill(Pid::from_raw(process), Signal::SIGKILL).unwrap();
    }

    /// Whether the API server considers the node ready.
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

/// Prints the end of each program's log, for a failed test.
pub(super) fn show_logs() {
    let logs = variable("CLUSTER_LOGS");
    for program in ["kubelet", "containerd"] {
        let printed = fs::read_to_string(format!("{logs}/{program}")).unwrap_or_default();
        // Skip a line about a file that some kernels lack, logged for each container.
        let lines: Vec<_> = printed.lines().filter(|line| !line.contains("perf_event")).collect();
        let last = &lines[lines.len().saturating_sub(30)..];
        eprintln!("--- {program} said last:\n{}", last.join("\n"));
    }
}
