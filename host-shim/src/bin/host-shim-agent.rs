//! `host-shim-agent`: the resident program behind the CNI plugin.

use std::process::ExitCode;

use bootstrap::{Chain, complain, misconfigured};
use clap::Parser;
use host_shim::agent;

const NAME: &str = "host-shim-agent";

fn main() -> ExitCode {
    match agent::run(&agent::Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.is_of_configuration() => misconfigured(NAME, &Chain(&error)),
        Err(error) => {
            complain(NAME, &Chain(&error));
            ExitCode::FAILURE
        }
    }
}
