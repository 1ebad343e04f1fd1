//! The product's programs as child processes. They end on drop.

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    fs::{self, File},
    os::{fd::OwnedFd, unix::net::UnixListener},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    time::Duration,
};

use nix::{
    errno::Errno,
    sys::{
        signal::{Signal, kill},
        wait::{Id, WaitPidFlag, WaitStatus, waitid},
    },
    unistd::Pid,
};

use serde_json::Value;

use crate::{Netns, command::run, wait_for};

/// Timeout for the end of a program after SIGTERM.
const GRACE: Duration = Duration::from_secs(60);

/// Log lines that a failed test shows.
const LINES_SHOWN: usize = 60;

/// Path of a program: in `OFFLOAD_BIN_DIR`, or beside the test's binary.
///
/// # Panics
/// If it has not been built.
#[must_use]
pub fn program(name: &str) -> PathBuf {
    let beside_tests = || {
        let test = std::env::current_exe().expect("the test's own path");
        test.ancestors().nth(2).expect("target/<profile>/deps").to_path_buf()
    };
    let folder = std::env::var_os("OFFLOAD_BIN_DIR").map_or_else(beside_tests, PathBuf::from);
    let path = folder.join(name);
    assert!(
        path.exists(),
        "{} is missing; build it: cargo build --workspace --all-features --bins",
        path.display()
    );
    path
}

/// The steps that the program lists itself.
pub(crate) fn steps(name: &str) -> Vec<String> {
    listed(name, "--list-steps")
}

/// The kill points that the program lists itself, in order.
pub(crate) fn kill_points(name: &str) -> Vec<String> {
    listed(name, "--list-kill-points")
}

fn listed(name: &str, option: &str) -> Vec<String> {
    let output = run(Command::new(program(name)).arg(option));
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).expect("names");
    let names: Vec<_> = text.lines().map(str::to_owned).collect();
    assert!(names.len() > 3, "{names:?}");
    names
}

/// Path from which a program is started.
pub(crate) fn installed(name: &str, folder: &Path) -> PathBuf {
    let installed = folder.join("bin").join(name);
    if installed.exists() { installed } else { program(name) }
}

/// Shell code that passes standard input to the program as its first socket.
const PASS_ON: &str = r#"exec 3<&0 </dev/null; export LISTEN_PID=$$ LISTEN_FDS=1; exec "$0" "$@""#;

/// A program in the foreground of its child process.
#[derive(Debug)]
pub struct Program {
    name: &'static str,
    child: Child,
    log: PathBuf,
}

