//! What a program says to whoever started it, and the exit code that it ends with.

use std::{
    fmt::Display,
    io::{self, Write},
    path::Path,
    process::ExitCode,
};

/// What a service manager takes for "do not start it again": EX_CONFIG of sysexits.h.
const BAD_CONFIGURATION: u8 = 78;

/// Prints what a program was asked for on standard output, as it is.
///
/// # Errors
/// Standard output takes no more.
pub fn print(text: &str) -> io::Result<()> {
    io::stdout().write_all(text.as_bytes())
}

/// Tells on standard error why `program` can't do what it is to do, as there may be no log yet: a line for each
/// mistake.
pub fn complain(program: &str, why: &dyn Display) {
    for line in why.to_string().lines() {
        // A closed stream has no reader for an error.
        let _ = writeln!(io::stderr(), "{program}: {line}");
    }
}

/// The same of a mistake in the configuration, which does not mend itself: a service manager is not to start
/// the program again.
#[must_use]
pub fn misconfigured(program: &str, why: &dyn Display) -> ExitCode {
    complain(program, why);
    ExitCode::from(BAD_CONFIGURATION)
}

/// The answer to `--check-config` if nothing is wrong: until when the certificates are valid, and what `unseen` is
/// looked at by a start alone.
#[must_use]
pub fn good_configuration(path: &Path, unseen: &str, ends: &str) -> String {
    let path = path.display();
    format!(
        "{path} is good, and so are its certificates. {unseen} are looked at by a start alone\n{ends}\n"
    )
}
