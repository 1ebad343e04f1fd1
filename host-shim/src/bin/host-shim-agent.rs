//! `host-shim-agent`: the resident program behind the CNI plugin.

use std::{
    io::{self, Write},
    process::ExitCode,
};

use bootstrap::Chain;
use clap::Parser;
use host_shim::agent;

fn main() -> ExitCode {
    match agent::run(&agent::Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Nobody is left to be told if the stream is closed.
            let _ = writeln!(io::stderr(), "host-shim-agent: {}", Chain(&error));
            ExitCode::FAILURE
        }
    }
}