impl Program {
    /// Starts `name` in a namespace, from `<folder>/bin` if that exists. Its output is appended to
    /// `<folder>/<name>.log`.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn start<A: AsRef<OsStr>>(
        name: &'static str,
        netns: &Netns,
        folder: &Path,
        arguments: impl IntoIterator<Item = A>,
        environment: &[(&str, &Path)],
    ) -> Self {
        let mut command = netns.command(installed(name, folder));
        command.args(arguments).stdin(Stdio::null());
        Self::spawn(name, command, folder, environment)
    }

    /// Starts a program and passes it a socket, as systemd does.
    ///
    /// # Panics
    /// If it cannot be started.
    pub(crate) fn start_on<A: AsRef<OsStr>>(
        held: &UnixListener,
        name: &'static str,
        netns: &Netns,
        folder: &Path,
        arguments: impl IntoIterator<Item = A>,
        environment: &[(&str, &Path)],
    ) -> Self {
        let held = held.try_clone().expect("share the socket");
        let mut command = netns.command("sh");
        command.args(["-c", PASS_ON]).arg(installed(name, folder));
        command.args(arguments).stdin(OwnedFd::from(held));
        Self::spawn(name, command, folder, environment)
    }

    pub(crate) fn spawn(
        name: &'static str,
        mut command: Command,
        folder: &Path,
        environment: &[(&str, &Path)],
    ) -> Self {
        let log = folder.join(format!("{name}.log"));
        let out = File::options().create(true).append(true).open(&log).expect("open the log");
        let child = command
            .envs(environment.iter().copied())
            .stdout(out.try_clone().expect("share the log"))
            .stderr(out)
            .spawn()
            .unwrap_or_else(|error| panic!("start {name}: {error}"));
        Self { name, child, log }
    }

    /// Its process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The complete log.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Number of log lines with this `event`, a name of [`offload_proto::log_event`].
    #[must_use]
    pub fn events(&self, event: &str) -> usize {
        let log = self.log();
        let is_one = |line: &&str| {
            serde_json::from_str::<Value>(line).is_ok_and(|line| line["event"] == event)
        };
        log.lines().filter(is_one).count()
    }

    /// Sends a signal.
    ///
    /// # Panics
    /// If the process is gone and reaped.
    pub fn signal(&self, signal: Signal) {
        let id = i32::try_from(self.child.id()).expect("process ids fit");
        kill(Pid::from_raw(id), signal).unwrap_or_else(|error| panic!("{}: {error}", self.name));
    }

    /// Whether the program handles the signal already, instead of dying from it.
    pub(crate) fn catches(&self, signal: Signal) -> bool {
        let status = fs::read_to_string(format!("/proc/{}/status", self.id())).unwrap_or_default();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        let mask = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
        mask.is_some_and(|mask| mask >> (signal as i32 - 1) & 1 == 1)
    }

    /// Peak memory so far, in KiB.
    ///
    /// # Panics
    /// If the kernel does not report it.
    #[must_use]
    pub fn peak_memory_kib(&self) -> usize {
        let status = fs::read_to_string(format!("/proc/{}/status", self.id())).unwrap();
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        peak.trim().trim_end_matches(" kB").parse().unwrap()
    }

    /// Inodes of the connections that the program has accepted on its socket at `path`, as the kernel lists them.
    ///
    /// # Panics
    /// If the kernel does not list them.
    #[must_use]
    pub fn connections(&self, path: &Path) -> BTreeSet<u64> {
        self.sockets(path, "03").into_iter().collect()
    }

    /// Number of connections on its socket at `path` that are not accepted yet.
    ///
    /// # Panics
    /// If the kernel does not list them.
    #[must_use]
    pub fn unaccepted(&self, path: &Path) -> usize {
        self.sockets(path, "02").len()
    }

    /// Inodes of the sockets at `path` in this state. A connection that is not accepted has inode 0.
    fn sockets(&self, path: &Path, state: &str) -> Vec<u64> {
        let sockets = fs::read_to_string(format!("/proc/{}/net/unix", self.id())).unwrap();
        let inode = |line: &str| {
            let fields: Vec<_> = line.split_whitespace().collect();
            let is_one = fields.get(5) == Some(&state) && fields.last() == path.to_str().as_ref();
            is_one.then(|| fields[6].parse().unwrap())
        };
        sockets.lines().filter_map(inode).collect()
    }

    /// Whether the program has ended, reaped or not.
    ///
    /// # Panics
    /// If the process cannot be asked.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.end() != Some(WaitStatus::StillAlive)
    }

    /// Whether SIGKILL ended the program. It is not reaped yet.
    pub(crate) fn is_killed(&self) -> bool {
        matches!(self.end(), Some(WaitStatus::Signaled(_, Signal::SIGKILL, _)))
    }

    /// How the program ended, if it has. `None` after it was reaped.
    fn end(&self) -> Option<WaitStatus> {
        let id = Id::Pid(Pid::from_raw(i32::try_from(self.child.id()).expect("process ids fit")));
        let look = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        match waitid(id, look) {
            Ok(status) => Some(status),
            Err(Errno::ECHILD) => None,
            Err(error) => panic!("{}: {error}", self.name),
        }
    }

    /// Exit status, if the program has ended.
    ///
    /// # Panics
    /// If the process cannot be asked.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("ask for the child")
    }

    /// Kills the program.
    pub fn crash(&mut self) {
        self.signal(Signal::SIGKILL);
        self.child.wait().expect("reap the child");
    }

    /// Terminates the program and waits for its end.
    ///
    /// # Panics
    /// If it does not end in time.
    pub fn stop(&mut self) -> ExitStatus {
        if let Some(status) = self.ended() {
            return status;
        }
        self.signal(Signal::SIGTERM);
        wait_for(&format!("{} to end", self.name), GRACE, || self.ended())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<_> = log.lines().collect();
            let last = &lines[lines.len().saturating_sub(LINES_SHOWN)..];
            eprintln!("--- {} said last:\n{}", self.name, last.join("\n"));
        }
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
