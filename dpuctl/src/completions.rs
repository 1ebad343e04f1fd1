use clap::CommandFactory;
use clap_complete::{Shell, generate};

use crate::{arguments::Arguments, console::Console, error::CallError};

pub(crate) fn completions(shell: Shell, console: &mut Console<'_>) -> Result<(), CallError> {
    let mut script = Vec::new();
    generate(shell, &mut Arguments::command(), "dpuctl", &mut script);
    console.print(&String::from_utf8_lossy(&script))
}
