//! containerd in the lab's host namespace, with its own folders and socket.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use serde_json::Value;

use super::{
    IMAGE, PodOptions, Runtime, conflists, control_group, cri::Cri, image, last_of, shown,
    version_of,
};
use crate::{Lab, Netns, Program, run, wait_for};

/// The documented configuration.
const PAGE: &str = include_str!("../../../docs/runtimes/containerd.md");

/// Configuration of every runtime.
const RUNC: &str = "runtime_type = \"io.containerd.runc.v2\"\npod_annotations = [\"*\"]\n";

/// Timeout of the start.
const START: Duration = Duration::from_secs(60);

/// The containerd executable.
#[derive(Debug)]
struct Executable {
    path: PathBuf,
    /// The agent that it asks without a plugin.
    agent: Option<PathBuf>,
}

/// A containerd, which ends on drop.
#[derive(Debug)]
pub struct Containerd {
    /// In a lock, because it is killed and restarted through `&self`.
    program: Mutex<Program>,
    cri: Cri,
    host: Arc<Netns>,
    folder: PathBuf,
    executable: Executable,
    control_group: String,
}

impl Containerd {
    /// Sets containerd up on the lab's host and waits until it accepts pods.
    ///
    /// # Panics
    /// If it does not come up.
    #[must_use]
    pub fn install(lab: &Lab) -> Self {
        Self::install_with(lab, "", &[])
    }

    /// Sets containerd up with further keys of its CNI configuration, and with further runtimes that have their own
    /// folders of CNI configurations.
    ///
    /// # Panics
    /// If it does not come up.
    #[must_use]
    pub fn install_with(lab: &Lab, cni: &str, runtimes: &[(&str, &Path)]) -> Self {
        let executable = Executable { path: "containerd".into(), agent: None };
        Self::install_executable(lab, executable, |folder| {
            configuration(folder, &conflists(lab), cni, runtimes)
        })
    }

    /// Sets up the containerd that is built with adapters/go-cni and has neither CNI plugins nor CNI configurations.
    ///
    /// # Panics
    /// If it does not come up.
    #[must_use]
    pub fn install_with_go_cni(lab: &Lab) -> Self {
        let variable = std::env::var_os("OFFLOAD_RUNTIMES_GO_CNI");
        let path = variable.expect("the environment that hack/runtimes run makes").into();
        let nothing = lab.path().join("nothing");
        fs::create_dir(&nothing).unwrap();
        let executable = Executable { path, agent: Some(lab.socket()) };
        Self::install_executable(lab, executable, |folder| {
            let plugins = nothing.to_str().unwrap();
            configuration(folder, &nothing, "", &[]).replace("/usr/lib/cni", plugins)
        })
    }

