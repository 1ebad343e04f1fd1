//! Life of the service: start, serve, stop.
//!
//! Start: metrics, journal, reconciliation, certificates, listener. Running pods need the journal and the
//! reconciliation only. Certificates come later, because they may not be valid yet.
//!
//! Stop: hosts receive the reason, calls and flows end, the last events are written, connections close.
//!
//! Owns: all tasks of the service. The process's end stops those that `stop` does not.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
    time::Duration,
};

use bootstrap::{
    ConfigFile, LogControl, ShutdownSignals, feed_watchdog, notify_ready, notify_stopping,
    private_folder, raise_file_limit, reload_signals,
};
use jiff::Timestamp;
use metrics::{Calls, Endpoint};
use mtls::{CredentialsError, LiveCredentials, Role};
use parking_lot::Mutex;
use tokio::{sync::Semaphore, task::spawn_blocking, time::timeout};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    api,
    attachments::{Depth, Engine, keep_pods_known, watch_for_conflicts},
    certificates::{Certificates, record_changes},
    condition_sources,
    conditions::Conditions,
    config::{Config, LoadError},
    error::ServiceError,
    events::Events,
    gateway, links, reconcile,
    records::{OpenError, Records},
    refused_peers::RefusedPeers,
    reload::Reloader,
    rules,
    scrape::Scrape,
    server::{LAST_ANSWERS, listen, serve},
    shared::{ConfigurationState, OperatorLimits, SessionLimits, Shared},
    tasks::finished,
    without_journal::{Opened, open_when_readable},
};
use drivers::{driver::Capability, programmer::Programmer, settings};

/// File of the journal in the state folder.
const JOURNAL: &str = "journal.redb";

/// Time without a finished pass after which the reconciler counts as stuck: it runs every minute and waits for the
/// kernel for up to a minute.
const STUCK_AFTER: Duration = Duration::from_secs(300);

#[derive(Clone, Debug)]
pub struct StartFile {
    path: PathBuf,
    pub config: Config,
    file: ConfigFile,
}

impl StartFile {
    /// Reads and checks the file at `path`.
    pub fn read(path: &Path) -> Result<Self, LoadError> {
        let file = ConfigFile::read(path)?;
        let config = Config::of(&file, path)?;
        Ok(Self { path: path.to_owned(), config, file })
    }
}

/// Runs the service until SIGTERM or SIGINT. Ports stay programmed afterwards: running pods keep their network.
pub async fn run(file: StartFile, log: LogControl) -> Result<(), ServiceError> {
    let StartFile { path, config, file } = file;
    raise_file_limit();
    // Installed first: the default action of SIGHUP ends the process.
    let hangups = reload_signals().map_err(ServiceError::Signals)?;
    let mut shutdown = ShutdownSignals::catch().map_err(ServiceError::Signals)?;
    let certificates = Arc::new(Certificates::of(&config));
    let programmer = settings::open(&config.eswitch, &config.fabric)?;
    programmer.capabilities().iter().for_each(log_capability);
    let open = || open_engine(&config, &programmer);
    let calls = api::calls();
    // Before the journal is opened: metrics must show a service that waits for it.
    let shown = serve_metrics(&config, &certificates, &calls);
    let opened = open_when_readable(&config, &certificates, &calls, open, &mut shutdown).await?;
    let Some(Opened { engine, listener }) = opened else { return Ok(()) };
    let events = Arc::clone(engine.events());
    let stop = CancellationToken::new();
    // Before the certificates are valid: after a reboot of the DPU, pods must run again without waiting for them.
    engine.reconcile(Depth::Thorough).await;
    keep_programmed(&engine, &programmer, &stop);
    // In the background: the start does not wait for the journal.
    tokio::spawn(Arc::clone(&engine).note_configuration(path.clone(), file.digest()));

    let limit = Duration::from_secs(config.limits.shutdown_s);
    let credentials = tokio::select! {
        biased;
        credentials = certificates.valid() => credentials?,
        () = shutdown.received() => {
            notify_stopping();
            stop.cancel();
            within(limit, engine.close()).await;
            close_events(events).await;
            return Ok(());
        }
    };
    let listener = listener.map_or_else(|| listen(&config), Ok)?;
    let maintenance = config.under_maintenance();
    let configuration = ConfigurationState { in_force: file, problems: Vec::new(), maintenance };
    let shared = share(&config, configuration, engine.clone(), credentials.clone(), &calls, &stop);
    let shared = Arc::new(shared);
    shown.get_or_init(|| shared.clone());
    tokio::spawn(condition_sources::watch(shared.clone()));
    let ahead = shared.certificate_warning;
    tokio::spawn(record_changes(credentials.clone(), ahead, Arc::clone(&events)));
    let serving = serve(
        listener,
        credentials,
        shared.clone(),
        calls,
        config.limits.clone(),
        stop.child_token(),
    );
    let mut serving = tokio::spawn(serving);
    let reloader = Reloader { path, config, shared: shared.clone(), log };
    tokio::spawn(reloader.run(hangups));
    notify_ready();

    tokio::select! {
        () = shutdown.received() => {}
        ended = &mut serving => return Ok(finished(ended)?),
    }
    notify_stopping();
    shut_down(&shared, engine, &stop, limit).await;
    // After the flows: they record events until they end.
    close_events(events).await;
    if timeout(LAST_ANSWERS, serving).await.is_err() {
        tracing::info!("closing connections that peers keep open");
    }
    Ok(())
}

