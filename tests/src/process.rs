//! Real programs as child processes, ended when they are dropped.

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

/// How long a program may take to end after SIGTERM.
const GRACE: Duration = Duration::from_secs(60);

/// Lines of a program's log that a failed test shows.
const LINES_SHOWN: usize = 60;

/// The path of one of our programs: in `OFFLOAD_BIN_DIR`, or beside the test's own binary.
///
/// # Panics
/// When it has not been built.
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

/// The steps that the program `name` names itself, so that none is forgotten.
pub(crate) fn steps(name: &str) -> Vec<String> {
    listed(name, "--list-steps")
}

/// The points at which the program `name` says itself that it can be killed, in order.
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

/// Where a program is started from.
pub(crate) fn installed(name: &str, folder: &Path) -> PathBuf {
    let installed = folder.join("bin").join(name);
    if installed.exists() { installed } else { program(name) }
}

/// Makes standard input the first socket that is passed to the program.
const PASS_ON: &str = r#"exec 3<&0 </dev/null; export LISTEN_PID=$$ LISTEN_FDS=1; exec "$0" "$@""#;

/// A program of ours that stays in the foreground of its child process.
#[derive(Debug)]
pub struct Program {
    name: &'static str,
    child: Child,
    log: PathBuf,
}

impl Program {
    /// Starts `name` in a netns, from `<folder>/bin` if it is there; what it says is appended to
    /// `<folder>/<name>.log`.
    ///
    /// # Panics
    /// When it can't be started.
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

    /// Starts it likewise, and passes it a socket as systemd does.
    ///
    /// # Panics
    /// When it can't be started.
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

    /// All that it said.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// How many lines of its log have this `event`, a name of [`offload_proto::log_event`].
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
    /// When the process is gone and reaped.
    pub fn signal(&self, signal: Signal) {
        let id = i32::try_from(self.child.id()).expect("process ids fit");
        kill(Pid::from_raw(id), signal).unwrap_or_else(|error| panic!("{}: {error}", self.name));
    }

    /// Whether it has got so far that the signal is told to it rather than ends it.
    pub(crate) fn catches(&self, signal: Signal) -> bool {
        let status = fs::read_to_string(format!("/proc/{}/status", self.id())).unwrap_or_default();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        let mask = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
        mask.is_some_and(|mask| mask >> (signal as i32 - 1) & 1 == 1)
    }

    /// The most memory that it has had so far, in KiB.
    ///
    /// # Panics
    /// When the kernel does not tell.
    #[must_use]
    pub fn peak_memory_kib(&self) -> usize {
        let status = fs::read_to_string(format!("/proc/{}/status", self.id())).unwrap();
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        peak.trim().trim_end_matches(" kB").parse().unwrap()
    }

    /// The inodes of the connections that it has accepted on its socket at `path`, as the kernel lists them.
    ///
    /// # Panics
    /// When the kernel does not tell.
    #[must_use]
    pub fn connections(&self, path: &Path) -> BTreeSet<u64> {
        self.sockets(path, "03").into_iter().collect()
    }

    /// How many connections on its socket at `path` it has not accepted yet.
    ///
    /// # Panics
    /// When the kernel does not tell.
    #[must_use]
    pub fn unaccepted(&self, path: &Path) -> usize {
        self.sockets(path, "02").len()
    }

    /// The inodes of the sockets at `path` in that state. A connection that is not accepted yet has inode 0.
    fn sockets(&self, path: &Path, state: &str) -> Vec<u64> {
        let sockets = fs::read_to_string(format!("/proc/{}/net/unix", self.id())).unwrap();
        let inode = |line: &str| {
            let fields: Vec<_> = line.split_whitespace().collect();
            let is_one = fields.get(5) == Some(&state) && fields.last() == path.to_str().as_ref();
            is_one.then(|| fields[6].parse().unwrap())
        };
        sockets.lines().filter_map(inode).collect()
    }

    /// Whether it has ended, be it reaped or not.
    ///
    /// # Panics
    /// When the process can't be asked.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.end() != Some(WaitStatus::StillAlive)
    }

    /// Whether SIGKILL has ended it, rather than it itself. It is not reaped yet.
    pub(crate) fn is_killed(&self) -> bool {
        matches!(self.end(), Some(WaitStatus::Signaled(_, Signal::SIGKILL, _)))
    }

    /// How it has ended, if it has. `None`: it has been reaped.
    fn end(&self) -> Option<WaitStatus> {
        let id = Id::Pid(Pid::from_raw(i32::try_from(self.child.id()).expect("process ids fit")));
        let look = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        match waitid(id, look) {
            Ok(status) => Some(status),
            Err(Errno::ECHILD) => None,
            Err(error) => panic!("{}: {error}", self.name),
        }
    }

    /// How it ended, if it has.
    ///
    /// # Panics
    /// When the process can't be asked.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("ask for the child")
    }

    /// Kills it as a crash would.
    pub fn crash(&mut self) {
        self.signal(Signal::SIGKILL);
        self.child.wait().expect("reap the child");
    }

    /// Asks it to end and waits for that.
    ///
    /// # Panics
    /// When it does not end in time.
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
