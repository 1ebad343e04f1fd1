//! containerd in the lab's host namespace, with folders and a socket of its own.

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use super::{IMAGE, Runtime, control_group, cri::Cri, image, last_of, shown, write_conflist};
use crate::{Lab, Netns, Program, run, wait_for};

/// What people are told to write into its configuration.
const PAGE: &str = include_str!("../../../docs/runtimes/containerd.md");

/// How long it may take to come up.
const START: Duration = Duration::from_secs(60);

/// A containerd, which ends when it is dropped.
#[derive(Debug)]
pub struct Containerd {
    /// Killed and started again by whoever only looks at it otherwise.
    program: Mutex<Program>,
    cri: Cri,
    host: Arc<Netns>,
    folder: PathBuf,
    control_group: String,
}

impl Containerd {
    /// Sets it up on the lab's host and waits until it is ready for pods.
    ///
    /// # Panics
    /// When it does not come up.
    #[must_use]
    pub fn install(lab: &Lab) -> Self {
        let folder = lab.path().join("containerd");
        fs::create_dir(&folder).unwrap();
        let conflists = write_conflist(lab);
        fs::write(folder.join("config.toml"), configuration(&folder, &conflists)).unwrap();
        let host = Arc::clone(&lab.card.host);
        let program = Mutex::new(start(&host, &folder));
        let cri = Cri::new(&socket(&folder));
        let containerd = Self { program, cri, host, folder, control_group: control_group(lab) };
        containerd.wait_until_ready();
        containerd.import_image();
        containerd
    }

    /// Its version, major and minor.
    ///
    /// # Panics
    /// When it tells none.
    #[must_use]
    pub fn version() -> (u32, u32) {
        let output = run(Command::new("containerd").arg("--version"));
        let text = String::from_utf8(output.stdout).unwrap();
        let version = text.split_whitespace().nth(2).unwrap_or_default().trim_start_matches('v');
        let mut numbers = version.split('.').map_while(|number| number.parse().ok());
        (numbers.next().expect("a major version"), numbers.next().expect("a minor version"))
    }

    /// Runs a pod with these annotations.
    ///
    /// # Errors
    /// containerd's own words.
    pub fn run_with(&self, name: &str, annotations: &[(&str, &str)]) -> Result<String, String> {
        let pair = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        let annotations: HashMap<_, _> = annotations.iter().map(pair).collect();
        self.cri.run(name, annotations, self.control_group.clone())
    }

    /// The addresses that it tells of a pod.
    ///
    /// # Panics
    /// When it knows no such pod.
    #[must_use]
    pub fn addresses(&self, id: &str) -> Vec<String> {
        self.cri.addresses(id).unwrap()
    }

    /// Whether it says that pods can have a network.
    ///
    /// # Panics
    /// When it does not answer.
    #[must_use]
    pub fn has_network(&self) -> bool {
        self.cri.conditions().unwrap().iter().any(|condition| condition == "NetworkReady")
    }

    fn wait_until_ready(&self) {
        wait_for("containerd to be ready for pods", START, || {
            (self.cri.conditions().ok()?.len() == 2).then_some(())
        });
    }

    fn import_image(&self) {
        let mut ctr = Command::new("ctr");
        ctr.arg("--address").arg(socket(&self.folder));
        let output = run(ctr.args(["--namespace", "k8s.io", "images", "import"]).arg(image()));
        assert!(output.status.success(), "{output:?}");
    }
}

impl Runtime for Containerd {
    fn run(&self, name: &str) -> Result<String, String> {
        self.run_with(name, &[])
    }

    fn stop(&self, id: &str) -> Result<(), String> {
        self.cri.stop(id)
    }

    /// As the kubelet does: containerd refuses to remove what was not stopped.
    fn remove(&self, id: &str) -> Result<(), String> {
        self.cri.stop(id)?;
        self.cri.remove(id)
    }

    fn ids(&self) -> Vec<String> {
        self.cri.ids().unwrap()
    }

    fn netns(&self, id: &str) -> Option<String> {
        let netns = self.cri.netns(id)?;
        Some(last_of(Path::new(&netns)))
    }

    fn crash(&self) {
        self.program.lock().unwrap_or_else(PoisonError::into_inner).crash();
    }

    fn recover(&self) {
        let program = start(&self.host, &self.folder);
        *self.program.lock().unwrap_or_else(PoisonError::into_inner) = program;
        self.wait_until_ready();
    }
}

fn socket(folder: &Path) -> PathBuf {
    folder.join("containerd.sock")
}

fn start(host: &Netns, folder: &Path) -> Program {
    let mut command = host.command("containerd");
    command.arg("--config").arg(folder.join("config.toml"));
    Program::spawn("containerd", command, folder, &[])
}

/// As Debian's package has it, but for its folders, and for what needs a kernel module or the right to
/// change what the whole machine has.
fn configuration(folder: &Path, conflists: &Path) -> String {
    format!(
        r#"version = 2
root = {root:?}
state = {state:?}
[grpc]
address = {socket:?}
[ttrpc]
address = {ttrpc:?}
[plugins."io.containerd.internal.v1.opt"]
path = {opt:?}
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{IMAGE}"
disable_apparmor = true
disable_hugetlb_controller = true
restrict_oom_score_adj = true
{network}
[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "native"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
pod_annotations = ["*"]
"#,
        network = shown(PAGE, "[plugins.\"io.containerd.grpc.v1.cri\".cni]", conflists),
        root = folder.join("root"),
        state = folder.join("state"),
        socket = socket(folder),
        ttrpc = folder.join("ttrpc.sock"),
        opt = folder.join("opt"),
    )
}
