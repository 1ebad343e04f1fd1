//! Real container runtimes, as `hack/runtimes run` has them: what a pod is to each, behind one contract.

mod containerd;
mod cri;
mod node;
mod podman;

use std::path::{Path, PathBuf};

use serde_json::json;

pub use containerd::Containerd;
pub(crate) use cri::Cri;
pub use node::Node;
pub use podman::Podman;

use crate::Lab;

/// The image that all pods run, which `hack/runtimes` makes.
const IMAGE: &str = "localhost/pod:1";

/// The configuration that we ship.
const CONFLIST: &str = include_str!("../../../configs/10-dpu-offload.conflist");

/// What runs pods. All of it works on several threads at once.
pub trait Runtime: Sync {
    /// Runs a pod of that name and returns its id, or what the runtime complains of.
    ///
    /// # Errors
    /// The runtime's own words.
    fn run(&self, name: &str) -> Result<String, String>;

    /// Ends a pod's processes, and leaves what else it has.
    ///
    /// # Errors
    /// The runtime's own words.
    fn stop(&self, id: &str) -> Result<(), String>;

    /// Takes a pod away, which may run still.
    ///
    /// # Errors
    /// The runtime's own words.
    fn remove(&self, id: &str) -> Result<(), String>;

    /// The ids of all pods that the runtime knows of, whether they run or not.
    fn ids(&self) -> Vec<String>;

    /// The name of a pod's network namespace, unless it has none any more.
    fn netns(&self, id: &str) -> Option<String>;

    /// Kills whatever the runtime is doing with SIGKILL.
    fn crash(&self);

    /// After a crash: starts what has to run all the time, and does what its pages leave to a person.
    fn recover(&self);
}

/// Which runtime a scenario is tried with.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// containerd, through its CRI.
    Containerd,
    /// podman, by its command line.
    Podman,
}

impl Kind {
    /// Sets it up on the lab's host.
    pub(crate) fn install(self, lab: &Lab) -> Box<dyn Runtime> {
        match self {
            Self::Containerd => Box::new(Containerd::install(lab)),
            Self::Podman => Box::new(Podman::install(lab)),
        }
    }
}

/// Writes the shipped CNI configuration for the lab's agent into a folder of its own.
fn write_conflist(lab: &Lab) -> PathBuf {
    let folder = lab.path().join("net.d");
    std::fs::create_dir(&folder).unwrap();
    let mut conflist: serde_json::Value = serde_json::from_str(CONFLIST).unwrap();
    conflist["plugins"][0]["agentSocket"] = json!(lab.socket());
    std::fs::write(folder.join("10-dpu-offload.conflist"), conflist.to_string()).unwrap();
    folder
}

/// The configuration with that section as a runtime's page shows it, with another folder of CNI
/// configurations.
fn shown(page: &str, section: &str, conflists: &Path) -> String {
    let blocks = page.split("```").skip(1).step_by(2);
    let mut of_section = blocks.filter(|block| block.contains(section));
    let block = of_section.next().unwrap_or_else(|| panic!("no block of the page has {section}"));
    block.replace("/etc/cni/net.d", conflists.to_str().unwrap())
}

/// The image's archive.
fn image() -> PathBuf {
    let variable = std::env::var_os("OFFLOAD_RUNTIMES_IMAGE");
    variable.expect("the environment that hack/runtimes run makes").into()
}

/// The control group below which all that a lab's pods run is.
fn control_group(lab: &Lab) -> String {
    let variable = std::env::var("OFFLOAD_RUNTIMES_CGROUP");
    let run = variable.expect("the environment that hack/runtimes run makes");
    format!("/{run}/{}", last_of(lab.path()))
}

/// The last part of a path.
fn last_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}
