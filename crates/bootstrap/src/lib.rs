//! Start-up code of all programs: configuration, logs, traces, limits, signals, and messages to systemd and the caller.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod address;
mod chain;
mod config;
mod diagnosis;
mod digest;
#[cfg_attr(not(feature = "otlp"), path = "no_export.rs")]
mod export;
mod foreign_text;
mod limits;
mod log_layer;
mod logs;
mod outcome;
mod private;
mod regular_file;
mod service_manager;
mod signals;
mod tracing_settings;
mod variables;
mod without_secrets;

pub use address::socket_address;
pub use chain::Chain;
pub use config::{CONFIG_LIMIT, ConfigError, ConfigFile, load_config, parse_config};
pub use diagnosis::{nearest, unknown_key};
pub use digest::sha256;
pub use export::Exporting;
pub use foreign_text::{cut, printable};
pub use limits::raise_file_limit;
pub use logs::{LOG_VARIABLE, LogControl, LogError, LogFormat, LogSettings, init_logs};
pub use outcome::{complain, misconfigured, print, valid_configuration};
pub use private::{FolderError, is_trusted_owner, private_file, private_folder, private_socket};
pub use regular_file::open_regular_file;
pub use service_manager::{feed_watchdog, notify_ready, notify_reloading, notify_stopping};
pub use signals::{ShutdownSignals, reload_signals};
pub use tracing_settings::TracingSettings;
