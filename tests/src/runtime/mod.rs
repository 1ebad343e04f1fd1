//! Real container runtimes, as `hack/runtimes run` has them: what a pod is to each, behind one contract.

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
pub use cri::Asked;
pub(crate) use cri::Cri;
pub use node::Node;
pub use podman::Podman;
pub use traffic::Conversation;

use crate::{Lab, run};

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

    /// Runs a pod to whose port of TCP, the second, another leads, the first.
    ///
    /// # Errors
    /// The runtime's own words.
    fn run_with_port(&self, name: &str, port: (u16, u16)) -> Result<String, String>;

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

    /// Ends what of it runs all the time with SIGTERM, and starts it again.
    fn restart(&self);
}

/// Which runtime a scenario is tried with, in the version that there is: `hack/runtimes run` has that of the
/// machine's own Debian, `hack/runtimes --next run` that of the next one.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// containerd, through its CRI.
    Containerd,
    /// containerd, built with the package adapters/go-cni, which has neither plugins nor configurations of CNI.
    ContainerdWithGoCni,
    /// podman, by its command line: with CNI before version 5, and by netavark from then on.
    Podman,
}

impl Kind {
    /// Sets it up on the lab's host.
    pub(crate) fn install(self, lab: &Lab) -> Box<dyn Runtime> {
        match self {
            Self::Containerd => Box::new(Containerd::install(lab)),
            Self::ContainerdWithGoCni => Box::new(Containerd::install_with_go_cni(lab)),
            Self::Podman => Box::new(Podman::install(lab)),
        }
    }
}

/// Writes the shipped CNI configuration for the lab's agent, changed by `change`, as a file of that path in the
/// lab's folder, and returns the folder that it is in. Runtimes read `net.d`.
///
/// # Panics
/// When it can't be written.
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

/// The folder of CNI configurations, with the shipped one unless the test has put another in its place.
fn conflists(lab: &Lab) -> PathBuf {
    let folder = lab.path().join("net.d");
    match folder.join("10-dpu-offload.conflist").exists() {
        true => folder,
        false => write_conflist(lab, "net.d/10-dpu-offload.conflist", |_shipped| ()),
    }
}

/// The configuration with that section as a runtime's page shows it, with another folder of CNI
/// configurations.
fn shown(page: &str, section: &str, conflists: &Path) -> String {
    let blocks = page.split("```").skip(1).step_by(2);
    let mut of_section = blocks.filter(|block| block.contains(section));
    let block = of_section.next().unwrap_or_else(|| panic!("no block of the page has {section}"));
    block.replace("/etc/cni/net.d", conflists.to_str().unwrap())
}

/// The version that a program tells of itself, major and minor.
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
