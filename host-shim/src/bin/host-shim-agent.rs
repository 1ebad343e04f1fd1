//! `host-shim-agent`: the resident program behind the CNI plugin.

use std::process::ExitCode;

use bootstrap::{Chain, complain, misconfigured, print};
use host_shim::{
    agent::{self, OtherTask},
    install::{self, Task},
    status::status,
};

const NAME: &str = "host-shim-agent";

fn main() -> ExitCode {
    let arguments = agent::Arguments::from_command_line();
    match &arguments.task {
        Some(OtherTask::Status(asked)) => return status(asked),
        Some(OtherTask::Files(task)) => return perform(task),
        None => {}
    }
    match agent::run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.is_of_configuration() => misconfigured(NAME, &Chain(&error)),
        Err(error) => {
            complain(NAME, &Chain(&error));
            ExitCode::FAILURE
        }
    }
}

/// Installs or uninstalls the plugin.
fn perform(task: &Task) -> ExitCode {
    match install::run(task) {
        Ok(text) => {
            // A closed stream has no reader for an error.
            let _ = print(&text);
            ExitCode::SUCCESS
        }
        Err(error) => {
            complain(NAME, &Chain(&error));
            ExitCode::FAILURE
        }
    }
}