/// Starts the tasks that keep journal and kernel in agreement.
fn keep_programmed(engine: &Arc<Engine>, programmer: &Programmer, stop: &CancellationToken) {
    tokio::spawn(reconcile::run(engine.clone(), stop.clone()));
    tokio::spawn(links::follow(engine.clone()));
    tokio::spawn(rules::follow(engine.clone()));
    tokio::spawn(gateway::watch_for_conflicts(engine.gateways.clone()));
    tokio::spawn(keep_pods_known(Arc::clone(engine)));
    tokio::spawn(watch_for_conflicts(Arc::clone(engine)));
    if programmer.has_devlink_cards() {
        tokio::spawn(links::follow_cards(engine.clone()));
    }
    for changes in programmer.fabric_changes() {
        tokio::spawn(links::follow_fabric(engine.clone(), changes));
    }
    tokio::spawn(feed_watchdog(is_well(engine.clone())));
}

/// Serves metrics if configured. Until the returned cell is set, they lack the engine's.
fn serve_metrics(
    config: &Config,
    certificates: &Arc<Certificates>,
    calls: &Arc<Calls>,
) -> Arc<OnceLock<Arc<Shared>>> {
    let shared = Arc::<OnceLock<_>>::default();
    if let Some(endpoint) = Endpoint::listen(config.metrics.listen) {
        let scrape = Scrape {
            certificates: Arc::clone(certificates),
            certificate_warning: config.certificate_warning.ahead(),
            calls: Arc::clone(calls),
            of_attachments: config.metrics.attachments,
            shared: Arc::clone(&shared),
        };
        tokio::spawn(endpoint.serve(move || scrape.clone().page()));
    }
    shared
}

/// Reads and checks the configured certificates.
pub fn credentials(config: &Config) -> Result<LiveCredentials, CredentialsError> {
    LiveCredentials::load(&config.tls, &[Role::Dpu])
}

/// Whether a reconciliation ended recently. A hanging lock, journal or kernel also stops the reconciler, so this
/// detects them all.
fn is_well(engine: Arc<Engine>) -> impl Fn() -> bool {
    move || {
        let is_well = engine.since_reconciled() < STUCK_AFTER;
        if !is_well {
            tracing::error!("the reconciler is stuck; the watchdog is no longer fed");
        }
        is_well
    }
}

fn open_engine(config: &Config, programmer: &Programmer) -> Result<Arc<Engine>, OpenError> {
    private_folder(&config.state_dir)?;
    let journal = config.state_dir.join(JOURNAL);
    let is_new = !journal.exists();
    let records = Records::open(&journal)?;
    let events = || {
        let events = Events::open(&config.state_dir);
        if is_new {
            events.note_new_journal(&journal);
        }
        Arc::new(events)
    };
    let (configuration, settings) = (config.for_engine(), config.engine_settings());
    Engine::open(records, events, programmer.clone(), configuration, settings)
}

fn log_capability(capability: &Capability) {
    let Capability { name, available, offloaded, detail } = capability;
    tracing::info!(name, available, offloaded, detail, "capability");
}

fn share(
    config: &Config,
    configuration: ConfigurationState,
    engine: Arc<Engine>,
    credentials: LiveCredentials,
    calls: &Arc<Calls>,
    stop: &CancellationToken,
) -> Shared {
    Shared {
        engine,
        credentials,
        certificate_warning: config.certificate_warning.ahead(),
        started_at: Timestamp::now(),
        session_limits: SessionLimits {
            heartbeat: Duration::from_millis(config.limits.heartbeat_ms.into()),
            hello_timeout: Duration::from_secs(config.limits.handshake_timeout_s),
        },
        operator_limits: OperatorLimits {
            watchers: Arc::new(Semaphore::new(config.limits.watchers)),
            examination: tokio::sync::Mutex::default(),
        },
        configuration: Mutex::new(configuration),
        conditions: Conditions::new(),
        refused_peers: RefusedPeers::default(),
        calls: Arc::clone(calls),
        sessions: TaskTracker::new(),
        stopping: stop.child_token(),
    }
}

/// Refuses new attachments, tells the hosts, and lets running flows finish for up to `limit`.
async fn shut_down(
    shared: &Shared,
    engine: Arc<Engine>,
    stop: &CancellationToken,
    limit: Duration,
) {
    // Before `stop`: hosts receive the reason before their sessions end.
    engine.operators().set_draining(Some("the service is stopping".into()));
    stop.cancel();
    shared.sessions.close();
    let finish = async {
        shared.sessions.wait().await;
        engine.close().await;
    };
    within(limit, finish).await;
}

/// Writes the last events on a blocking thread.
async fn close_events(events: Arc<Events>) {
    if let Err(error) = spawn_blocking(move || events.close()).await {
        tracing::error!(%error, "cannot write the last events to their file");
    }
}

async fn within(limit: Duration, finish: impl Future<Output = ()>) {
    if timeout(limit, finish).await.is_err() {
        tracing::warn!(
            ?limit,
            "stopping before all calls have finished; they are completed at the next start"
        );
    }
}
