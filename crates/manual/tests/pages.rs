//! The files that the program writes.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::{
    ffi::OsStr,
    fs,
    path::Path,
    process::{Command, Output},
};

fn manual(arguments: &[&OsStr]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_manual")).args(arguments).output().unwrap()
}

fn lines_of(folder: &Path, file: &str) -> usize {
    fs::read_to_string(folder.join(file)).unwrap().lines().count()
}

#[test]
fn each_program_has_page_and_completions() {
    let folder = tempfile::tempdir().unwrap();
    assert!(manual(&[folder.path().as_os_str()]).status.success());
    for (program, section) in
        [("dpuctl", 1), ("dpu-service", 8), ("host-shim-agent", 8), ("virtual-nic", 8)]
    {
        let files = [
            format!("man/man{section}/{program}.{section}"),
            format!("bash-completion/completions/{program}.bash"),
            format!("zsh/vendor-completions/_{program}"),
            format!("fish/vendor_completions.d/{program}.fish"),
        ];
        for file in files {
            assert!(lines_of(folder.path(), &file) > 3, "{file}");
        }
    }
    assert!(lines_of(folder.path(), "man/man1/dpuctl-get-vfs.1") > 3);
}

#[test]
fn missing_folder_is_logged_once() {
    for arguments in [vec![], vec![OsStr::new("a"), OsStr::new("b")]] {
        let output = manual(&arguments);
        assert!(!output.status.success());
        assert_eq!(String::from_utf8(output.stderr).unwrap().lines().count(), 1);
    }
}
