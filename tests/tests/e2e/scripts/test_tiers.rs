//! `hack/test`: which tests it runs, and what it prints.

use std::{fs, process::Command};

use e2e::run;
use tempfile::TempDir;

use super::{fails, hack, path, succeeds, text, write_program};

/// A fake cargo for `hack/test`: everything builds, and one of three tests fails.
const CARGO: &str = r#"#!/usr/bin/env bash
[[ $* != *--doc* ]] || echo "test result: ok. 0 passed; 0 failed; 0 ignored; 0 measured"
[[ $* == *"nextest run"*"--profile unit"* ]] || exit 0
mkdir -p target/nextest/unit
cat >target/nextest/unit/junit.xml <<'REPORT'
<?xml version="1.0" encoding="UTF-8"?>
<testsuites name="nextest-run" tests="3" failures="1" errors="0" uuid="00000000-0000-0000-0000-000000000000" time="0.1">
    <testsuite name="ipam" tests="3" disabled="0" errors="0" failures="1">
        <testcase name="pool::gives_each_once" classname="ipam" time="0.1">
            <failure message="thread &apos;pool::gives_each_once&apos; panicked at pool.rs:7:5" type="test failure with exit code 101">thread &apos;pool::gives_each_once&apos; panicked at pool.rs:7:5:
assertion failed: first &lt; second
stack backtrace:
   0: a frame of the test's runner</failure>
        </testcase>
        <testcase name="pool::takes_back" classname="ipam" time="0.1"/>
        <testcase name="pool::is_full" classname="ipam" time="0.1"/>
    </testsuite>
</testsuites>
REPORT
exit 100
"#;

/// A folder with copies of all scripts.
fn copy_of_scripts() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    succeeds(Command::new("cp").arg("-r").arg(path("")).arg(folder.path().join("hack")));
    folder
}

#[test]
fn failures_are_repeated_before_the_count() {
    let folder = copy_of_scripts();
    let tools = folder.path().join("tools");
    fs::create_dir(&tools).unwrap();
    for tool in ["cargo", "cargo-nextest"] {
        write_program(&tools.join(tool), CARGO);
    }
    let tools = format!("{}:{}", tools.display(), std::env::var("PATH").unwrap());
    let mut script = Command::new(folder.path().join("hack/test"));
    let printed = fails(script.arg("unit").env("PATH", tools).env_remove("CARGO_TARGET_DIR"));
    let (_, end) = printed.split_once("== what failed").expect(&printed);
    let expected = "
pool::gives_each_once: thread 'pool::gives_each_once' panicked at pool.rs:7:5:
assertion failed: first < second
";
    let (reasons, counts) = end.split_at(expected.len());
    assert_eq!(reasons, expected, "{printed}");
    // The three tests and the build.
    assert_eq!(counts.lines().next(), Some("3 passed, 1 failed, 0 skipped"), "{printed}");
}

/// A test binary with four tests, one of which fails.
const TEST_BINARY: &str = r#"#!/usr/bin/env bash
case $* in
    "--list --format terse") printf '%s: test\n' pool::is_full pool::is_broken pool::is_left_out lease::ends ;;
    "--exact pool::is_broken --nocapture") echo "thread panicked at pool.rs:7:5: 1 < 2 & 3"; exit 101 ;;
    "--exact "*) : ;;
    *) exit 2 ;;
esac
"#;

#[test]
fn tests_run_without_nextest_too() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name);
    write_program(&file("binary"), TEST_BINARY);
    let line = format!("ipam::pools {} {}\n", file("binary").display(), folder.path().display());
    fs::write(file("executables"), line).unwrap();
    fs::write(file("selection"), "+ ^ipam:: ^pool::\n- . left_out\n").unwrap();
    let run_by_name = |name: &str| {
        let files = [file("executables"), file("selection"), file("results")];
        let output = run(Command::new(path("test.d/without-nextest")).args(files).arg(name));
        (output.status.success(), fs::read_to_string(file("results/junit.xml")).unwrap())
    };
    let (is_good, report) = run_by_name("");
    assert!(!is_good && report.contains(r#"tests="2" failures="1" errors="0""#), "{report}");
    assert!(report.contains("panicked at pool.rs:7:5: 1 &lt; 2 &amp; 3"), "{report}");
    assert!(report.contains("pool::is_broken") && !report.contains("is_full"), "{report}");
    let (is_good, report) = run_by_name("ipam::pools::pool::is_full");
    assert!(is_good && report.contains(r#"tests="1" failures="0""#), "{report}");
}

/// Tiers that `hack/test changed` selects after changes of these files.
fn chosen_for(files: &[&str]) -> Vec<String> {
    let folder = copy_of_scripts();
    let git = |arguments: &[&str]| {
        let identity = ["-c", "user.name=a", "-c", "user.email=a@example.com"];
        succeeds(Command::new("git").current_dir(&folder).args(identity).args(arguments));
    };
    git(&["init", "--quiet"]);
    git(&["add", "."]);
    git(&["commit", "--quiet", "--message", "scripts"]);
    for file in files {
        let file = folder.path().join(file);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, "changed").unwrap();
    }
    let mut script = Command::new(folder.path().join("hack/test"));
    let base = if files.is_empty() { "0000000" } else { "HEAD" };
    let printed = text(&run(script.args(["changed", "--list"]).env("CI_BASE", base)));
    let chosen = printed.lines().filter_map(|line| line.trim().strip_prefix("chosen: "));
    chosen.map(|line| line.split(',').next().unwrap().to_owned()).collect()
}

#[test]
fn expensive_tiers_are_chosen_by_what_changed() {
    let has = |chosen: &[String], tier: &str| chosen.iter().any(|it| it == tier);
    let of_database = chosen_for(&["crates/ovsdb/src/database.rs"]);
    let called = ["rustdoc", "ovs-long", "vm-ovs"];
    assert!(called.iter().all(|tier| has(&of_database, tier)), "{of_database:?}");
    let of_card = chosen_for(&["crates/sriov/src/lib.rs"]);
    assert!(has(&of_card, "rustdoc") && has(&of_card, "vm"), "{of_card:?}");
    // They exceed the time limit.
    let too_many = chosen_for(&["Cargo.lock"]);
    assert!((8..10).contains(&too_many.len()), "all of ten short forms but some: {too_many:?}");
    for of_all in [chosen_for(&["a/file/without/a/line"]), chosen_for(&[])] {
        assert!((8..10).contains(&of_all.len()), "all of nine short forms but some: {of_all:?}");
        for whole in ["long", "ovs-long", "kubernetes", "runtime", "vm", "vm-ovs", "arm"] {
            assert!(!has(&of_all, whole), "{of_all:?}");
        }
    }
    let of_words = chosen_for(&["docs/CONCEPTS.md"]);
    assert!(!of_words.is_empty(), "the time that is left is used");
}

#[test]
fn missing_test_tiers_are_reported() {
    for tier in ["clusters", "nonsense"] {
        let output = run(hack("test").arg(tier));
        assert_eq!(output.status.code(), Some(2));
        assert_eq!(text(&output).lines().count(), 1, "{}", text(&output));
    }
}
