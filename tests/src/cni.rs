//! The plugin, executed as a runtime does: environment, stdin, stdout, exit status.

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

/// How long any call of the plugin may take.
pub const TIME_LIMIT: Duration = Duration::from_secs(60);
/// How long one look waits for a message.
const LOOK: Duration = Duration::from_millis(100);

/// One call of the plugin.
#[derive(Clone, Debug)]
pub struct Call {
    environment: Vec<(String, OsString)>,
    stdin: Vec<u8>,
}

/// What the plugin answered.
#[derive(Clone, Debug)]
pub struct Answer {
    /// How it ended.
    pub status: ExitStatus,
    /// What it printed: a result, an error object, or nothing.
    pub stdout: String,
    /// What it logged.
    pub stderr: String,
}

impl Call {
    /// A call of `verb` with this network configuration, and no environment but `CNI_COMMAND` and
    /// `CNI_PATH`.
    #[must_use]
    pub fn new(verb: &str, configuration: &Value) -> Self {
        let call = Self { environment: Vec::new(), stdin: configuration.to_string().into_bytes() };
        call.with("CNI_COMMAND", verb).with("CNI_PATH", "/opt/cni/bin")
    }

    /// Names the attachment: container id, netns and interface.
    #[must_use]
    pub fn of(self, container: &str, netns: Option<&Path>, interface: &str) -> Self {
        let netns = netns.map(Path::as_os_str).unwrap_or_default();
        self.with("CNI_CONTAINERID", container)
            .with("CNI_IFNAME", interface)
            .with("CNI_NETNS", netns)
    }

    /// Sets a variable of the environment.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<OsString>) -> Self {
        self.environment.retain(|(known, _)| known != name);
        self.environment.push((name.into(), value.into()));
        self
    }

    /// Takes a variable out of the environment.
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

    /// Executes the plugin from within `netns` and waits for its end.
    ///
    /// # Panics
    /// When it does not end within [`TIME_LIMIT`].
    #[must_use]
    pub fn execute(&self, netns: &Netns) -> Answer {
        self.execute_command(netns.command(program("host-shim")))
    }

    /// Executes it likewise, and kills it after that time unless it has ended.
    pub(crate) fn execute_and_kill(&self, netns: &Netns, after: Duration) -> Answer {
        let child = self.begin(netns);
        crate::sleep_until_moment(after);
        // It is not reaped yet, so this can't be another's.
        let _ = kill(id_of(&child), Signal::SIGKILL);
        self.finish(child)
    }

    /// Executes it likewise, and suspends it after that time for so long.
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

    /// Starts the plugin in `netns` and does not wait for it.
    ///
    /// # Panics
    /// When it can't be started.
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
        // The plugin may refuse before it has read all: a broken pipe is no failure.
        thread::spawn(move || stdin.write_all(&document).ok());
        child
    }

    /// Executes a plugin by this command and waits for its end.
    ///
    /// # Panics
    /// When it does not end within [`TIME_LIMIT`].
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
    /// Whether somebody has killed the plugin.
    pub(crate) fn is_killed(&self) -> bool {
        self.status.signal() == Some(Signal::SIGKILL as i32)
    }

    /// The result of a call that has to succeed.
    ///
    /// # Panics
    /// When it failed.
    #[must_use]
    pub fn result(&self) -> Value {
        assert!(self.status.success(), "{self:?}");
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Asserts success without a result, as DEL, CHECK, GC and STATUS give.
    ///
    /// # Panics
    /// When it failed or printed something.
    pub fn nothing(&self) {
        assert!(self.status.success(), "{self:?}");
        assert_eq!(self.stdout, "", "{self:?}");
    }

    /// The code and the whole text of the error object of a call that has to fail.
    ///
    /// # Panics
    /// When it succeeded, or printed anything but an error object.
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

    /// Asserts the failure of that code whose text contains all of `words`.
    ///
    /// # Panics
    /// When it is another.
    pub fn fails(&self, code: u64, words: &[&str]) {
        let (got, text) = self.error();
        assert_eq!(got, code, "{text}");
        for word in words {
            assert!(text.contains(word), "{word:?} is not in: {text}");
        }
    }
}

/// A network configuration of our plugin, as a runtime passes it.
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
