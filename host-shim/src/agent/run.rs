//! `host-shim-agent`: from the command line to the tasks.

use std::{
    fs,
    future::{Ready, ready},
    io,
    path::{Path, PathBuf},
    pin::pin,
    sync::Arc,
    time::{Duration, Instant},
};

use bootstrap::{
    feed_watchdog, good_configuration, init_logs, load_config, notify_ready, notify_stopping,
    raise_file_limit, reload_signals, shutdown_signal,
};
use metrics::{Calls, Endpoint, Page};
use netlink::{LinkMonitor, Netns};
use tokio::{runtime::Builder, time::timeout};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    config::{Config, VfSourceKind},
    delegates::Delegates,
    desk::Desk,
    device_plugin::DevicePlugin,
    dpu::{Dpu, credentials_and_connector},
    error::{AgentError, cannot},
    milestones::Milestone,
    scrape,
    server::{Server, serve},
    socket::listen,
    standby::{open_records, records_of_one_before},
    upkeep::Upkeep,
    verbs::Doors,
    vfs::{BLOCKING_THREADS, Furnishing, Originals, PodLocks, Records, Vfs},
    workloads::{Connections, Workloads},
};
use crate::{
    install::Task,
    mover::{ARRIVAL_STEPS, Announcer, INWARD_STEPS, OUTWARD_STEPS},
    vf_source::{PciCards, PciError, VfSource, VirtualCard},
};

/// How long the work under way has to finish when the agent is told to stop.
const LAST_WORK: Duration = Duration::from_secs(20);

