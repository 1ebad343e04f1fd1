//! `dpuctl`: the operators' program.
#![forbid(unsafe_code)]

use std::{
    env,
    io::{self, IsTerminal},
    process::ExitCode,
};

use clap::Parser;
use dpuctl::{Arguments, Console, report, run, wants_colours, with_kind_apart};

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let arguments = Arguments::parse_from(with_kind_apart(env::args_os()));
    let is_screen = io::stdout().is_terminal();
    let [no_color, term] = ["NO_COLOR", "TERM"].map(env::var_os);
    let console = &mut Console {
        output: &mut io::stdout(),
        notes: &mut io::stderr(),
        input: &mut io::BufReader::new(io::stdin()),
        interactive: io::stdin().is_terminal() && io::stderr().is_terminal(),
        is_screen,
        has_colours: wants_colours(is_screen, no_color.as_deref(), term.as_deref()),
    };
    match run(arguments, console).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => report(&error, console),
    }
}
