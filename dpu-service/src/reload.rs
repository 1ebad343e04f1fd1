//! Reloads a changed configuration file: all of it, or nothing.
//!
//! Owns: one task, and the digest of the file that it tried last.
//!
//! Locks: none of its own. The engine's lock of networks orders a reload and changes through the API.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use bootstrap::{Chain, ConfigFile, LogControl, notify_ready, notify_reloading};
use tokio::signal::unix::Signal;

use crate::{author::Author, config::Config, events::EventKind, shared::Shared, tasks::ticks};

const PERIOD: Duration = Duration::from_secs(2);

/// Why a file or a part of it is not in force.
struct Refusal {
    /// One sentence each.
    problems: Vec<String>,
    /// A conflict with the running state, such as attachments to a network that the file no longer has. Errors in the
    /// file itself stay until it changes.
    may_pass: bool,
}

pub(crate) struct Reloader {
    pub(crate) path: PathBuf,
    /// The configuration at the start of the service.
    pub(crate) config: Config,
    pub(crate) shared: Arc<Shared>,
    pub(crate) log: LogControl,
}

impl Reloader {
    /// Loads the file at each SIGHUP, and whenever its content or read error differs from the last attempt. A file in
    /// conflict with the running state is retried every 2 s. Never returns.
    ///
    /// Compares contents, not times: a file that is changed back is loaded again.
    pub(crate) async fn run(self, mut hangups: Signal) {
        let mut tried = Ok(self.shared.configuration.lock().in_force.digest());
        let mut may_pass = false;
        let mut ticks = ticks(PERIOD);
        loop {
            let is_asked = tokio::select! {
                _ = hangups.recv() => true,
                _ = ticks.tick() => false,
            };
            let file = ConfigFile::read_aside(&self.path).await;
            let file = file.map_err(|error| Chain(&error).to_string());
            let found = file.as_ref().map(ConfigFile::digest).map_err(Clone::clone);
            let is_news = is_asked || found != tried;
            if !is_news && !may_pass {
                continue;
            }
            tried = found;
            let refusal = match is_news {
                true => self.try_news(file).await,
                false => self.try_file(file).await,
            };
            may_pass = refusal.is_some_and(|refusal| refusal.may_pass);
        }
    }

    /// Loads a changed or requested file. The service manager is notified, and events report problems.
    async fn try_news(&self, file: Result<ConfigFile, String>) -> Option<Refusal> {
        notify_reloading();
        self.shared.credentials.reload().await;
        let refusal = self.try_file(file).await;
        for problem in refusal.iter().flat_map(|refusal| &refusal.problems) {
            let (events, path) = (self.shared.engine.events(), self.path.display());
            let author = Author::ConfigurationFile;
            events.record_by(&author, EventKind::ConfigurationRefused, path, problem);
        }
        notify_ready();
        refusal
    }

    /// Loads a file. Conditions show its problems.
    async fn try_file(&self, file: Result<ConfigFile, String>) -> Option<Refusal> {
        let refusal = self.load(file).await.err();
        let problems = refusal.as_ref().map(|refusal| refusal.problems.clone());
        self.shared.configuration.lock().problems = problems.unwrap_or_default();
        refusal
    }

    /// Puts the file in force. `Err`: it cannot be read, or parts of it are not in force.
    async fn load(&self, file: Result<ConfigFile, String>) -> Result<(), Refusal> {
        let refused = |problems, may_pass| Refusal { problems, may_pass };
        let of_file = |mistakes: &str| refused(unchanged(mistakes), false);
        let file = file.map_err(|unreadable| of_file(&unreadable))?;
        let next = Config::of(&file, &self.path).map_err(|error| of_file(&error.to_string()))?;
        let loaded = self.shared.engine.load_configuration(next.for_engine()).await;
        loaded.map_err(|failure| refused(unchanged(&failure.message), true))?;
        let engine = Arc::clone(&self.shared.engine);
        engine.note_configuration(self.path.clone(), file.digest()).await;
        {
            let mut configuration = self.shared.configuration.lock();
            configuration.in_force = file.clone();
            configuration.maintenance = next.under_maintenance();
        }
        let level = self.log.set_level(&next.log);
        level.map_err(|error| refused(vec![Chain(&error).to_string()], false))?;
        match self.config.fixed_differences(&next).as_slice() {
            [] => {
                tracing::info!(path = %self.path.display(), digest = file.digest(), "configuration in force");
                Ok(())
            }
            waiting => Err(refused(vec![in_part(&self.path, waiting)], false)),
        }
    }
}

/// One sentence for each line of `mistakes`.
fn unchanged(mistakes: &str) -> Vec<String> {
    let sentence = |mistake| format!("the configuration is unchanged: {mistake}");
    mistakes.lines().map(sentence).collect()
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
    fn message_names_settings_that_need_a_restart() {
        let shown =
            in_part(Path::new("/s.toml"), &["listen", "limits.watchers"].map(ToOwned::to_owned));
        let (in_force, waiting) = shown.split_once("; ").unwrap();
        assert!(in_force.contains("`log.level` of /s.toml"), "{shown}");
        assert!(waiting.ends_with(": `listen`, `limits.watchers`"), "{shown}");
    }

    #[test]
    fn each_mistake_has_a_sentence() {
        let shown = unchanged("/s.toml: one\n/s.toml: another");
        let [one, another] = &shown[..] else { panic!("{shown:?}") };
        assert!(one.ends_with(" /s.toml: one") && another.ends_with(" /s.toml: another"));
    }
}
