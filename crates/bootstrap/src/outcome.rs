//! Messages to the program's caller, and exit codes.

use std::{
    fmt::Display,
    io::{self, Write},
    path::Path,
    process::ExitCode,
};

/// Exit code for invalid configurations: EX_CONFIG of sysexits.h. The systemd units do not restart after it.
const BAD_CONFIGURATION: u8 = 78;

/// Writes `text` to standard output.
///
/// # Errors
/// The system's error, such as for a closed pipe.
pub fn print(text: &str) -> io::Result<()> {
    io::stdout().write_all(text.as_bytes())
}

/// Prints to standard error why `program` fails, one line per mistake. The log may not be started yet.
pub fn complain(program: &str, why: &dyn Display) {
    for line in why.to_string().lines() {
        // A closed stream has no reader for an error.
        let _ = writeln!(io::stderr(), "{program}: {line}");
    }
}

/// Prints mistakes in the configuration like [`complain`], and returns an exit code after which a service manager does
/// not restart the program.
#[must_use]
pub fn misconfigured(program: &str, why: &dyn Display) -> ExitCode {
    complain(program, why);
    ExitCode::from(BAD_CONFIGURATION)
}

/// The answer to `--check-config` for a valid configuration, with the certificates' expiry. `unseen` are the things
/// that only a start checks.
#[must_use]
pub fn valid_configuration(path: &Path, unseen: &str, ends: &str) -> String {
    let path = path.display();
    format!(
        "{path} is valid, and so are its certificates. {unseen} are only checked at a start\n{ends}\n"
    )
}
