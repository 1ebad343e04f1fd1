//! Fault files: they make a program fail, die or write a trace at its steps. The program deletes the file of a fault
//! that strikes.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// The program's `OFFLOAD_FAULTS`, inside its folder.
pub(crate) fn folder(folder: &Path, program: &str) -> PathBuf {
    folder.join(format!("faults-{program}"))
}

/// Creates that folder.
pub(crate) fn prepare(of: &Path, program: &str) {
    fs::create_dir(folder(of, program)).unwrap();
}

/// Effect of a fault at a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultAction {
    /// The step fails.
    Fail,
    /// The program is killed.
    Kill,
}

/// Makes a program's step fail, or kill the program, once after its work.
pub(crate) fn arm(of: &Path, program: &str, action: FaultAction, step: &str) -> PathBuf {
    let action = match action {
        FaultAction::Fail => "fail",
        FaultAction::Kill => "kill",
    };
    let file = folder(of, program).join(format!("{action}-{step}"));
    fs::write(&file, "").unwrap();
    file
}

/// Makes a program trace the points of its steps that it passes. Returns the file.
pub(crate) fn trace(of: &Path, program: &str) -> PathBuf {
    let file = folder(of, program).join("trace");
    fs::write(&file, "").unwrap();
    file
}
