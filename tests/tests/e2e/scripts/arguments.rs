//! What every script does with its arguments, and the functions that scripts share.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use e2e::run;

use super::{assert_prints, fails, hack, path, succeeds, text};

/// The scripts, and the files that they share.
fn files() -> Vec<PathBuf> {
    let entries = fs::read_dir(path("")).unwrap().map(|entry| entry.unwrap().path());
    let files: Vec<_> = entries.filter(|file| file.is_file()).collect();
    assert!(files.contains(&path("cluster")), "{files:?}");
    files
}

#[test]
fn every_script_explains_itself() {
    let scripts = files().into_iter().filter(|file| file.extension().is_none());
    for script in scripts.map(|file| file.file_name().unwrap().to_str().unwrap().to_owned()) {
        assert_prints(&succeeds(hack(&script).arg("--help")), &[&format!("hack/{script}")]);
    }
    for line in ["lab up", "lab down", "lab env", "lab restart", "vm prepare", "vm run"] {
        let (script, command) = line.split_once(' ').unwrap();
        assert_prints(&succeeds(hack(script).args([command, "--help"])), &[script]);
    }
}

/// Files of a script: itself and everything that it sources.
fn parts_of(script: &Path) -> BTreeSet<PathBuf> {
    let text = fs::read_to_string(script).unwrap();
    let mut parts = BTreeSet::from([script.to_owned()]);
    for line in text.lines().filter_map(|line| line.strip_prefix("source \"")) {
        let part = match line.trim_end_matches('"') {
            line if line.starts_with("$ROOT/hack/") => path(&line["$ROOT/hack/".len()..]),
            line => script.parent().unwrap().join(&line["$(dirname \"$0\")/".len()..]),
        };
        parts.extend(parts_of(&part.canonicalize().unwrap()));
    }
    parts
}

/// Functions that a file of shell code defines.
fn functions_of(part: &Path) -> Vec<String> {
    let text = fs::read_to_string(part).unwrap();
    let names = text.lines().filter_map(|line| line.split_once("() "));
    names.map(|(name, _)| name.to_owned()).filter(|name| !name.starts_with([' ', '#'])).collect()
}

/// Bash silently uses the last definition, also for callers of the first.
#[test]
fn no_script_redefines_a_sourced_function() {
    for script in files() {
        let mut seen = BTreeSet::new();
        for function in parts_of(&script).iter().flat_map(|part| functions_of(part)) {
            assert!(seen.insert(function.clone()), "{} has two of {function}()", script.display());
        }
    }
}

#[test]
fn unknown_script_arguments_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    for line in [
        "demo x",
        "bench --write x",
        "soak --ops 1 x",
        "mutants --sample 1 x",
        "soak --without hostile x",
        "reliability --write x",
        "runtimes prepare x",
        "cluster prepare x",
        "cluster up x",
        "cluster env x",
        "cluster down x",
        "certs made b",
        "lab down x",
        "lab restart agent x",
        "lab env x",
        "lab env 2 x",
        "prometheus x",
        "vm run x",
        "cross x",
        "cross --only host-shim x",
        "package x",
        "package --only deb x",
        "arm-dpu fetch x",
        "arm-dpu down /tmp x",
        "card-check x",
    ] {
        let words: Vec<_> = line.split(' ').collect();
        let printed = fails(hack(words[0]).args(&words[1..]).current_dir(&folder));
        assert_prints(&printed, &[&format!("argument {};", words[words.len() - 1])]);
        assert_eq!(
            printed.lines().count(),
            1,
            "{line}: a script that does something says more: {printed}"
        );
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 0, "{line}");
    }
}

#[test]
fn invalid_script_numbers_are_refused() {
    for line in [
        "soak --ops abc",
        "soak --ops -1",
        "soak --ops",
        "soak --seed 5x",
        "soak --latency 1ms",
        "fuzz --seconds abc",
        "fuzz --seconds 0",
        "fuzz --executions 1.5",
        "fuzz --executions",
    ] {
        let words: Vec<_> = line.split(' ').collect();
        // A script that continues must end at some time.
        let mut bounded = Command::new("timeout");
        let output = run(bounded.arg("10").arg(path(words[0])).args(&words[1..]));
        let printed = text(&output);
        assert_eq!(output.status.code(), Some(1), "{line}: {printed}");
        let expected = format!("{}: {} needs a number", words[0], words[1]);
        assert!(
            printed.starts_with(&expected) && printed.lines().count() == 1,
            "{line}: {printed}"
        );
    }
}

#[test]
fn soak_refuses_wrong_values() {
    let (hosts, hazards) = ("--hosts needs 1, 2 or 3;", "--without needs one of hostile, dying, ");
    for (line, expected) in [
        (&["--hosts", "0"][..], hosts),
        (&["--hosts", "4"], hosts),
        (&["--hosts"], hosts),
        (&["--without", "kills"], hazards),
        (&["--without"], hazards),
    ] {
        let output = run(hack("soak").args(line));
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(text(&output).starts_with(&format!("soak: {expected}")), "{output:?}");
    }
}
