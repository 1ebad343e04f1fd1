//! `host-shim-agent`: from the command line to the running tasks.

use std::{
    convert::Infallible,
    ffi::OsString,
    path::{Path, PathBuf},
    pin::pin,
    sync::Arc,
    time::Instant,
};

use bootstrap::{
    ShutdownSignals, feed_watchdog, init_logs, notify_ready, notify_stopping, raise_file_limit,
    reload_signals, valid_configuration,
};
use clap::{CommandFactory, Parser, error::ErrorKind};
use netlink::LinkMonitor;
use tokio::{signal::unix::Signal, task::spawn_blocking};
use tokio_util::sync::CancellationToken;

use super::{
    config::Config,
    error::{AgentError, cannot},
    kill_points::KillPoint,
    rooms::{Agent, boot_id, runtime},
    server::{Server, serve},
    socket::listen,
    standby::{checked_credentials, open_records, records_when_free},
    workloads::Connections,
};
use crate::{
    install::Task,
    mover::{ARRIVAL_STEPS, INWARD_STEPS, OUTWARD_STEPS, SPECULATIVE_STEPS},
    status::{CONFIGURATION, StatusArguments},
};

/// The agent: keeps the connection to the DPU and moves VFs in and out of pods.
#[derive(Debug, clap::Parser)]
#[command(name = "host-shim-agent", version)]
pub struct Arguments {
    /// What is wanted of the program instead of the agent.
    #[command(subcommand)]
    pub task: Option<OtherTask>,
    /// The configuration file, /etc/dpu-offload/host-shim.toml unless named.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Wait for the end of another agent with the same socket, rather than fail.
    #[arg(long)]
    standby: bool,
    /// Only check the configuration and its certificates.
    #[arg(long)]
    check_config: bool,
    /// Only print the names of the steps that move a VF.
    #[arg(long)]
    list_steps: bool,
    /// Only print the names of the points at which a test can kill the agent.
    #[arg(long)]
    list_kill_points: bool,
}

impl Arguments {
    /// Parses the command line. Options of the agent before a subcommand are refused, except `--config` before
    /// `status`.
    #[must_use]
    pub fn from_command_line() -> Self {
        Self::parsed(std::env::args_os()).unwrap_or_else(|error| error.exit())
    }

    fn parsed(line: impl IntoIterator<Item = OsString>) -> Result<Self, clap::Error> {
        let mut arguments = Self::try_parse_from(line)?;
        let config = arguments.config.clone();
        let is_for_agent = arguments.standby
            || arguments.check_config
            || arguments.list_steps
            || arguments.list_kill_points;
        let is_misplaced = match &mut arguments.task {
            None => false,
            Some(OtherTask::Status(asked)) => {
                asked.default_config(config);
                is_for_agent
            }
            Some(OtherTask::Files(_)) => is_for_agent || config.is_some(),
        };
        if is_misplaced {
            let message = "options of the agent cannot be used with a subcommand: write the subcommand's own options after it";
            return Err(Self::command().error(ErrorKind::ArgumentConflict, message));
        }
        Ok(arguments)
    }
}

/// What the program does instead of running the agent.
#[derive(Debug, clap::Subcommand)]
pub enum OtherTask {
    /// Show the state of this host's agent: its session with the DPU, VFs, pods and the last failures
    Status(StatusArguments),
    /// Installs or removes a runtime's files.
    #[command(flatten)]
    Files(Task),
}

/// Runs the agent until it is stopped by a signal.
///
/// # Errors
/// See [`AgentError`].
pub fn run(arguments: &Arguments) -> Result<(), AgentError> {
    if arguments.list_steps {
        return print(&step_names());
    }
    if arguments.list_kill_points {
        return print(&lines(KillPoint::kill_points()));
    }
    let path = arguments.config.as_deref().unwrap_or(Path::new(CONFIGURATION));
    let config = Config::load(path)?;
    if arguments.check_config {
        return check_certificates(&config, path);
    }
    let (_log, _exporting) = init_logs(&config.log, &config.tracing, "host-shim")?;
    runtime()?.block_on(keep(config, path, arguments.standby))
}

/// Checks the configuration file and its certificates without changing anything.
fn check_certificates(config: &Config, path: &Path) -> Result<(), AgentError> {
    let credentials = checked_credentials(config, path)?;
    let unseen = "The cards, the records, the socket and the way to the DPU";
    let valid = valid_configuration(path, unseen, &credentials.ends());
    print(&(valid + &metrics::address_line(config.metrics.listen)))
}

fn print(text: &str) -> Result<(), AgentError> {
    bootstrap::print(text).map_err(cannot("write to standard output"))
}

fn step_names() -> String {
    let speculative = SPECULATIVE_STEPS.iter().map(|step| step.name());
    let inward = INWARD_STEPS.iter().map(|step| step.name());
    let arrival = ARRIVAL_STEPS.iter().map(|step| step.name());
    let outward = OUTWARD_STEPS.iter().map(|step| step.name());
    lines(speculative.chain(inward).chain(arrival).chain(outward))
}

