//! Takes a changed configuration file over while the service runs: all of it, or nothing.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

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
            let problems = match self.reload().await {
                Ok(()) => {
                    tracing::info!(path = %self.path.display(), "configuration in force");
                    Vec::new()
                }
                Err(problems) => problems,
            };
            problems.iter().for_each(|problem| tracing::error!("{problem}"));
            self.shared.set_configuration_problems(problems);
            notify_ready();
        }
    }

    /// `Err`: why the file is not in force, or which part of it: one sentence each.
    async fn reload(&self) -> Result<(), Vec<String>> {
        self.shared.credentials.reload();
        let next = Config::load(&self.path).map_err(|error| unchanged(&error.to_string()))?;
        let loaded = self.shared.engine.load_configuration(next.for_engine()).await;
        loaded.map_err(|failure| unchanged(&failure.message))?;
        let level = self.log.set_level(&next.log);
        level.map_err(|error| vec![Chain(&error).to_string()])?;
        match self.config.fixed_differences(&next).as_slice() {
            [] => Ok(()),
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
