//! Logs to standard error or systemd's journal. Standard output is reserved for answers.

use std::{
    env,
    fs::File,
    io::{self, IsTerminal, stderr},
    os::{fd::AsFd, unix::fs::MetadataExt},
};

use serde::{Deserialize, Serialize};
use tracing_subscriber::{
    Layer, Registry,
    filter::{LevelFilter, Targets},
    layer::SubscriberExt,
    reload,
    util::SubscriberInitExt,
};

use crate::{Exporting, TracingSettings, export::export, log_layer::LogLayer};

/// The environment variable that overrides [`LogSettings::level`].
pub const LOG_VARIABLE: &str = "DPU_OFFLOAD_LOG";

/// The `[log]` table of all configurations.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct LogSettings {
    /// The format of lines.
    pub format: LogFormat,
    /// `error`, `warn`, `info`, `debug` or `trace`, optionally with exceptions per module, such as `info,mtls=debug`.
    pub level: String,
}

impl Default for LogSettings {
    fn default() -> Self {
        Self { format: LogFormat::Auto, level: "info".into() }
    }
}

/// The format of log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// [`LogFormat::Journald`] if standard error is the journal, [`LogFormat::Text`] on a terminal, otherwise
    /// [`LogFormat::Json`].
    #[default]
    Auto,
    /// Text for people.
    Text,
    /// One JSON object per line.
    Json,
    /// Structured fields to systemd's journal.
    Journald,
}

