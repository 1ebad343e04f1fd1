//! podman in the lab's host namespace, with its own store: with CNI before version 5, then with netavark.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::{Read, Seek},
    path::{Path, PathBuf},
    process::{Command, ExitStatus, Stdio},
    sync::Arc,
};

use nix::{
    errno::Errno,
    mount::umount,
    sys::{
        signal::{Signal, kill},
        wait::{Id, WaitPidFlag, waitid},
    },
    unistd::Pid,
};
use parking_lot::{Mutex, MutexGuard};

use super::{IMAGE, Runtime, conflists, control_group, image, last_of, shown, version_of};
use crate::{Lab, Netns, run};

/// The documented configurations.
const PAGE_OF_CNI: &str = include_str!("../../../docs/runtimes/podman-4.md");
const PAGE_OF_NETAVARK: &str = include_str!("../../../docs/runtimes/podman-5.md");

/// The default network, in podman and on the DPU.
const NETWORK: &str = "blue";

/// podman has no daemon: each call is a process.
#[derive(Debug)]
pub struct Podman {
    host: Arc<Netns>,
    folder: PathBuf,
    /// The agent's socket.
    socket: PathBuf,
    has_cni: bool,
    control_group: String,
    /// Running calls. A process is removed from here before it is reaped.
    calls: Mutex<BTreeSet<Pid>>,
}

impl Podman {
    /// Sets podman up on the lab's host.
    ///
    /// # Panics
    /// If it cannot load the image.
    #[must_use]
    pub fn install(lab: &Lab) -> Self {
        let folder = lab.path().join("podman");
        fs::create_dir(&folder).unwrap();
        let has_cni = version_of("podman").0 < 5;
        let network = if has_cni { by_cni(&conflists(lab)) } else { by_netavark(&folder) };
        fs::write(folder.join("containers.conf"), configuration(&folder, &network)).unwrap();
        fs::write(folder.join("storage.conf"), storage(&folder)).unwrap();
        let (host, calls) = (Arc::clone(&lab.card.host), Mutex::default());
        let socket = lab.socket();
        let podman =
            Self { host, folder, socket, has_cni, control_group: control_group(lab), calls };
        let loaded = podman.output(&["load", "--input", image().to_str().unwrap()]);
        assert!(loaded.is_ok(), "{loaded:?}");
        if !has_cni {
            podman.create(NETWORK, &[]).unwrap();
        }
        podman
    }

    /// Creates a network with netavark's plugin and these options.
    ///
    /// # Errors
    /// podman's error.
    pub fn create(&self, network: &str, options: &[&str]) -> Result<String, String> {
        let socket = format!("agent_socket={}", self.socket.display());
        let create = ["network", "create", "--driver", "dpu-offload", "--opt", &socket];
        self.output(&[&create, options, &[network]].concat())
    }

    /// Runs a container with these options.
    ///
    /// # Errors
    /// podman's error.
    pub fn run_with(&self, name: &str, options: &[&str]) -> Result<String, String> {
        let run = ["run", "--detach", "--name", name, "--cgroup-parent", &self.control_group];
        let says_network = self.has_cni || options.contains(&"--network");
        let network: &[&str] = if says_network { &[] } else { &["--network", NETWORK] };
        self.output(&[&run, network, options, &[IMAGE]].concat())
    }

    /// The output of podman with these arguments.
    ///
    /// # Errors
    /// podman's error.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn output(&self, arguments: &[&str]) -> Result<String, String> {
        let (printed, complained) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
        let mut command = self.command(arguments);
        // A file, not a pipe: the plugin of a killed podman would hold a pipe open.
        command.stdout(printed.try_clone().unwrap()).stderr(complained.try_clone().unwrap());
        match self.call(&mut command).success() {
            true => Ok(text_of(printed).trim().to_owned()),
            false => Err(text_of(complained)),
        }
    }

    fn call(&self, command: &mut Command) -> ExitStatus {
        let mut child = command.spawn().unwrap();
        let id = Pid::from_raw(i32::try_from(child.id()).unwrap());
        self.calls().insert(id);
        waitid(Id::Pid(id), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT).unwrap();
        self.calls().remove(&id);
        child.wait().unwrap()
    }

    fn unmount(&self, id: &str) -> Result<(), String> {
        let memory = self.folder.join("graph/vfs-containers").join(id).join("userdata/shm");
        match umount(&memory) {
            Ok(()) | Err(Errno::ENOENT) => Ok(()),
            Err(error) => Err(format!("{}: {error}", memory.display())),
        }
    }

    fn calls(&self) -> MutexGuard<'_, BTreeSet<Pid>> {
        self.calls.lock()
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.host.command("podman");
        command
            .env("CONTAINERS_CONF", self.folder.join("containers.conf"))
            .env("CONTAINERS_STORAGE_CONF", self.folder.join("storage.conf"))
            .env("PODMAN_IGNORE_CGROUPSV1_WARNING", "1")
            .arg("--tmpdir")
            .arg(self.folder.join("tmp"))
            .args(arguments)
            .stdin(Stdio::null());
        command
    }
}

