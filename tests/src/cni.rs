//! The plugin, executed like a runtime does: environment, stdin, stdout, exit status.

use std::{
    ffi::OsString,
    io::Write,
    os::unix::process::ExitStatusExt,
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Value, json};

use crate::{Netns, eventually, program};

/// Timeout of a plugin call.
pub const TIME_LIMIT: Duration = Duration::from_secs(60);
/// Interval between looks.
const LOOK: Duration = Duration::from_millis(100);

/// One call of the plugin.
#[derive(Clone, Debug)]
pub struct Call {
    environment: Vec<(String, OsString)>,
    stdin: Vec<u8>,
}

/// The plugin's answer.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Exit status.
    pub status: ExitStatus,
    /// Output: a result, an error object, or nothing.
    pub stdout: String,
    /// Log.
    pub stderr: String,
}

impl Call {
    /// A call of `verb` with this network configuration. Its environment has only `CNI_COMMAND` and `CNI_PATH`.
    #[must_use]
    pub fn new(verb: &str, configuration: &Value) -> Self {
        let call = Self { environment: Vec::new(), stdin: configuration.to_string().into_bytes() };
        call.with("CNI_COMMAND", verb).with("CNI_PATH", "/opt/cni/bin")
    }

    /// Sets the attachment: container ID, netns and interface.
    #[must_use]
    pub fn of(self, container: &str, netns: Option<&Path>, interface: &str) -> Self {
        let netns = netns.map(Path::as_os_str).unwrap_or_default();
        self.with("CNI_CONTAINERID", container)
            .with("CNI_IFNAME", interface)
            .with("CNI_NETNS", netns)
    }

    /// Sets an environment variable.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<OsString>) -> Self {
        self.environment.retain(|(known, _)| known != name);
        self.environment.push((name.into(), value.into()));
        self
    }

    /// Removes an environment variable.
    #[must_use]
    pub fn without(mut self, name: &str) -> Self {
        self.environment.retain(|(known, _)| known != name);
        self
    }

    /// Sends these bytes on stdin instead of the configuration.
    #[must_use]
    pub fn stdin(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.stdin = bytes.into();
        self
    }

    /// Executes the plugin in `netns` and waits for its end.
    ///
    /// # Panics
    /// If it does not end within [`TIME_LIMIT`].
    #[must_use]
    pub fn execute(&self, netns: &Netns) -> Answer {
        self.execute_command(netns.command(program("host-shim")))
    }

    /// Executes the plugin and kills it after this time if it still runs.
    pub(crate) fn execute_and_kill(&self, netns: &Netns, after: Duration) -> Answer {
        let child = self.begin(netns);
        crate::sleep_until_moment(after);
        // The child is not reaped yet, so its process ID cannot belong to another process.
        let _ = kill(id_of(&child), Signal::SIGKILL);
        self.finish(child)
    }

    /// Executes the plugin, suspends it after a time, and continues it after a pause.
    pub(crate) fn execute_suspended(
        &self,
        netns: &Netns,
        after: Duration,
        lasting: Duration,
    ) -> Answer {
        let child = self.begin(netns);
        let id = id_of(&child);
        crate::sleep_until_moment(after);
        let _ = kill(id, Signal::SIGSTOP);
        crate::sleep_until_moment(lasting);
        let _ = kill(id, Signal::SIGCONT);
        self.finish(child)
    }

    /// Starts the plugin in `netns` without waiting.
    ///
    /// # Panics
    /// If it cannot be started.
    #[must_use]
    pub fn begin(&self, netns: &Netns) -> Child {
        self.start(netns.command(program("host-shim")))
    }

    fn start(&self, mut command: Command) -> Child {
        let mut child = command
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .envs(self.environment.iter().cloned())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("start the plugin");
        let mut stdin = child.stdin.take().expect("a pipe");
        let document = self.stdin.clone();
        // The plugin may refuse before it has read everything: a broken pipe is no failure.
        thread::spawn(move || stdin.write_all(&document).ok());
        child
    }

    /// Executes a plugin by this command and waits for its end.
    ///
    /// # Panics
    /// If it does not end within [`TIME_LIMIT`].
    #[must_use]
    pub fn execute_command(&self, command: Command) -> Answer {
        let child = self.start(command);
        self.finish(child)
    }

    fn finish(&self, child: Child) -> Answer {
        let id = id_of(&child);
        let (sender, receiver) = mpsc::channel();
        thread::spawn(move || sender.send(child.wait_with_output()));
        let Some(output) = eventually(TIME_LIMIT, || receiver.recv_timeout(LOOK).ok()) else {
            let _ = kill(id, Signal::SIGKILL);
            panic!("the plugin did not end within {TIME_LIMIT:?}: {self:?}");
        };
        let output = output.expect("wait for the plugin");
        Answer {
            status: output.status,
            stdout: String::from_utf8(output.stdout).expect("UTF-8"),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

fn id_of(child: &Child) -> Pid {
    Pid::from_raw(i32::try_from(child.id()).expect("process ids fit"))
}

impl Answer {
    /// Whether a signal killed the plugin.
    pub(crate) fn is_killed(&self) -> bool {
        self.status.signal() == Some(Signal::SIGKILL as i32)
    }

    /// The result of a call that must succeed.
    ///
    /// # Panics
    /// If it failed.
    #[must_use]
    pub fn result(&self) -> Value {
        assert!(self.status.success(), "{self:?}");
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Asserts success without output, as for DEL, CHECK, GC and STATUS.
    ///
    /// # Panics
    /// If it failed or printed something.
    pub fn nothing(&self) {
        assert!(self.status.success(), "{self:?}");
        assert_eq!(self.stdout, "", "{self:?}");
    }

    /// Code and text of the error of a call that must fail.
    ///
    /// # Panics
    /// If it succeeded, or printed anything but an error object.
    #[must_use]
    pub fn error(&self) -> (u64, String) {
        assert_eq!(self.status.code(), Some(1), "{self:?}");
        assert!(!self.stderr.contains("panicked"), "{self:?}");
        let error: Value =
            serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"));
        let text = |key: &str| error[key].as_str().unwrap_or_default().to_owned();
        assert!(error["cniVersion"].is_string() && !text("msg").is_empty(), "{self:?}");
        let code = error["code"].as_u64().unwrap_or_else(|| panic!("no code: {self:?}"));
        (code, format!("{}: {}", text("msg"), text("details")))
    }

    /// Asserts a failure with this code whose text contains all `words`.
    ///
    /// # Panics
    /// If it is another.
    pub fn fails(&self, code: u64, words: &[&str]) {
        let (got, text) = self.error();
        assert_eq!(got, code, "{text}");
        for word in words {
            assert!(text.contains(word), "{word:?} is not in: {text}");
        }
    }
}

/// A network configuration of the plugin, as a runtime passes it.
#[must_use]
pub(crate) fn configuration(network: &str, socket: &Path) -> Value {
    json!({
        "cniVersion": "1.1.0",
        "name": network,
        "type": "host-shim",
        "agentSocket": socket,
        "capabilities": { "mac": true, "ips": true, "deviceID": true, "bandwidth": true },
    })
}
