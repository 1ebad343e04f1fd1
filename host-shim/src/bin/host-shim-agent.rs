//! `host-shim-agent`: the resident program behind the CNI plugin.

use std::{
    io::{self, Write},
    process::ExitCode,
};

use bootstrap::Chain;
use clap::Parser;
use host_shim::agent;

/// What a service manager takes for "do not start it again": EX_CONFIG of sysexits.h.
const BAD_CONFIGURATION: u8 = 78;

fn main() -> ExitCode {
    match agent::run(&agent::Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            for line in Chain(&error).to_string().lines() {
                // Nobody is left to be told if the stream is closed.
                let _ = writeln!(io::stderr(), "host-shim-agent: {line}");
            }
            match error.is_of_configuration() {
                true => ExitCode::from(BAD_CONFIGURATION),
                false => ExitCode::FAILURE,
            }
        }
    }
}
