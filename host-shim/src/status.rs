//! `host-shim-agent status`: shows the agent's report to a person on the host.

use std::{
    collections::BTreeSet,
    fmt::Write,
    io,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use bootstrap::{Chain, ConfigError, complain, misconfigured, print};
use offload_proto::form::HOST_PORT_CONTAINER;

use crate::{
    agent::{AgentError, Config},
    protocol::{CertificateReport, Report, SessionReport, VfReport, VfState, ask_report},
};

/// The timeout of the report: the agent asks the DPU and examines all VFs.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The exit code when the agent does not answer.
const NO_ANSWER: u8 = 3;
/// The exit code when a problem affects pods.
const AFFECTS_PODS: u8 = 5;

const NAME: &str = "host-shim-agent";

pub(crate) const CONFIGURATION: &str = "/etc/dpu-offload/host-shim.toml";

const AFTER_HELP: &str = "\
Exit codes:
  0   the agent answers, and nothing affects pods; with --output containers whenever it answers
  3   the agent does not answer
  5   the agent answers, and something affects pods: see Problems
  78  the configuration file can't be read";

/// What to ask for and how to print it.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct StatusArguments {
    /// The agent's configuration file, which names its socket; /etc/dpu-offload/host-shim.toml unless named
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The agent's socket, instead of the configuration's
    #[arg(long, value_name = "FILE")]
    socket: Option<PathBuf>,
    /// How to print it
    #[arg(short, long, value_enum, default_value_t)]
    output: Form,
}

/// How to print a report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum Form {
    /// For people
    #[default]
    Text,
    /// For programs
    Json,
    /// The ids of the containers that hold a VF or are about to get one, one a line
    Containers,
}

impl StatusArguments {
    /// Sets the configuration file unless the command names one.
    pub(crate) fn default_config(&mut self, config: Option<PathBuf>) {
        self.config = self.config.take().or(config);
    }

    pub(crate) fn config(&self) -> &Path {
        self.config.as_deref().unwrap_or(Path::new(CONFIGURATION))
    }
}

/// Explains why the configuration names no socket, and what to do.
fn without_configuration(error: &AgentError) -> String {
    match error {
        AgentError::Config(ConfigError::Missing(_)) => format!(
            "{error}: name the agent's socket with --socket, or its configuration with --config"
        ),
        error => format!("{}; or name the agent's socket with --socket", Chain(error)),
    }
}

/// Asks the agent for its report and prints it.
#[must_use]
pub fn status(arguments: &StatusArguments) -> ExitCode {
    let socket = match &arguments.socket {
        Some(socket) => socket.clone(),
        None => match Config::socket_in(arguments.config()) {
            Ok(socket) => socket,
            Err(error) => return misconfigured(NAME, &without_configuration(&error)),
        },
    };
    match ask_report(&socket, TIMEOUT) {
        Ok(report) => show(&report, arguments.output),
        Err(error) => {
            let is_named = arguments.socket.is_some();
            complain(NAME, &no_answer(&socket, is_named, &error));
            ExitCode::from(NO_ANSWER)
        }
    }
}

fn show(report: &Report, form: Form) -> ExitCode {
    let text = match form {
        Form::Text => text(report),
        Form::Json => serde_json::to_string_pretty(report).unwrap_or_default() + "\n",
        Form::Containers => containers(report),
    };
    // A closed stream has no reader for an error.
    let _ = print(&text);
    if report.problems.is_empty() || form == Form::Containers {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(AFFECTS_PODS)
    }
}

/// The containers with attachments that are not being released, one a line. Host ports belong to no container.
fn containers(report: &Report) -> String {
    let pods = report.pods.iter();
    let pods = pods.filter(|it| it.state != "releasing" && it.container != HOST_PORT_CONTAINER);
    let containers: BTreeSet<_> = pods.map(|it| &*it.container).collect();
    containers.iter().map(|it| format!("{it}\n")).collect()
}

