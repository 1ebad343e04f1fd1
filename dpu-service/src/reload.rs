//! Loads a changed configuration file while the service runs: all of it, or nothing.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use bootstrap::{Chain, ConfigFile, LogControl, notify_ready, notify_reloading};
use tokio::{
    signal::unix::Signal,
    time::{MissedTickBehavior, interval},
};

use crate::{author::Author, config::Config, events::EventKind, shared::Shared};

/// How often the file is read.
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
    /// Loads the file at each SIGHUP, and whenever its content, or why it can't be read, differs from what was
    /// loaded or refused last. Ends never.
    ///
    /// Contents are compared, not times or earlier looks: a file that is changed back at once is loaded again.
    pub(crate) async fn run(self, mut hangups: Signal) {
        let mut tried = Ok(self.shared.configuration_digest());
        let mut ticks = interval(PERIOD);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let is_asked = tokio::select! {
                _ = hangups.recv() => true,
                _ = ticks.tick() => false,
            };
            let file = ConfigFile::read_aside(&self.path).await;
            let file = file.map_err(|error| Chain(&error).to_string());
            let found = file.as_ref().map(ConfigFile::digest).map_err(Clone::clone);
            if !is_asked && found == tried {
                continue;
            }
            tried = found;
            notify_reloading();
            let loaded = match file {
                Ok(file) => self.load(&file).await,
                Err(unreadable) => Err(unchanged(&unreadable)),
            };
            let problems = loaded.err().unwrap_or_default();
            problems.iter().for_each(|problem| self.record_refusal(problem));
            self.shared.set_configuration_problems(problems);
            notify_ready();
        }
    }

    fn record_refusal(&self, problem: &str) {
        let (events, path) = (self.shared.engine.events(), self.path.display());
        let author = Author::ConfigurationFile;
        events.record_by(&author, EventKind::ConfigurationRefused, path, problem);
    }

    /// `Err`: why the file is not in force, or which part of it: one sentence each.
    async fn load(&self, file: &ConfigFile) -> Result<(), Vec<String>> {
        self.shared.credentials.reload().await;
        let next = Config::of(file, &self.path).map_err(|error| unchanged(&error.to_string()))?;
        let loaded = self.shared.engine.load_configuration(next.for_engine()).await;
        loaded.map_err(|failure| unchanged(&failure.message))?;
        let engine = Arc::clone(&self.shared.engine);
        engine.note_configuration(self.path.clone(), file.digest()).await;
        self.shared.set_configuration(file.clone(), next.under_maintenance());
        let level = self.log.set_level(&next.log);
        level.map_err(|error| vec![Chain(&error).to_string()])?;
        match self.config.fixed_differences(&next).as_slice() {
            [] => {
                tracing::info!(path = %self.path.display(), digest = file.digest(), "configuration in force");
                Ok(())
            }
            waiting => Err(vec![in_part(&self.path, waiting)]),
        }
    }
}

/// One sentence for each line.
fn unchanged(mistakes: &str) -> Vec<String> {
    let told = |mistake| format!("the configuration stays as it was: {mistake}");
    mistakes.lines().map(told).collect()
}

fn in_part(path: &Path, waiting: &[String]) -> String {
    format!(
        "the hosts, pools, networks and `log.level` of {} are in force; changed, and waiting for a \
         restart of the service: `{}`",
        path.display(),
        waiting.join("`, `")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_for_a_restart_is_told_and_what_does_not() {
        let told =
            in_part(Path::new("/s.toml"), &["listen", "limits.watchers"].map(ToOwned::to_owned));
        let (in_force, waiting) = told.split_once("; ").unwrap();
        assert!(in_force.contains("`log.level` of /s.toml"), "{told}");
        assert!(waiting.ends_with(": `listen`, `limits.watchers`"), "{told}");
    }

    #[test]
    fn each_mistake_has_a_sentence() {
        let told = unchanged("/s.toml: one\n/s.toml: another");
        let [one, another] = &told[..] else { panic!("{told:?}") };
        assert!(one.ends_with(" /s.toml: one") && another.ends_with(" /s.toml: another"));
    }
}
