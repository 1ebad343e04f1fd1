//! The programs of the cluster's node, which tests break and mend.

use super::{Cluster, LIMIT, NODE, script, variable};
use crate::run;

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

    /// Waits until the agent has its session with the DPU.
    ///
    /// # Panics
    /// When it gets none.
    pub fn wait_for_session(&self) {
        self.operator().wait_for_host(NODE, LIMIT);
    }
}

fn call(arguments: &[&str]) {
    let output = run(script().args(arguments));
    assert!(output.status.success(), "{arguments:?}: {output:?}");
}

/// What a program of the cluster said last, for a test that failed.
pub(super) fn show_logs() {
    let logs = variable("CLUSTER_LOGS");
    for program in ["kubelet", "containerd"] {
        let said = std::fs::read_to_string(format!("{logs}/{program}")).unwrap_or_default();
        // Of a file that some kernels lack, told of each container.
        let lines: Vec<_> = said.lines().filter(|line| !line.contains("perf_event")).collect();
        let last = &lines[lines.len().saturating_sub(30)..];
        eprintln!("--- {program} said last:\n{}", last.join("\n"));
    }
}
