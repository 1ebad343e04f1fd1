//! Takes a changed configuration file over while the service runs: all of it, or nothing.

use std::{path::PathBuf, sync::Arc, time::Duration};

use bootstrap::{Chain, FileWatch, LogControl, notify_ready, notify_reloading, watch_file};
use tokio::signal::unix::Signal;

use crate::{api::Shared, config::Config};

/// How often the file is looked at.
const PERIOD: Duration = Duration::from_secs(2);

/// Follows the configuration file.
pub(crate) struct Reloader {
    /// The file.
    pub(crate) path: PathBuf,
    /// What the service was started with.
    pub(crate) config: Config,
    pub(crate) shared: Arc<Shared>,
    pub(crate) log: LogControl,
}

impl Reloader {
    /// At each SIGHUP and each change of the file. Ends never.
    pub(crate) async fn run(self, mut hangups: Signal) {
        let mut watch: FileWatch = watch_file(&self.path, PERIOD);
        loop {
            tokio::select! {
                _ = hangups.recv() => {}
                () = watch.changed() => {}
            }
            notify_reloading();
            let problem = self.reload().await.err();
            match &problem {
                None => tracing::info!(path = %self.path.display(), "configuration in force"),
                Some(problem) => tracing::error!(problem, "the configuration file is not in force"),
            }
            self.shared.set_configuration_problem(problem);
            notify_ready();
        }
    }

    /// `Err`: why the file is not in force, or which part of it.
    async fn reload(&self) -> Result<(), String> {
        self.shared.credentials.reload();
        let unchanged = |why: &str| format!("the configuration stays as it was: {why}");
        let next = Config::load(&self.path).map_err(|error| unchanged(&error.to_string()))?;
        let loaded = self.shared.engine.load_configuration(next.for_engine()).await;
        loaded.map_err(|failure| unchanged(&failure.message))?;
        let level = self.log.set_level(&next.log);
        level.map_err(|error| Chain(&error).to_string())?;
        let fixed = self.config.fixed_differences(&next);
        if fixed.is_empty() {
            return Ok(());
        }
        Err(format!("{} changed, which takes a restart of the service", fixed.join(", ")))
    }
}