impl Runtime for Podman {
    fn run(&self, name: &str) -> Result<String, String> {
        self.run_with(name, &[])
    }

    fn run_with_port(&self, name: &str, (port, own): (u16, u16)) -> Result<String, String> {
        self.run_with(name, &["--publish", &format!("{port}:{own}")])
    }

    fn stop(&self, id: &str) -> Result<(), String> {
        self.output(&["stop", "--time", "0", id]).map(drop)
    }

    /// A killed podman has forgotten its mounts for the container. The next podman then reports that it cannot remove
    /// the container, although it sometimes has removed everything.
    fn remove(&self, id: &str) -> Result<(), String> {
        let remove = || self.output(&["rm", "--force", "--ignore", "--time", "0", id]).map(drop);
        remove().or_else(|complaint| match complaint.contains("resource busy") {
            true => self.unmount(id).and_then(|()| remove()),
            false => Err(complaint),
        })
    }

    fn ids(&self) -> Vec<String> {
        let ids = self.output(&["ps", "--all", "--no-trunc", "--quiet"]).unwrap();
        ids.lines().map(str::to_owned).collect()
    }

    fn netns(&self, id: &str) -> Option<String> {
        let path =
            self.output(&["inspect", "--format", "{{.NetworkSettings.SandboxKey}}", id]).ok()?;
        (!path.is_empty()).then(|| last_of(Path::new(&path)))
    }

    fn crash(&self) {
        for id in &*self.calls() {
            let _ = kill(*id, Signal::SIGKILL);
        }
    }

    /// Only the processes that wait for containers' ends run all the time. They must not be restarted.
    fn restart(&self) {}

    /// Deletes the namespaces that a podman left behind which was killed during a start. The agent must assume that a
    /// successful ADD into such a namespace has a pod, so a person has to delete it. Only one test at a time has
    /// namespaces there.
    fn recover(&self) {
        let known: BTreeSet<_> = self.ids().iter().filter_map(|id| self.netns(id)).collect();
        let all = fs::read_dir("/run/netns").unwrap();
        let names = all.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        for netns in names.filter(|name| name.starts_with("netns-") && !known.contains(name)) {
            let output = run(Command::new("ip").args(["netns", "delete", &netns]));
            assert!(output.status.success(), "{output:?}");
        }
    }
}

fn text_of(mut file: File) -> String {
    let mut bytes = Vec::new();
    file.rewind().unwrap();
    file.read_to_end(&mut bytes).unwrap();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Configuration with the page's section of networks, for CNI.
fn by_cni(conflists: &Path) -> String {
    shown(PAGE_OF_CNI, "[network]", conflists)
}

/// Configuration for netavark, with an own folder for podman's networks.
fn by_netavark(folder: &Path) -> String {
    let networks = folder.join("networks");
    let section = shown(PAGE_OF_NETAVARK, "[network]", &networks);
    format!("{section}network_config_dir = {networks:?}\n")
}

/// Uses runc, which works with any kind of control groups, and leaves limits unchanged, because not every machine
/// allows more.
fn configuration(folder: &Path, network: &str) -> String {
    format!(
        r#"[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "runc"
infra_image = "{IMAGE}"
static_dir = {static_dir:?}
volume_path = {volumes:?}
{network}
[containers]
default_ulimits = ["nofile=1024:4096", "nproc=4096:4096"]
"#,
        static_dir = folder.join("static"),
        volumes = folder.join("volumes"),
    )
}

fn storage(folder: &Path) -> String {
    let (graph, run) = (folder.join("graph"), folder.join("run"));
    format!("[storage]\ndriver = \"vfs\"\ngraphroot = {graph:?}\nrunroot = {run:?}\n")
}
