//! `host-shim-agent install` and `uninstall`, as the agent's image runs them on a host with changing pods.

use std::{
    fs,
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
    thread,
    time::Duration,
};

use e2e::{Lab, Netns, Settings, Stopwatch, program, run, wait_for};
use nix::sys::signal::Signal;

const LIMIT: Duration = Duration::from_secs(60);
const CONFLIST: &str = include_str!("../../../configs/10-dpu-offload.conflist");

/// A host's folders for runtimes, and two versions of an image's content.
struct Host {
    folder: PathBuf,
}

impl Host {
    fn new(folder: &Path) -> Self {
        let host = Self { folder: folder.to_owned() };
        for version in [1, 2] {
            fs::create_dir(host.image(version)).unwrap();
            fs::write(host.image(version).join("host-shim"), host.plugin(version)).unwrap();
            fs::write(host.image(version).join("list"), Self::list(version)).unwrap();
        }
        host
    }

    fn image(&self, version: usize) -> PathBuf {
        self.folder.join(format!("image-{version}"))
    }

    /// The plugin plus harmless bytes that identify the version.
    fn plugin(&self, version: usize) -> Vec<u8> {
        let mut content = fs::read(program("host-shim")).unwrap();
        content.resize(content.len() + version, b'\n');
        content
    }

    fn list(version: usize) -> String {
        CONFLIST.to_owned() + &"\n".repeat(version)
    }

    fn command(&self, verb: &str) -> Command {
        let mut command = Command::new(program("host-shim-agent"));
        command.arg(verb).arg("--plugin-folder").arg(self.folder.join("bin"));
        command.arg("--conflist").arg(self.conflist()).env("OFFLOAD_FAULTS", self.faults());
        command
    }

    fn install(&self, version: usize) -> Command {
        let mut command = self.command("install");
        command.arg("--plugin").arg(self.image(version).join("host-shim"));
        command.arg("--from").arg(self.image(version).join("list"));
        command
    }

    fn conflist(&self) -> PathBuf {
        self.folder.join("net.d/10-dpu-offload.conflist")
    }

    fn faults(&self) -> PathBuf {
        self.folder.join("faults-of-installer")
    }

    /// Kills the next call at this step.
    fn kill_at(&self, step: &str) {
        fs::create_dir_all(self.faults()).unwrap();
        fs::write(self.faults().join(format!("kill-{step}")), "").unwrap();
    }

    /// Versions of plugin and configuration. Each must be complete or absent.
    fn versions(&self) -> [Option<usize>; 2] {
        let plugin = fs::read(self.folder.join("bin/host-shim")).ok();
        let list = fs::read_to_string(self.conflist()).ok();
        [
            plugin.map(|it| (1..=2).find(|version| it == self.plugin(*version)).expect("whole")),
            list.map(|it| (1..=2).find(|version| it == Self::list(*version)).expect("whole")),
        ]
    }
}

fn succeeds(command: &mut Command) {
    let output = run(command);
    assert!(output.status.success(), "{output:?}");
}

fn is_killed(command: &mut Command) {
    let output = run(command);
    assert_eq!(output.status.signal(), Some(Signal::SIGKILL as i32), "{output:?}");
}

#[test]
fn killed_installer_finishes_when_repeated() {
    let folder = tempfile::tempdir().unwrap();
    let host = Host::new(folder.path());
    for (step, left) in
        [("plugin-installed", [Some(1), None]), ("conflist-installed", [Some(1), Some(1)])]
    {
        host.kill_at(step);
        is_killed(&mut host.install(1));
        assert_eq!(host.versions(), left, "{step}");
    }
    host.kill_at("plugin-installed");
    is_killed(&mut host.install(2));
    assert_eq!(host.versions(), [Some(2), Some(1)]);
    succeeds(&mut host.install(2));
    assert_eq!(host.versions(), [Some(2), Some(2)]);
    for (step, left) in [("conflist-removed", [Some(2), None]), ("plugin-removed", [None, None])] {
        host.kill_at(step);
        is_killed(&mut host.command("uninstall"));
        assert_eq!(host.versions(), left, "{step}");
    }
    succeeds(&mut host.command("uninstall"));
    let left = ["bin", "net.d"].map(|name| fs::read_dir(folder.path().join(name)).unwrap().count());
    assert_eq!(left, [0, 0]);
}

/// Ever earlier kills: at some time one of them hits the middle of a file.
#[test]
fn killed_installer_leaves_complete_files() {
    let folder = tempfile::tempdir().unwrap();
    let host = Host::new(folder.path());
    succeeds(&mut host.install(1));
    let mut unfinished = 0;
    for round in 0..40 {
        let mut installer = host.install(1 + round % 2).spawn().unwrap();
        let half = || folder.path().join("bin/host-shim.new").exists();
        // The call is writing the plugin, or has already finished: a copy takes no longer than the pause between two
        // looks.
        let begun = Stopwatch::start();
        while !half() && installer.try_wait().unwrap().is_none() && begun.elapsed() < LIMIT {}
        e2e::sleep_until_moment(Duration::from_micros(100 * round as u64));
        installer.kill().unwrap();
        installer.wait().unwrap();
        unfinished += u32::from(half());
        assert!(host.versions().iter().all(Option::is_some));
    }
    assert!(unfinished > 0, "none was killed amid its work");
    succeeds(&mut host.install(2));
    assert_eq!(host.versions(), [Some(2), Some(2)]);
}

#[test]
fn plugin_replacement_fails_no_call() {
    let lab = Lab::start(&Settings { cool_down: 0, ..Settings::default() });
    let host = Host::new(lab.path());
    succeeds(&mut host.install(1));
    let (over, answered) = (AtomicBool::new(false), AtomicU32::new(0));
    let come_and_go = || {
        let pod = Netns::new("pod");
        while !over.load(Ordering::Relaxed) {
            let _ = lab.add("blue", &pod, "eth0").result();
            lab.del("blue", &pod, "eth0").nothing();
            answered.fetch_add(1, Ordering::Relaxed);
        }
    };
    thread::scope(|scope| {
        let callers = [scope.spawn(come_and_go), scope.spawn(come_and_go)];
        for round in 0..10 {
            let before = answered.load(Ordering::Relaxed);
            if round % 3 == 2 {
                host.kill_at("plugin-installed");
                is_killed(&mut host.install(1 + round % 2));
            } else {
                succeeds(&mut host.install(1 + round % 2));
            }
            wait_for("the callers to be answered", LIMIT, || {
                let is_over = callers.iter().any(thread::ScopedJoinHandle::is_finished);
                (is_over || answered.load(Ordering::Relaxed) > before + 1).then_some(())
            });
        }
        over.store(true, Ordering::Relaxed);
        for caller in callers {
            caller.join().unwrap();
        }
    });
    lab.assert_clean_slate();
}