fn lines(names: impl IntoIterator<Item = impl std::fmt::Display>) -> String {
    names.into_iter().map(|name| format!("{name}\n")).collect()
}

async fn keep(config: Config, path: &Path, stands_by: bool) -> Result<(), AgentError> {
    raise_file_limit();
    // Catch signals before anything slow: an uncaught signal ends the program.
    let hangups = reload_signals().map_err(cannot("wait for signals"))?;
    let mut shutdown = ShutdownSignals::catch().map_err(cannot("wait for signals"))?;
    let boot_id = boot_id(&config.boot_id_file)?;
    let (socket, records) = if stands_by {
        let records = records_when_free(&config, path, &boot_id, &mut shutdown).await?;
        let Some(records) = records else { return Ok(()) };
        (listen(&config.socket)?, records)
    } else {
        // The socket first: its error names the other agent better than that of the records.
        (listen(&config.socket)?, open_records(&config, &boot_id)?)
    };
    let agent = Agent::open(config, boot_id, records)?;
    let monitor = agent.look_around().await?;
    tracing::info!(version = env!("CARGO_PKG_VERSION"), socket = %agent.config.socket.display(), "ready");
    notify_ready();
    let mut keepers = pin!(run_periodic_work(&agent, path, monitor, hangups));
    let limit = agent.config.limits.connections;
    let stopping = CancellationToken::new();
    // On each gRPC connection at most `limit` calls run at a time.
    let workloads = Connections::serve(agent.workloads(), limit, stopping.clone());
    let (doors, dispatcher) = (agent.doors.clone(), agent.dispatcher.clone());
    let device_plugin = Arc::clone(&agent.device_plugin);
    let server = Server { doors, device_plugin, dispatcher, workloads };
    tokio::select! {
        never = serve(server, limit, &socket) => match never {},
        () = shutdown.received() => {}
        error = &mut keepers => return Err(error),
    }
    notify_stopping();
    stopping.cancel();
    // From here on callers wait for the next agent: in the socket that systemd holds, or outside of the agent's own.
    // Work in progress still needs the session and kernel events.
    let _held_by_systemd = socket.unless_own();
    tokio::select! {
        () = agent.finish() => Ok(()),
        error = keepers => Err(error),
    }
}

async fn run_periodic_work(
    agent: &Agent,
    path: &Path,
    monitor: LinkMonitor,
    hangups: Signal,
) -> AgentError {
    let keeper = agent.upkeep.keeper();
    tokio::select! {
        error = agent.keep(monitor) => error,
        never = reconcile_on_hangup(agent, path, hangups) => match never {},
        never = feed_watchdog(|| keeper.is_healthy(Instant::now())) => match never {},
    }
}

/// SIGHUP reloads `[[host_port]]` and compares records and kernel at once. Certificates are reloaded without it. A
/// refused file changes nothing, and is a problem until a valid one is loaded.
async fn reconcile_on_hangup(agent: &Agent, path: &Path, mut hangups: Signal) -> Infallible {
    while hangups.recv().await.is_some() {
        let problem = match load_aside(path).await {
            Ok(config) => {
                agent.upkeep.host_ports().want(config.host_port);
                String::new()
            }
            Err(error) => not_in_force(path, &error),
        };
        if !problem.is_empty() {
            tracing::error!(%problem, "the agent does not reload its configuration");
        }
        agent.doors.dpu.pod_findings().set_configuration_problem(problem);
        agent.doors.dpu.report_pod_findings();
        agent.doors.vfs.signals().ask_for_pass();
    }
    std::future::pending().await
}

/// Why the agent keeps its present configuration: one sentence.
fn not_in_force(path: &Path, error: &AgentError) -> String {
    let why = bootstrap::Chain(error).to_string().lines().collect::<Vec<_>>().join("; ");
    format!(
        "configuration {} is not in force: {why}: correct it; the agent does not start again with it",
        path.display()
    )
}

/// Reads the configuration on a blocking thread: a hanging file system delays no call.
async fn load_aside(path: &Path) -> Result<Config, AgentError> {
    let path = path.to_owned();
    let loaded = spawn_blocking(move || Config::load(&path)).await;
    loaded.map_err(|error| cannot("read the configuration")(error.into()))?
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Arguments, clap::Error> {
        Arguments::parsed(line.split(' ').map(OsString::from))
    }

    #[test]
    fn configuration_may_precede_status() {
        for line in ["agent --config a.toml status", "agent status --config a.toml"] {
            let Some(OtherTask::Status(asked)) = parsed(line).unwrap().task else {
                panic!("{line}")
            };
            assert_eq!(asked.config(), Path::new("a.toml"), "{line}");
        }
        for line in ["agent --standby status", "agent --config a.toml install"] {
            let refused = parsed(line).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::ArgumentConflict, "{line}");
        }
        assert!(parsed("agent --config a.toml --check-config").is_ok());
    }
}
