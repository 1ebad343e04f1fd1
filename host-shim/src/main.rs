//! `host-shim`: the CNI plugin and the netavark plugin. A separate program, because a runtime starts it for every call:
//! the agent's code would double its memory and start time.
#![forbid(unsafe_code)]

use std::{
    env,
    io::{self, Write},
    process::ExitCode,
};

use host_shim::{cni::plugin, netavark};

/// `EX_USAGE` of sysexits.h.
const USAGE: u8 = 64;

const HELP: &str = "\
Usage: host-shim             the CNI plugin: CNI_COMMAND and a configuration on stdin
       host-shim info|create|setup NETNS|teardown NETNS
                             the netavark plugin: netavark's call on stdin
       host-shim --version
The agent behind it is the program host-shim-agent.
";

fn main() -> ExitCode {
    let arguments: Vec<_> = env::args_os().skip(1).collect();
    let arguments: Vec<_> = arguments.iter().map(|argument| argument.to_string_lossy()).collect();
    let argument = arguments.first().map(AsRef::as_ref);
    if let Some(verb) = argument.and_then(netavark::Verb::parse) {
        return netavark::run(verb, arguments.get(1).map(AsRef::as_ref));
    }
    match argument {
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

/// Prints a text. A closed stream has no reader for an error.
fn tell(out: &mut dyn Write, text: &str) -> ExitCode {
    let _ = out.write_all(text.as_bytes());
    ExitCode::SUCCESS
}
