//! The DPU's program: API, attach and detach, journal, eswitch, fabric, reconciler.
#![forbid(unsafe_code)]

use std::{fmt::Display, path::Path, process::ExitCode};

use anyhow::Context;
use bootstrap::{Chain, complain, init_logs, misconfigured, print, valid_configuration};
use clap::Parser;
use dpu_service::{
    arguments::Arguments,
    config::Config,
    kill_points::KillPoint,
    service::{self, StartFile},
};
use drivers::programmer::STEPS;

const NAME: &str = "dpu-service";

/// All blocking work waits for the kernel's RTNL lock: more threads would only use memory.
const BLOCKING_THREADS: usize = 8;

/// What `--check-config` adds for a file without networks.
const NO_NETWORKS: &str =
    "It has no [[network]]: pods can attach only to networks that `dpuctl apply` creates.\n";

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if arguments.list_steps {
        return answer(&lines(STEPS.iter().map(|step| step.name())));
    }
    if arguments.list_kill_points {
        return answer(&lines(KillPoint::kill_points()));
    }
    let file = match StartFile::read(&arguments.config) {
        Ok(file) => file,
        Err(error) => return misconfigured(NAME, &error),
    };
    if arguments.check_config {
        return check_certificates(&file.config, &arguments.config);
    }
    match start(file) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let reason = format!("{error:#}");
            tracing::error!(%reason, "dpu-service ended with an error");
            complain(NAME, &reason);
            ExitCode::FAILURE
        }
    }
}

/// Checks the files that the configuration names without changing anything.
fn check_certificates(config: &Config, path: &Path) -> ExitCode {
    match service::credentials(config) {
        Ok(credentials) => {
            let unseen = "Its card, fabric, journal and addresses to listen on";
            let valid = valid_configuration(path, unseen, &credentials.ends());
            let valid = valid + &metrics::address_line(config.metrics.listen);
            answer(&(valid + if config.networks.is_empty() { NO_NETWORKS } else { "" }))
        }
        Err(error) => misconfigured(NAME, &format_args!("{}: {}", path.display(), Chain(&error))),
    }
}

fn answer(text: &str) -> ExitCode {
    match print(text) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(NAME, &format_args!("cannot write to standard output: {error}"));
            ExitCode::FAILURE
        }
    }
}

fn lines(names: impl IntoIterator<Item = impl Display>) -> String {
    names.into_iter().map(|name| format!("{name}\n")).collect()
}

fn start(file: StartFile) -> anyhow::Result<()> {
    let logging = init_logs(&file.config.log, &file.config.tracing, NAME);
    let (log, _exporting) = logging.context("can't start logging")?;
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .max_blocking_threads(BLOCKING_THREADS)
        .build()
        .context("can't start")?
        .block_on(service::run(file, log))?;
    Ok(())
}
