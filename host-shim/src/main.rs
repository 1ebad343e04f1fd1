//! `host-shim`: without arguments a CNI plugin, with `agent` the agent behind it.

use std::{
    env,
    ffi::OsString,
    io::{self, Write},
    process::ExitCode,
};

use bootstrap::Chain;
use clap::Parser;
use host_shim::{agent, cni::plugin};

/// `EX_USAGE` of sysexits.h
const USAGE: u8 = 64;

fn main() -> ExitCode {
    let arguments: Vec<OsString> = env::args_os().skip(1).collect();
    match arguments.first().map(|first| first.to_string_lossy()).as_deref() {
        None => plugin::run(),
        Some("agent") => run_agent(arguments),
        Some("--version" | "-V") => {
            tell(&mut io::stdout(), concat!("host-shim ", env!("CARGO_PKG_VERSION"), "\n"));
            ExitCode::SUCCESS
        }
        Some("--help" | "-h") => {
            tell(&mut io::stdout(), HELP);
            ExitCode::SUCCESS
        }
        Some(_) => {
            tell(&mut io::stderr(), HELP);
            ExitCode::from(USAGE)
        }
    }
}

const HELP: &str = "\
Usage: host-shim                    the CNI plugin: CNI_COMMAND and a configuration on stdin
       host-shim agent [OPTIONS]    the agent; see `host-shim agent --help`
       host-shim --version
";

/// Nobody is left to be told if the stream is closed.
fn tell(out: &mut dyn Write, text: &str) {
    let _ = out.write_all(text.as_bytes());
}

fn run_agent(arguments: Vec<OsString>) -> ExitCode {
    let parsed = match agent::Arguments::try_parse_from(arguments) {
        Ok(parsed) => parsed,
        Err(shown) => {
            let _ = shown.print();
            return ExitCode::from(if shown.use_stderr() { USAGE } else { 0 });
        }
    };
    match agent::run(&parsed) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tell(&mut io::stderr(), &format!("host-shim agent: {}\n", Chain(&error)));
            ExitCode::FAILURE
        }
    }
}
