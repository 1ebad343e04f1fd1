//! Real container runtimes of `hack/runtimes run`, behind one interface.

mod containerd;
mod cri;
mod node;
mod podman;
mod traffic;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::{Value, json};

pub use containerd::Containerd;
pub(crate) use cri::Cri;
pub use cri::PodOptions;
pub use node::Node;
pub use podman::Podman;
pub use traffic::Conversation;

use crate::{Lab, run};

/// The image of all pods, built by `hack/runtimes`.
const IMAGE: &str = "localhost/pod:1";

/// The shipped configuration.
const CONFLIST: &str = include_str!("../../../configs/10-dpu-offload.conflist");

/// A container runtime. All methods may be called from several threads.
pub trait Runtime: Sync {
    /// Runs a pod and returns its ID, or the runtime's error.
    ///
    /// # Errors
    /// The runtime's error.
    fn run(&self, name: &str) -> Result<String, String>;

    /// Runs a pod with a published TCP port: the first number on the host, the second in the pod.
    ///
    /// # Errors
    /// The runtime's error.
    fn run_with_port(&self, name: &str, port: (u16, u16)) -> Result<String, String>;

    /// Ends a pod's processes and keeps the rest.
    ///
    /// # Errors
    /// The runtime's error.
    fn stop(&self, id: &str) -> Result<(), String>;

    /// Removes a pod, which may still run.
    ///
    /// # Errors
    /// The runtime's error.
    fn remove(&self, id: &str) -> Result<(), String>;

    /// IDs of all pods that the runtime knows, running or not.
    fn ids(&self) -> Vec<String>;

    /// Name of a pod's network namespace, while it has one.
    fn netns(&self, id: &str) -> Option<String>;

    /// Kills the runtime's processes with SIGKILL.
    fn crash(&self);

    /// Starts the runtime's daemons after a crash, and does the manual steps that its page documents.
    fn recover(&self);

    /// Restarts the runtime's daemons with SIGTERM.
    fn restart(&self);
}

/// A runtime, in the installed version: `hack/runtimes run` has that of the machine's Debian, `hack/runtimes --next
/// run` that of the next one.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// containerd through its CRI.
    Containerd,
    /// containerd built with adapters/go-cni, without CNI plugins and configurations.
    ContainerdWithGoCni,
    /// podman's command line: with CNI before version 5, then with netavark.
    Podman,
}

impl Kind {
    /// Sets the runtime up on the lab's host.
    pub(crate) fn install(self, lab: &Lab) -> Box<dyn Runtime> {
        match self {
            Self::Containerd => Box::new(Containerd::install(lab)),
            Self::ContainerdWithGoCni => Box::new(Containerd::install_with_go_cni(lab)),
            Self::Podman => Box::new(Podman::install(lab)),
        }
    }
}

/// Writes the shipped CNI configuration for the lab's agent, changed by `change`, as this file in the lab's folder.
/// Returns its folder. Runtimes read `net.d`.
///
/// # Panics
/// If it cannot be written.
pub fn write_conflist(lab: &Lab, file: &str, change: impl FnOnce(&mut Value)) -> PathBuf {
    let path = lab.path().join(file);
    let folder = path.parent().unwrap();
    fs::create_dir_all(folder).unwrap();
    let mut conflist: Value = serde_json::from_str(CONFLIST).unwrap();
    conflist["plugins"][0]["agentSocket"] = json!(lab.socket());
    change(&mut conflist);
    fs::write(&path, conflist.to_string()).unwrap();
    folder.to_path_buf()
}

/// Folder of CNI configurations: with the shipped one, unless the test has written another.
fn conflists(lab: &Lab) -> PathBuf {
    let folder = lab.path().join("net.d");
    match folder.join("10-dpu-offload.conflist").exists() {
        true => folder,
        false => write_conflist(lab, "net.d/10-dpu-offload.conflist", |_shipped| ()),
    }
}

/// A section of the configuration as a runtime's page shows it, with another folder of CNI configurations.
fn shown(page: &str, section: &str, conflists: &Path) -> String {
    let blocks = page.split("```").skip(1).step_by(2);
    let mut of_section = blocks.filter(|block| block.contains(section));
    let block = of_section.next().unwrap_or_else(|| panic!("no block of the page has {section}"));
    block.replace("/etc/cni/net.d", conflists.to_str().unwrap())
}

/// Version that a program reports, major and minor.
fn version_of(program: &str) -> (u32, u32) {
    let output = run(Command::new(program).arg("--version"));
    let text = String::from_utf8(output.stdout).unwrap();
    let version = |word: &str| {
        let mut numbers = word.trim_start_matches('v').split('.').map(|number| number.parse().ok());
        numbers.next()?.zip(numbers.next()?)
    };
    text.split_whitespace().find_map(version).unwrap_or_else(|| panic!("{program} says {text}"))
}

/// The image's archive.
fn image() -> PathBuf {
    let variable = std::env::var_os("OFFLOAD_RUNTIMES_IMAGE");
    variable.expect("the environment that hack/runtimes run makes").into()
}

/// Control group of everything that a lab's pods run.
fn control_group(lab: &Lab) -> String {
    let variable = std::env::var("OFFLOAD_RUNTIMES_CGROUP");
    let run = variable.expect("the environment that hack/runtimes run makes");
    format!("/{run}/{}", last_of(lab.path()))
}

/// The last part of a path.
fn last_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}
