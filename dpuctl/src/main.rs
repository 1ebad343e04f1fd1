//! `dpuctl`: the operators' program.
#![forbid(unsafe_code)]

use std::{
    io::{self, IsTerminal},
    process::ExitCode,
};

use clap::Parser;
use dpuctl::{Arguments, Console, report, run};

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let console = &mut Console {
        output: &mut io::stdout(),
        notes: &mut io::stderr(),
        input: &mut io::BufReader::new(io::stdin()),
        interactive: io::stdin().is_terminal() && io::stderr().is_terminal(),
        is_screen: io::stdout().is_terminal(),
    };
    match run(arguments, console).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => report(&error, console),
    }
}
