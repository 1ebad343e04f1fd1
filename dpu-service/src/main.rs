//! The DPU's program: API, attach and detach, journal, eswitch, fabric, reconciler.
#![forbid(unsafe_code)]

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Context;
use bootstrap::{Chain, init_logs};
use clap::Parser;
use dpu_service::{
    config::{Config, DEFAULT_PATH},
    milestones::Milestone,
    programmer::STEPS,
    service,
};

/// What a service manager takes for "do not start it again": EX_CONFIG of sysexits.h.
const BAD_CONFIGURATION: u8 = 78;

/// What blocks waits for the kernel's one lock of all links: more threads would only take memory.
const BLOCKING_THREADS: usize = 8;

/// The DPU's part of dpu-offload: gives pods their network attachments and programs the switch.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    /// The configuration file.
    #[arg(long, value_name = "FILE", default_value = DEFAULT_PATH)]
    config: PathBuf,
    /// Checks the configuration file and its certificates, and exits.
    #[arg(long)]
    check_config: bool,
    /// Prints the names of the programming steps, in order, and exits.
    #[arg(long, conflicts_with = "check_config")]
    list_steps: bool,
    /// Prints the names of the points at which a test can kill the service, and exits.
    #[arg(long, conflicts_with_all = ["check_config", "list_steps"])]
    list_kill_points: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if arguments.list_steps {
        STEPS.iter().for_each(|step| print(step.name()));
        return ExitCode::SUCCESS;
    }
    if arguments.list_kill_points {
        Milestone::kill_points().iter().for_each(|point| print(point));
        return ExitCode::SUCCESS;
    }
    let config = match Config::load(&arguments.config) {
        Ok(config) => config,
        Err(error) => {
            complain(&error);
            return ExitCode::from(BAD_CONFIGURATION);
        }
    };
    if arguments.check_config {
        return check_certificates(&config, &arguments.config);
    }
    match start(config, &arguments.config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            complain(&format_args!("dpu-service: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// Checks what the configuration file names, as far as that changes nothing.
fn check_certificates(config: &Config, path: &Path) -> ExitCode {
    let path = path.display();
    match service::credentials(config) {
        Ok(credentials) => {
            print(&format!(
                "{path} is good, and so are its certificates. Its card, fabric, journal and addresses \
                 to listen on are looked at by a start alone\n{}",
                credentials.ends()
            ));
            ExitCode::SUCCESS
        }
        Err(error) => {
            complain(&format_args!("{path}: {}", Chain(&error)));
            ExitCode::from(BAD_CONFIGURATION)
        }
    }
}

fn start(config: Config, path: &Path) -> anyhow::Result<()> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .max_blocking_threads(BLOCKING_THREADS)
        .build()
        .context("can't start")?
        .block_on(run(config, path))
}

async fn run(config: Config, path: &Path) -> anyhow::Result<()> {
    let log = init_logs(&config.log, "dpu-service").context("can't start logging")?;
    service::run(config, path, log).await?;
    Ok(())
}

#[expect(clippy::print_stdout, reason = "what it was asked for")]
fn print(line: &str) {
    println!("{line}");
}

#[expect(clippy::print_stderr, reason = "there may be no log yet")]
fn complain(error: &dyn std::fmt::Display) {
    eprintln!("{error}");
}
