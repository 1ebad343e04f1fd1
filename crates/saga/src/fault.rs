//! Faults that tests ask for. Compiled only with the feature `fault-injection`, which no release
//! build has.
//!
//! A test sets `OFFLOAD_FAULTS` to a folder when it starts the program, and creates a file there to
//! strike the next time the step of that name has run: `fail-<step>` makes the step fail after its
//! work is done (the hardest case for its undo), `kill-<step>` kills the process. The file is
//! removed when it strikes.

use std::{env, fs, path::PathBuf, sync::OnceLock};

/// A fault struck.
pub(crate) struct Struck;

fn folder() -> Option<&'static PathBuf> {
    static FOLDER: OnceLock<Option<PathBuf>> = OnceLock::new();
    FOLDER.get_or_init(|| env::var_os("OFFLOAD_FAULTS").map(PathBuf::from)).as_ref()
}

pub(crate) fn strike(step: &str) -> Result<(), Struck> {
    let Some(folder) = folder() else { return Ok(()) };
    if fs::remove_file(folder.join(format!("kill-{step}"))).is_ok() {
        std::process::abort();
    }
    match fs::remove_file(folder.join(format!("fail-{step}"))) {
        Ok(()) => Err(Struck),
        Err(_) => Ok(()),
    }
}
