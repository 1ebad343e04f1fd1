//! Faults that tests ask for. Compiled only with the feature `fault-injection`, which no release
//! build has.
//!
//! A test sets `OFFLOAD_FAULTS` to a folder when it starts the program, and creates a file there to
//! strike the next time the point of that name is passed: `fail-<point>` makes a step fail after its
//! work is done (the hardest case for its undo), `kill-<point>` kills the process by SIGKILL.
//! The file is removed when it strikes, and whoever removes it is struck: of several threads that pass
//! the point at once, one. To a file `trace`, if there is one, the name of each point that is passed is
//! appended.

use std::{
    env,
    fs::{self, File},
    io::Write,
    path::{Path, PathBuf},
    sync::OnceLock,
};

use nix::sys::signal::{Signal, raise};

fn folder() -> Option<&'static PathBuf> {
    static FOLDER: OnceLock<Option<PathBuf>> = OnceLock::new();
    FOLDER.get_or_init(|| env::var_os("OFFLOAD_FAULTS").map(PathBuf::from)).as_ref()
}

/// A point at which the process may be killed.
pub(crate) fn pass(point: &str) {
    let Some(folder) = folder() else { return };
    trace(folder, point);
    if fs::remove_file(folder.join(format!("kill-{point}"))).is_ok() {
        die();
    }
}

fn die() {
    // What the kernel lets live, such as the first process of a namespace, ends all the same.
    let _ = raise(Signal::SIGKILL);
    std::process::abort();
}

/// A point at which the process may be killed. Tells whether the step shall fail.
pub(crate) fn strikes(point: &str) -> bool {
    pass(point);
    folder().is_some_and(|folder| fs::remove_file(folder.join(format!("fail-{point}"))).is_ok())
}

fn trace(folder: &Path, point: &str) {
    if let Ok(mut file) = File::options().append(true).open(folder.join("trace")) {
        // One write, so that the lines of several threads don't mingle.
        let _ = file.write_all(format!("{point}\n").as_bytes());
    }
}