/// Explains which socket does not answer, and what to do. `is_named`: the command line names the socket, which may then
/// be another agent's than the installed one's.
fn no_answer(socket: &Path, is_named: bool, error: &io::Error) -> String {
    let what = match error.kind() {
        io::ErrorKind::PermissionDenied => "run this command as root or as the agent's user",
        // `SO_RCVTIMEO` expires as `EAGAIN`.
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            let what = format!(
                "the agent takes calls on {} and did not answer within {TIMEOUT:?}: it may be suspended or hang; see \
                 `systemctl status dpu-offload-agent` and `journalctl -u dpu-offload-agent`",
                socket.display()
            );
            return what;
        }
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused if is_named => {
            "start the agent whose configuration names this socket, or name another one with --socket"
        }
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
            "start the agent with `systemctl start dpu-offload-agent`, or name its socket with --socket"
        }
        _ => "see `systemctl status dpu-offload-agent` and `journalctl -u dpu-offload-agent`",
    };
    format!("the agent does not answer on {}: {error}: {what}", socket.display())
}

fn text(report: &Report) -> String {
    let Report { version, problems, session, certificate, failures, .. } = report;
    let mut text = String::new();
    field(&mut text, "Agent", version);
    field(&mut text, "DPU", &format!("{} at {}", session.dpu, session.endpoint));
    field(&mut text, "Session", &session_text(session));
    field(
        &mut text,
        "Certificate",
        &certificate.as_ref().map_or("not read yet".into(), certificate_text),
    );
    field(&mut text, "VFs", &vfs_text(report));
    field(&mut text, "Pods", &report.pods.len().to_string());
    list(&mut text, "Pending detaches", &report.pending_detaches);
    list(&mut text, "Problems", problems);
    list(&mut text, "Unavailable VFs", &unavailable(&report.vfs));
    list(&mut text, "Attachments", &pods(report));
    let failure = |it: &crate::protocol::CallFailure| {
        format!("{} {} {}: {} ({})", it.time, it.verb, it.subject, it.message, it.code)
    };
    list(&mut text, "Last failures", &failures.iter().map(failure).collect::<Vec<_>>());
    text
}

fn session_text(session: &SessionReport) -> String {
    let SessionReport { since, code, message, connected, .. } = session;
    match connected {
        true => format!("connected since {since}"),
        false => format!("none since {since}: {message} ({code})"),
    }
}

fn certificate_text(certificate: &CertificateReport) -> String {
    let CertificateReport { identity, valid_until, problem } = certificate;
    let text = format!("{identity}, valid until {valid_until}");
    if problem.is_empty() { text } else { format!("{text}: {problem}") }
}

fn vfs_text(report: &Report) -> String {
    if !report.vfs_unknown.is_empty() {
        return format!("unknown: {}", report.vfs_unknown);
    }
    let count = |state: VfState| {
        let number = report.vfs.iter().filter(|vf| vf.state == state).count();
        format!("{number} {}", state.as_str())
    };
    VfState::ALL.map(count).join(", ")
}

fn unavailable(vfs: &[VfReport]) -> Vec<String> {
    let lacking = vfs.iter().filter(|vf| vf.state == VfState::Unavailable);
    lacking.map(|vf| format!("{} ({}): {}", vf.name, vf.device, vf.reason)).collect()
}

fn pods(report: &Report) -> Vec<String> {
    let line = |pod: &crate::protocol::PodReport| {
        let name = if pod.pod.is_empty() { &pod.container } else { &pod.pod };
        let addresses = if pod.addresses.is_empty() { "-".into() } else { pod.addresses.join(",") };
        let problem =
            if pod.problem.is_empty() { String::new() } else { format!(": {}", pod.problem) };
        format!(
            "{name} {} {} {} {addresses} {}{problem}",
            pod.interface, pod.network, pod.vf, pod.state
        )
    };
    report.pods.iter().map(line).collect()
}

fn field(text: &mut String, label: &str, value: &str) {
    // Writing to a string can't fail.
    let _ = writeln!(text, "{:<18}{}", format!("{label}:"), bootstrap::printable(value, &[]));
}

