//! The command line.

use std::path::PathBuf;

use clap::Parser;

use crate::config::DEFAULT_PATH;

/// The DPU's part of dpu-offload: gives pods their network attachments and programs the switch.
#[derive(Debug, Parser)]
#[command(name = "dpu-service", version)]
pub struct Arguments {
    /// The configuration file.
    #[arg(long, value_name = "FILE", default_value = DEFAULT_PATH)]
    pub config: PathBuf,
    /// Checks the configuration file and its certificates, and exits.
    #[arg(long)]
    pub check_config: bool,
    /// Prints the names of the programming steps, in order, and exits.
    #[arg(long, conflicts_with = "check_config")]
    pub list_steps: bool,
    /// Prints the names of the points at which a test can kill the service, and exits.
    #[arg(long, conflicts_with_all = ["check_config", "list_steps"])]
    pub list_kill_points: bool,
}