/// Why logging could not be started.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the sentences explain the variants and their fields")]
#[non_exhaustive]
pub enum LogError {
    #[error("{origin} holds {level:?}, which is no log level such as `info` or `info,mtls=debug`")]
    Level {
        /// Its source: the configuration's key or the environment variable.
        origin: &'static str,
        level: String,
    },
    #[error("cannot reach systemd's journal")]
    Journal(#[source] io::Error),
    #[error("cannot export traces")]
    Export(#[source] io::Error),
    #[error("logging was started twice")]
    Twice(#[source] tracing_subscriber::util::TryInitError),
}

/// Starts the process's logging and its export of spans. `program` is its name in the journal and in traces.
///
/// # Errors
/// [`LogError`] if the level is malformed, the configured journal is not reachable, logging was already started, or the
/// export cannot be started.
pub fn init_logs(
    settings: &LogSettings,
    tracing: &TracingSettings,
    program: &'static str,
) -> Result<(LogControl, Option<Exporting>), LogError> {
    let (filter, control) = reload::Layer::new(filter(settings)?);
    let log: LogLayer = Box::new(layer(settings.format, program)?.with_filter(filter));
    let exported = export(tracing, program).map_err(LogError::Export)?;
    let (spans, exporting) = exported.unzip();
    let layers: Vec<_> = [log].into_iter().chain(spans).collect();
    tracing_subscriber::registry().with(layers).try_init().map_err(LogError::Twice)?;
    Ok((LogControl(control), exporting))
}

/// Changes the level of logs while the program runs.
#[derive(Clone, Debug)]
pub struct LogControl(reload::Handle<Targets, Registry>);

impl LogControl {
    /// Sets the level to `settings.level`, unless [`LOG_VARIABLE`] overrides it. The format stays.
    ///
    /// # Errors
    /// [`LogError::Level`] if the level is malformed. The earlier level stays.
    pub fn set_level(&self, settings: &LogSettings) -> Result<(), LogError> {
        let filter = filter(settings)?;
        // This fails only after the process's logging has ended.
        let _ = self.0.reload(filter);
        Ok(())
    }
}

impl LogSettings {
    /// Checks the level.
    ///
    /// # Errors
    /// [`LogError::Level`] if it is malformed.
    pub fn check(&self) -> Result<(), LogError> {
        filter(self).map(drop)
    }
}

fn filter(settings: &LogSettings) -> Result<Targets, LogError> {
    let (origin, level) = match env::var(LOG_VARIABLE) {
        Ok(level) if !level.is_empty() => (LOG_VARIABLE, level),
        _ => ("`log.level`", settings.level.clone()),
    };
    let levels = parse_level(&level).ok_or(LogError::Level { origin, level })?;
    // Spans are only for traces. A log filter that enables them would create all of them.
    Ok(levels.with_target(traces::TARGET, LevelFilter::OFF))
}

/// Parses a level. `None`: malformed. [`Targets`] alone accepts an empty part as `error`, and any text as a module's
/// name.
fn parse_level(level: &str) -> Option<Targets> {
    let parts: Vec<_> = level.split(',').map(str::trim).filter(|part| !part.is_empty()).collect();
    let is_simple = |part: &&str| part.chars().all(|c| c.is_alphanumeric() || "_:=".contains(c));
    let is_valid = !parts.is_empty() && parts.iter().all(is_simple);
    is_valid.then(|| parts.join(",").parse().ok()).flatten()
}

fn layer(format: LogFormat, program: &str) -> Result<LogLayer, LogError> {
    match format {
        LogFormat::Auto => automatic_layer(program),
        LogFormat::Text => Ok(text_layer()),
        LogFormat::Json => Ok(json_layer()),
        LogFormat::Journald => journal_layer(program).map_err(LogError::Journal),
    }
}

fn automatic_layer(program: &str) -> Result<LogLayer, LogError> {
    if stderr_is_journal() {
        return Ok(journal_layer(program).unwrap_or_else(|_| text_layer()));
    }
    Ok(if stderr().is_terminal() { text_layer() } else { json_layer() })
}

fn text_layer() -> LogLayer {
    let colours = stderr().is_terminal() && env::var_os("NO_COLOR").is_none();
    Box::new(tracing_subscriber::fmt::layer().with_writer(stderr).with_ansi(colours))
}

fn json_layer() -> LogLayer {
    Box::new(tracing_subscriber::fmt::layer().with_writer(stderr).json().flatten_event(true))
}

fn journal_layer(program: &str) -> io::Result<LogLayer> {
    Ok(Box::new(tracing_journald::layer()?.with_syslog_identifier(program.into())))
}

/// systemd sets `JOURNAL_STREAM` to the device and inode of the process's stream. Children inherit the variable even if
/// their standard error goes elsewhere, so that the numbers must be compared.
fn stderr_is_journal() -> bool {
    let Some(stream) = env::var("JOURNAL_STREAM").ok() else { return false };
    let stderr_file = stderr().as_fd().try_clone_to_owned().map(File::from);
    let metadata = stderr_file.and_then(|file| file.metadata());
    metadata.is_ok_and(|metadata| stream == format!("{}:{}", metadata.dev(), metadata.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_default_to_info() {
        let settings: LogSettings = toml::from_str("").unwrap();
        assert_eq!(settings, LogSettings::default());
        assert!(filter(&settings).is_ok());
    }

    #[test]
    fn formats_are_named_in_lower_case() {
        let settings: LogSettings = toml::from_str("format = 'journald'").unwrap();
        assert_eq!(settings.format, LogFormat::Journald);
    }

    #[test]
    fn modules_may_have_levels_of_their_own() {
        let level = "info,mtls=debug".to_owned();
        let filter = filter(&LogSettings { level, ..LogSettings::default() }).unwrap();
        assert!(filter.would_enable("mtls::server", &tracing::Level::DEBUG));
        assert!(filter.would_enable("host_shim", &tracing::Level::INFO));
        assert!(!filter.would_enable("host_shim", &tracing::Level::DEBUG));
    }

    #[test]
    fn whatever_the_level_no_log_has_spans() {
        for level in ["trace", "trace,offload=trace"] {
            let settings = LogSettings { level: level.into(), ..LogSettings::default() };
            let filter = filter(&settings).unwrap();
            assert!(!filter.would_enable(traces::TARGET, &tracing::Level::INFO), "{level}");
        }
    }

    #[test]
    fn spaces_and_commas_too_many_change_nothing() {
        let plain = parse_level("info,mtls=debug").unwrap();
        for level in ["info, mtls=debug", " info ,,mtls=debug,"] {
            assert_eq!(parse_level(level).as_ref(), Some(&plain), "{level:?}");
        }
    }

    #[test]
    fn unknown_level_is_refused_by_name() {
        for level in ["mtls=loud", "info,mtls[s]=debug", "[{x=1}]", "info debug", "", " , "] {
            let settings = LogSettings { level: level.into(), ..LogSettings::default() };
            let error = settings.check().unwrap_err().to_string();
            assert!(error.starts_with(&format!("`log.level` holds {level:?}")), "{error}");
        }
    }
}
