//! Fault injection for tests. Compiled only with the feature `fault-injection`, which no release build has.
//!
//! A test sets `OFFLOAD_FAULTS` to a folder when it starts the program, and creates files there:
//! - `fail-<point>` makes the step fail after its work is done (the hardest case for its undo).
//! - `kill-<point>` kills the process with SIGKILL.
//! - `trace`: the name of each passed point is appended to it.
//!
//! A fault happens the next time its point is passed, once: it removes its file first. If several threads pass the
//! point at the same time, only the one that removed the file is affected.

use std::{
    env,
    fs::{self, File},
    io::Write,
    path::PathBuf,
    sync::OnceLock,
};

use nix::sys::signal::{Signal, raise};

fn folder() -> Option<&'static PathBuf> {
    static FOLDER: OnceLock<Option<PathBuf>> = OnceLock::new();
    FOLDER.get_or_init(|| env::var_os("OFFLOAD_FAULTS").map(PathBuf::from)).as_ref()
}

/// Kills the process if the test has created the point's file.
pub(crate) fn pass(prefix: &str, point: &str) {
    let Some(folder) = folder() else { return };
    if let Ok(mut file) = File::options().append(true).open(folder.join("trace")) {
        // A single write keeps the lines of several threads apart.
        let _ = file.write_all(format!("{prefix}{point}\n").as_bytes());
    }
    if fs::remove_file(folder.join(format!("kill-{prefix}{point}"))).is_ok() {
        let _ = raise(Signal::SIGKILL);
        // SIGKILL does not end the first process of a PID namespace.
        std::process::abort();
    }
}

/// Passes a point. Returns whether the step must fail.
pub(crate) fn strikes(prefix: &str, point: &str) -> bool {
    pass(prefix, point);
    let fails = |folder: &PathBuf| folder.join(format!("fail-{prefix}{point}"));
    folder().is_some_and(|folder| fs::remove_file(fails(folder)).is_ok())
}
