//! `host-shim`: the CNI plugin. A runtime starts it for every call, so it is a program of its own:
//! the agent's code would double its memory and its time to start.

use std::{
    env,
    io::{self, Write},
    process::ExitCode,
};

use host_shim::cni::plugin;

/// `EX_USAGE` of sysexits.h
const USAGE: u8 = 64;

const HELP: &str = "\
Usage: host-shim             the CNI plugin: CNI_COMMAND and a configuration on stdin
       host-shim --version
The agent behind it is the program host-shim-agent.
";

fn main() -> ExitCode {
    let argument = env::args_os().nth(1);
    match argument.as_ref().map(|argument| argument.to_string_lossy()).as_deref() {
        None => plugin::run(),
        Some("--version" | "-V") => {
            tell(&mut io::stdout(), concat!("host-shim ", env!("CARGO_PKG_VERSION"), "\n"))
        }
        Some("--help" | "-h") => tell(&mut io::stdout(), HELP),
        Some(_) => {
            tell(&mut io::stderr(), HELP);
            ExitCode::from(USAGE)
        }
    }
}

/// Nobody is left to be told if the stream is closed.
fn tell(out: &mut dyn Write, text: &str) -> ExitCode {
    let _ = out.write_all(text.as_bytes());
    ExitCode::SUCCESS
}
