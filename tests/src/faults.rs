//! Files by which a test has a program fail, die or tell at its steps. The program removes the file of a
//! fault that strikes.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Where a program looks for them that has the rest in `folder`: its `OFFLOAD_FAULTS`.
pub(crate) fn folder(folder: &Path, program: &str) -> PathBuf {
    folder.join(format!("faults-{program}"))
}

/// Makes that folder.
pub(crate) fn prepare(of: &Path, program: &str) {
    fs::create_dir(folder(of, program)).unwrap();
}

/// What a fault at a step of a program does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultAction {
    /// The step fails.
    Fail,
    /// The program is killed.
    Kill,
}

/// Makes the named step of a program fail, or kill it, once and after its work.
pub(crate) fn arm(of: &Path, program: &str, action: FaultAction, step: &str) -> PathBuf {
    let action = match action {
        FaultAction::Fail => "fail",
        FaultAction::Kill => "kill",
    };
    let file = folder(of, program).join(format!("{action}-{step}"));
    fs::write(&file, "").unwrap();
    file
}

/// Has a program write down the points of its steps that it passes, and returns where.
pub(crate) fn trace(of: &Path, program: &str) -> PathBuf {
    let file = folder(of, program).join("trace");
    fs::write(&file, "").unwrap();
    file
}
