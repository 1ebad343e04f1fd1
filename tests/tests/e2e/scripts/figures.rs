//! `hack/reliability` and `hack/fuzz`: the figures of soaks and of fuzzing.

use std::{fs, process::Command};

use e2e::run;

use super::{assert_prints, fails, hack, path, succeeds, text};

/// Last line of a soak without violations.
const GOOD: &str = "9 operations, 3 kills, 2 cuts, 2 hostile pods, 1 dead callers, 1 suspensions, \
                    1 of 8 speculative moves wrong, 7 calls of a crowd, 4 pings: 0 lost, 0 leaked, 0 doubled, 0 unclean, 0 without network";

#[test]
fn unfinished_soak_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let stopped = "9 operations of seed 1\ncould not go on: seed 1, round 2; logs in /tmp/x\n";
    let second = format!("commit aaaaaaaaaa\n9 operations of seed 2\n{GOOD}\n");
    let cut_off = "9 operations of seed 3\n";
    fs::write(folder.path().join("soaks.log"), format!("{stopped}{second}{cut_off}")).unwrap();
    const SLOW: &str = "4 on 2 hosts with 1 ms each way";
    let later = format!("commit bbbbbbbbbb\n9 operations of seed {SLOW}\n{GOOD}\n");
    fs::write(folder.path().join("later.log"), later).unwrap();
    let mut command = hack("reliability");
    let printed = succeeds(command.args(["--logs", "soaks.log", "later.log"]).current_dir(&folder));
    let rows: Vec<_> = printed.lines().filter(|line| line.ends_with(" |")).skip(1).collect();
    let ended = |seed, commit| format!("| {seed} | {commit} | {GOOD} |");
    let not_ended = |seed| format!("| {seed} | unknown | came to no end |");
    let expected =
        [not_ended(1), ended("2", "aaaaaaaaaa"), not_ended(3), ended(SLOW, "bbbbbbbbbb")];
    assert_eq!(rows, expected, "{printed}");
}

#[test]
fn fuzzing_figures_are_summed_by_commit() {
    let folder = tempfile::tempdir().unwrap();
    let log = |commit: &str, number: u32| {
        let figure =
            |target: &str| format!("figure: {number} executions of fuzz target {target}\n");
        format!("commit {commit}\n{}{}", figure("cni_input"), figure("agent_call"))
    };
    let logs = [log("aaaaaaaaaa", 1), log("aaaaaaaaaa", 10), log("bbbbbbbbbb", 100)];
    fs::write(folder.path().join("fuzz.log"), logs.concat()).unwrap();
    let mut figures = hack("reliability");
    let printed = succeeds(figures.args(["--logs", "fuzz.log"]).current_dir(&folder));
    let rows = [
        "| 11 | aaaaaaaaaa | cni_input |",
        "| 22 | aaaaaaaaaa | in all |",
        "| 100 | bbbbbbbbbb | agent_call |",
        "| 200 | bbbbbbbbbb | in all |",
    ];
    assert_prints(&printed, &rows);
}

#[test]
fn figures_page_refuses_incomplete_logs() {
    let folder = tempfile::tempdir().unwrap();
    let of_commit = "commit aaaaaaaaaa\n9 operations of seed 1\n";
    let soak = format!("{of_commit}{GOOD}\n");
    let fuzzed = "commit aaaaaaaaaa\nfigure: 5 executions of fuzz target cni_input\n";
    for (log, expected) in [
        (format!("9 operations of seed 1\n{GOOD}\n"), "has runs without a commit"),
        (format!("commit unknown\n9 operations of seed 1\n{GOOD}\n"), "has runs without a commit"),
        (of_commit.into(), "does not end with 0 lost"),
        (format!("{of_commit}{}\n", GOOD.replace("0 leaked", "1 leaked")), "does not end with"),
        (format!("{of_commit}{}\n", GOOD.replace("0 without", "1 without")), "does not end with"),
        (soak.replace("seed 1\n", "seed 1 without hostile\n"), "has neither a soak"),
        ("commit aaaaaaaaaa\nfuzz: target cni_input broke\n".into(), "has neither a soak"),
        ("figure: 5 executions of fuzz target cni_input\n".into(), "has runs without a commit"),
        (soak.replace("aaaaaaaaaa", "aaaaaaaaaa with changes"), "a work tree with changes"),
        (soak.replace("9 operations", "0 operations"), "a soak that did nothing"),
        (fuzzed.replace(" 5 ", " 0 "), "a fuzz target that executed nothing"),
        (soak.repeat(2), "the same run twice: 1, aaaaaaaaaa, 9 operations"),
        (fuzzed.repeat(2), "the same run twice: 5, aaaaaaaaaa, cni_input"),
    ] {
        fs::write(folder.path().join("a.log"), &log).unwrap();
        let printed = fails(hack("reliability").args(["--write", "a.log"]).current_dir(&folder));
        assert!(printed.contains(expected), "{log}: {printed}");
    }
}

#[test]
fn fuzz_targets_are_listed_at_once() {
    let mut bounded = Command::new("timeout");
    let listed = succeeds(bounded.arg("10").arg(path("fuzz")).arg("--list"));
    assert!(listed.lines().any(|line| line == "cni_input"), "{listed}");
    let output = run(Command::new("timeout").arg("10").arg(path("fuzz")).arg("nonsense"));
    assert_eq!(text(&output), "fuzz: no target nonsense; see hack/fuzz --list\n");
}