/// The agent: keeps the connection to the DPU and moves VFs in and out of pods.
#[derive(Debug, clap::Parser)]
#[command(name = "host-shim-agent", version, args_conflicts_with_subcommands = true)]
pub struct Arguments {
    /// What is wanted of the program instead of the agent.
    #[command(subcommand)]
    pub task: Option<Task>,
    /// The configuration file.
    #[arg(long, value_name = "FILE", default_value = "/etc/dpu-offload/host-shim.toml")]
    config: PathBuf,
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

/// Runs the agent until it is told to stop.
///
/// # Errors
/// [`AgentError`].
pub fn run(arguments: &Arguments) -> Result<(), AgentError> {
    if arguments.list_steps {
        return print(&step_names());
    }
    if arguments.list_kill_points {
        return print(&lines(Milestone::kill_points()));
    }
    let path = &arguments.config;
    let config = load(path)?;
    if arguments.check_config {
        return check_certificates(&config, path);
    }
    init_logs(&config.log, "host-shim")?;
    // One thread for the tasks: handing work from one to another would cost more than the work. What
    // waits for the kernel or the disk has threads of its own.
    let runtime = Builder::new_current_thread()
        .max_blocking_threads(BLOCKING_THREADS)
        .enable_all()
        .build()
        .map_err(cannot("start the agent's threads"))?;
    runtime.block_on(keep(config, path, arguments.standby))
}

/// Reads and checks the configuration file.
fn load(path: &Path) -> Result<Config, AgentError> {
    let mut config: Config = load_config(path)?;
    config.tls.anchor(path);
    config.check().map_err(|problems| {
        let line = |problem: &String| format!("{}: {problem}", path.display());
        AgentError::Senseless(problems.iter().map(line).collect::<Vec<_>>().join("\n"))
    })?;
    Ok(config)
}

/// Checks what the configuration file names, as far as that changes nothing.
fn check_certificates(config: &Config, path: &Path) -> Result<(), AgentError> {
    let refused = |source| AgentError::Dpu { path: path.display().to_string(), source };
    let (credentials, _) = credentials_and_connector(config).map_err(refused)?;
    let unseen = "The cards, the records, the socket and the way to the DPU";
    print(&good_configuration(path, unseen, &credentials.ends()))
}

fn print(text: &str) -> Result<(), AgentError> {
    bootstrap::print(text).map_err(cannot("write to standard output"))
}

fn step_names() -> String {
    let inward = INWARD_STEPS.iter().map(|step| step.name());
    let arrival = ARRIVAL_STEPS.iter().map(|step| step.name());
    let outward = OUTWARD_STEPS.iter().map(|step| step.name());
    lines(inward.chain(arrival).chain(outward))
}

fn lines(names: impl IntoIterator<Item = impl std::fmt::Display>) -> String {
    names.into_iter().map(|name| format!("{name}\n")).collect()
}

async fn keep(config: Config, path: &Path, stands_by: bool) -> Result<(), AgentError> {
    raise_file_limit();
    let boot_id = boot_id(&config.boot_id_file)?;
    let (socket, records) = if stands_by {
        let records = records_of_one_before(&config, path, &boot_id).await?;
        let Some(records) = records else { return Ok(()) };
        (listen(&config.socket)?, records)
    } else {
        // The socket first: it tells better than the records that there is another agent.
        (listen(&config.socket)?, open_records(&config, &boot_id)?)
    };
    let endpoint = Endpoint::listen(&config.metrics);
    let agent = begin(config, boot_id, records)?;
    if let Some(endpoint) = endpoint {
        tokio::spawn(endpoint.serve(page_of(&agent)));
    }
    // Before the first look: what changes behind it is told.
    let monitor = agent.doors.vfs.monitor()?;
    agent.doors.vfs.renewer().begin_to_finish();
    agent.upkeep.keeper().reconcile_all().await;
    Milestone::StartReconciled.pass();
    tracing::info!(version = env!("CARGO_PKG_VERSION"), socket = %agent.config.socket.display(), "ready");
    notify_ready();
    let mut keepers = pin!(run_keepers(&agent, path, monitor));
    let limit = agent.config.limits.connections;
    let stopping = CancellationToken::new();
    let server = server(&agent, limit, &stopping);
    tokio::select! {
        never = serve(server, limit, &socket) => match never {},
        signal = shutdown_signal() => signal.map_err(cannot("wait for signals"))?,
        error = &mut keepers => return Err(error),
    }
    notify_stopping();
    stopping.cancel();
    // Who calls from here on waits for the next agent: in the socket if systemd holds it, or else beside it. The
    // work under way still needs the session, and events of the kernel.
    let _held_by_systemd = socket.unless_own();
    tokio::select! {
        () = finish(&agent) => Ok(()),
        error = keepers => Err(error),
    }
}

/// What answers at most `limit` calls at a time, by either door.
fn server(agent: &Agent, limit: usize, stopping: &CancellationToken) -> Server {
    let doors = agent.doors.clone();
    let desk = Desk::new(doors.tasks.clone(), limit, Arc::clone(&agent.calls));
    let network = agent.config.workloads.network.clone();
    let workloads = Workloads::new(doors.clone(), desk.clone(), network);
    let workloads = Connections::serve(workloads, limit, stopping.clone());
    Server { doors, device_plugin: Arc::clone(&agent.device_plugin), desk, workloads }
}

fn page_of(agent: &Agent) -> impl Fn() -> Ready<Page> + Clone + use<> {
    let (config, doors) = (Arc::clone(&agent.config), agent.doors.clone());
    let calls = Arc::clone(&agent.calls);
    move || ready(scrape::page(&config, &doors.vfs, &doors.dpu, &calls))
}

/// All that the agent does unasked, for ever.
async fn run_keepers(agent: &Agent, path: &Path, monitor: LinkMonitor) -> AgentError {
    let (dpu, keeper) = (&agent.doors.dpu, agent.upkeep.keeper());
    tokio::select! {
        error = agent.upkeep.watcher().watch(monitor) => error.into(),
        error = reconcile_on_hangup(agent, path) => cannot("wait for signals")(error),
        never = dpu.keep_session(|said| agent.upkeep.act_on(said)) => match never {},
        never = keeper.keep_agreement() => match never {},
        never = agent.upkeep.host_ports().keep() => match never {},
        never = dpu.reports().keep_inventory() => match never {},
        never = agent.device_plugin.keep() => match never {},
        never = feed_watchdog(|| keeper.is_healthy(Instant::now())) => match never {},
    }
}

/// SIGHUP reads `[[host_port]]` again, and compares records and kernel at once. Certificates are followed without
/// it. A file that makes no sense changes nothing.
async fn reconcile_on_hangup(agent: &Agent, path: &Path) -> io::Error {
    let mut hangups = match reload_signals() {
        Ok(hangups) => hangups,
        Err(error) => return error,
    };
    while hangups.recv().await.is_some() {
        match load(path) {
            Ok(config) => agent.upkeep.host_ports().want(config.host_port),
            Err(error) => tracing::error!("nothing is reloaded: {}", bootstrap::Chain(&error)),
        }
        agent.doors.vfs.signals().ask_for_pass();
    }
    std::future::pending().await
}

/// The rooms of the agent.
struct Agent {
    config: Arc<Config>,
    doors: Doors,
    upkeep: Upkeep,
    device_plugin: Arc<DevicePlugin>,
    /// The calls that were answered.
    calls: Arc<Calls>,
}

/// Opens all that the agent works on.
fn begin(config: Config, boot_id: String, records: Records) -> Result<Agent, AgentError> {
    let netns = Netns::current()?;
    let announcer = Announcer::start().map_err(cannot("start the announcer's thread"))?;
    let originals = Originals::open(config.state_dir.join("vfs.json"), boot_id.clone())?;
    let pods = PodLocks::open(&config.pod_locks);
    let pods = pods.map_err(cannot(format!("open {}", config.pod_locks.display())))?;
    let source = vf_source(&config)?;
    let (config, tasks) = (Arc::new(config), TaskTracker::new());
    let vfs = Arc::new(Vfs::new(Furnishing {
        source,
        netns,
        boot_id: boot_id.clone(),
        records,
        originals,
        pods,
        announcer,
        carrier_limit: config.timeouts.carrier(),
        netns_folders: config.netns_folders(),
        reachable_netns: config.reachable_netns(),
        signals: Arc::default(),
        tasks: tasks.clone(),
    }));
    let dpu = Arc::new(Dpu::new(Arc::clone(&config), boot_id.clone(), Arc::clone(&vfs)));
    let delegates = Delegates::open(config.delegates.clone(), config.state_dir.join("delegates"));
    let delegates = Arc::new(delegates.map_err(cannot("read what other plugins have made"))?);
    let doors = Doors { vfs, dpu, delegates, tasks, timeouts: config.timeouts };
    let (warning, host_ports) = (config.certificate_warning, config.host_port.clone());
    let device_plugin = Arc::new(DevicePlugin::new(config.device_plugin.clone()));
    let told = Arc::clone(&device_plugin);
    let upkeep = Upkeep::new(doors.clone(), boot_id, warning, host_ports, told);
    Ok(Agent { config, doors, upkeep, device_plugin, calls: scrape::calls() })
}

fn vf_source(config: &Config) -> Result<Arc<dyn VfSource>, PciError> {
    Ok(match config.vf_source.kind {
        VfSourceKind::Virtual => {
            Arc::new(VirtualCard::of_pfs(config.vf_source.pfs.iter().map(|pf| pf.address)))
        }
        VfSourceKind::Pci => Arc::new(PciCards::open(config.pci_settings())?),
    })
}

fn boot_id(path: &Path) -> Result<String, AgentError> {
    let text = fs::read_to_string(path)
        .map_err(cannot(format!("read the boot id from {}", path.display())))?;
    match text.trim() {
        "" => Err(AgentError::NoBootId(path.to_owned())),
        id => Ok(id.to_owned()),
    }
}

/// Lets the work under way finish. What does not is finished from the records at the next start.
async fn finish(agent: &Agent) {
    let tasks = &agent.doors.tasks;
    tasks.close();
    if timeout(LAST_WORK, tasks.wait()).await.is_err() {
        tracing::warn!(tasks = tasks.len(), "stopping with work under way");
    }
}