/// Prints one line per item, or `none`.
fn list(text: &mut String, label: &str, items: &[String]) {
    if items.is_empty() {
        return field(text, label, "none");
    }
    let _ = writeln!(text, "{label}:");
    for item in items {
        let _ = writeln!(text, "  {}", bootstrap::printable(item, &[]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{CallFailure, PodReport};

    fn report() -> Report {
        let vf = |name: &str, state, reason: &str| VfReport {
            name: name.into(),
            device: "0000:03:00.2".into(),
            state,
            reason: reason.into(),
        };
        Report {
            version: "0.1.0".into(),
            session: SessionReport {
                dpu: "dpu-1".into(),
                endpoint: "192.0.2.2:7443".into(),
                connected: true,
                since: "2026-03-01T11:00:00Z".into(),
                ..SessionReport::default()
            },
            certificate: Some(CertificateReport {
                identity: "spiffe://lab/host/node-1".into(),
                valid_until: "2027-03-01T11:00:00Z".into(),
                problem: String::new(),
            }),
            vfs: vec![
                vf("pf0vf0", VfState::Held, ""),
                vf("pf0vf1", VfState::Offered, ""),
                vf("pf0vf2", VfState::Unavailable, "it is up"),
            ],
            pods: vec![PodReport {
                pod: "web/shop".into(),
                interface: "eth0".into(),
                network: "blue".into(),
                vf: "0000:03:00.2".into(),
                addresses: vec!["10.1.0.2/16".into()],
                state: "live".into(),
                ..PodReport::default()
            }],
            ..Report::default()
        }
    }

    #[test]
    fn text_shows_each_part() {
        assert_eq!(
            text(&report()),
            "\
Agent:            0.1.0
DPU:              dpu-1 at 192.0.2.2:7443
Session:          connected since 2026-03-01T11:00:00Z
Certificate:      spiffe://lab/host/node-1, valid until 2027-03-01T11:00:00Z
VFs:              0 free, 1 offered, 1 held, 1 unavailable
Pods:             1
Pending detaches: none
Problems:         none
Unavailable VFs:
  pf0vf2 (0000:03:00.2): it is up
Attachments:
  web/shop eth0 blue 0000:03:00.2 10.1.0.2/16 live
Last failures:    none
"
        );
    }

    #[test]
    fn problems_set_the_exit_code() {
        let code = |report: &Report| format!("{:?}", show(report, Form::Json));
        assert_eq!(code(&report()), format!("{:?}", ExitCode::SUCCESS));
        let troubled = Report { problems: vec!["no session".into()], ..report() };
        assert_eq!(code(&troubled), format!("{:?}", ExitCode::from(AFFECTS_PODS)));
        let failed = Report {
            failures: vec![CallFailure { code: "VFS_EXHAUSTED".into(), ..CallFailure::default() }],
            ..report()
        };
        assert!(text(&failed).contains("(VFS_EXHAUSTED)"));
    }

    #[test]
    fn containers_are_those_that_hold_vfs() {
        let pod = |container: &str, state: &str| PodReport {
            container: container.into(),
            state: state.into(),
            ..PodReport::default()
        };
        let pods = vec![
            pod("web", "live"),
            pod("web", "live"),
            pod("new", "attaching"),
            pod("ended", "releasing"),
            pod(HOST_PORT_CONTAINER, "live"),
        ];
        let report = Report { pods, problems: vec!["no session".into()], ..Report::default() };
        assert_eq!(containers(&report), "new\nweb\n");
        let code = format!("{:?}", show(&report, Form::Containers));
        assert_eq!(code, format!("{:?}", ExitCode::SUCCESS));
    }

    #[test]
    fn named_socket_gets_no_advice_on_the_unit() {
        let refused = io::ErrorKind::ConnectionRefused.into();
        let text = no_answer(Path::new("/tmp/a.sock"), true, &refused);
        assert!(text.contains("/tmp/a.sock") && !text.contains("systemctl"), "{text}");
    }

    #[test]
    fn missing_configuration_offers_the_socket() {
        let missing = AgentError::Config(ConfigError::Missing("/etc/a.toml".into()));
        let text = without_configuration(&missing);
        assert!(text.contains("/etc/a.toml does not exist: name the agent's socket"), "{text}");
    }

    #[test]
    fn silence_names_the_socket() {
        let text = no_answer(Path::new("/run/agent.sock"), false, &io::ErrorKind::NotFound.into());
        assert!(text.contains("/run/agent.sock") && text.contains("systemctl start"), "{text}");
        let suspended =
            no_answer(Path::new("/run/agent.sock"), false, &io::ErrorKind::WouldBlock.into());
        assert!(suspended.contains("suspended") && suspended.contains("10s"), "{suspended}");
    }
}