    fn install_executable(
        lab: &Lab,
        executable: Executable,
        configuration: impl FnOnce(&Path) -> String,
    ) -> Self {
        let folder = lab.path().join("containerd");
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("config.toml"), configuration(&folder)).unwrap();
        let host = Arc::clone(&lab.card.host);
        let program = Mutex::new(start(&host, &folder, &executable));
        let cri = Cri::new(&socket(&folder));
        let control_group = control_group(lab);
        let containerd = Self { program, cri, host, folder, executable, control_group };
        containerd.wait_until_ready();
        containerd.import_image();
        containerd
    }

    /// Version, major and minor.
    ///
    /// # Panics
    /// If it reports none.
    #[must_use]
    pub fn version() -> (u32, u32) {
        version_of("containerd")
    }

    /// Runs a pod with these annotations.
    ///
    /// # Errors
    /// containerd's error.
    pub fn run_with(&self, name: &str, annotations: &[(&str, &str)]) -> Result<String, String> {
        self.run_as(name, &PodOptions { annotations, ..PodOptions::default() })
    }

    /// Runs a pod with these options.
    ///
    /// # Errors
    /// containerd's error.
    pub fn run_as(&self, name: &str, asked: &PodOptions<'_>) -> Result<String, String> {
        self.cri.run(name, asked, self.control_group.clone())
    }

    /// The addresses that containerd reports for a pod.
    ///
    /// # Panics
    /// If it knows no such pod.
    #[must_use]
    pub fn addresses(&self, id: &str) -> Vec<String> {
        self.cri.addresses(id).unwrap()
    }

    /// Whether containerd reports that pods can have a network.
    ///
    /// # Panics
    /// If it does not answer.
    #[must_use]
    pub fn has_network(&self) -> bool {
        self.cri.conditions().unwrap().iter().any(|condition| condition == "NetworkReady")
    }

    /// The CNI result of a pod that containerd has stored.
    ///
    /// # Panics
    /// If it knows no such pod, or stores none.
    #[must_use]
    pub fn cni_result(&self, id: &str) -> Value {
        self.cri.info(id).unwrap()["cniResult"].clone()
    }

    /// containerd's view of its CNI configurations.
    ///
    /// # Panics
    /// If it does not answer.
    #[must_use]
    pub fn cni_configurations(&self) -> Value {
        self.cri.cni_configurations().unwrap()
    }

    fn wait_until_ready(&self) {
        wait_for("containerd to be ready for pods", START, || {
            let good = self.cri.conditions().ok()?;
            ["RuntimeReady", "NetworkReady"]
                .iter()
                .all(|one| good.iter().any(|it| it == one))
                .then_some(())
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

    fn run_with_port(&self, name: &str, port: (u16, u16)) -> Result<String, String> {
        self.run_as(name, &PodOptions { ports: &[port], ..PodOptions::default() })
    }

    fn stop(&self, id: &str) -> Result<(), String> {
        self.cri.stop(id)
    }

    /// Stops first, like the kubelet: containerd refuses to remove a running pod.
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
        self.program.lock().crash();
    }

    fn recover(&self) {
        let program = start(&self.host, &self.folder, &self.executable);
        *self.program.lock() = program;
        self.wait_until_ready();
    }

    fn restart(&self) {
        self.program.lock().stop();
        self.recover();
    }
}

fn socket(folder: &Path) -> PathBuf {
    folder.join("containerd.sock")
}

fn start(host: &Netns, folder: &Path, executable: &Executable) -> Program {
    let mut command = host.command(&executable.path);
    command.envs(executable.agent.iter().map(|socket| ("DPU_OFFLOAD_SOCKET", socket)));
    command.arg("--config").arg(folder.join("config.toml"));
    Program::spawn("containerd", command, folder, &[])
}

/// Debian's configuration with other folders, without what needs a kernel module or changes the whole machine.
fn configuration(folder: &Path, conflists: &Path, cni: &str, others: &[(&str, &Path)]) -> String {
    let format = Format::of(Containerd::version());
    let (cri, runtimes) = (format.runtime, format!("{}.containerd.runtimes", format.runtime));
    let other = |(name, conflists): &(&str, &Path)| {
        format!("{runtimes}.{name}]\n{RUNC}cni_conf_dir = {conflists:?}\ncni_max_conf_num = 1\n")
    };
    let others: String = others.iter().map(other).collect();
    let shown = shown(PAGE, &format!("{cri}.cni]"), conflists);
    format!(
        r#"version = {version}
root = {root:?}
state = {state:?}
[grpc]
address = {socket:?}
[ttrpc]
address = {ttrpc:?}
[plugins."io.containerd.internal.v1.opt"]
path = {opt:?}
{cri}]
disable_apparmor = true
disable_hugetlb_controller = true
restrict_oom_score_adj = true
{images}
{shown}
{cni}
{runtimes}.runc]
{RUNC}{others}"#,
        version = format.version,
        images = format.images,
        root = folder.join("root"),
        state = folder.join("state"),
        socket = socket(folder),
        ttrpc = folder.join("ttrpc.sock"),
        opt = folder.join("opt"),
    )
}

/// Differences of the configuration between versions.
struct Format {
    version: u32,
    /// Prefix of CRI sections.
    runtime: &'static str,
    /// Image of pods, and how images are stored.
    images: String,
}

impl Format {
    fn of((major, _): (u32, u32)) -> Self {
        match major {
            ..2 => Self {
                version: 2,
                runtime: r#"[plugins."io.containerd.grpc.v1.cri""#,
                images: format!(
                    r#"sandbox_image = "{IMAGE}"
[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "native""#
                ),
            },
            2.. => Self {
                version: 3,
                runtime: "[plugins.'io.containerd.cri.v1.runtime'",
                images: format!(
                    r#"[plugins.'io.containerd.cri.v1.images']
snapshotter = "native"
[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = "{IMAGE}""#
                ),
            },
        }
    }
}
