//! The scripts of hack/, run like a person does. Inside private namespaces "the machine" is the test's.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File, Permissions},
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::{Command, Output},
    thread,
};

use e2e::{
    Call, Netns,
    card_check::{assert_complete, rows},
    program, run,
    scenarios::pods::addresses,
};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Last line of a soak without violations.
const GOOD: &str = "9 operations, 3 kills, 2 cuts, 2 hostile pods, 1 dead callers, 1 suspensions, \
                    1 of 8 speculative moves wrong, 7 calls of a crowd, 4 pings: 0 lost, 0 leaked, 0 doubled, 0 unclean, 0 without network";

fn path(script: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../hack").join(script)
}

fn hack(script: &str) -> Command {
    let mut command = Command::new(path(script));
    let programs: PathBuf = program("dpuctl").parent().unwrap().into();
    command.env("OFFLOAD_BIN_DIR", programs);
    command
}

fn text(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

#[test]
fn demo_prints_few_lines() {
    let output = run(hack("demo").env("OFFLOAD_USERNS", "1"));
    let printed = text(&output);
    assert!(output.status.success(), "{printed}");
    for words in ["16 VFs", "mutual TLS", "ping v4", "ping v6", "left      nothing"] {
        assert!(printed.contains(words), "{words:?} is not in:\n{printed}");
    }
    assert!(printed.lines().count() <= 16, "{printed}");
}

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
   0: nobody wants to read this</failure>
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
    let copied = run(Command::new("cp").arg("-r").arg(path("")).arg(folder.path().join("hack")));
    assert!(copied.status.success(), "{copied:?}");
    folder
}

fn write_program(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
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
    let output = run(script.arg("unit").env("PATH", tools).env_remove("CARGO_TARGET_DIR"));
    assert!(!output.status.success());
    let printed = text(&output);
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
        let output = run(Command::new("git").current_dir(&folder).args(identity).args(arguments));
        assert!(output.status.success(), "{output:?}");
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
fn every_script_explains_itself() {
    for script in [
        "demo",
        "test",
        "bench",
        "lab",
        "certs",
        "vm",
        "cross",
        "arm-dpu",
        "soak",
        "reliability",
        "fuzz",
        "mutants",
        "package",
        "runtimes",
        "go-cni",
        "prometheus",
        "cluster",
        "card-check",
    ] {
        let output = run(hack(script).arg("--help"));
        assert!(output.status.success() && text(&output).contains(&format!("hack/{script}")));
    }
    for line in ["lab up", "lab down", "lab env", "lab restart", "vm prepare", "vm run"] {
        let (script, command) = line.split_once(' ').unwrap();
        let output = run(hack(script).args([command, "--help"]));
        assert!(output.status.success() && text(&output).contains(script), "{line}");
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
    let scripts = fs::read_dir(path("")).unwrap().map(|entry| entry.unwrap().path());
    let scripts: Vec<_> = scripts.filter(|script| script.is_file()).collect();
    assert!(scripts.contains(&path("cluster")), "{scripts:?}");
    for script in scripts {
        let mut seen = BTreeSet::new();
        for function in parts_of(&script).iter().flat_map(|part| functions_of(part)) {
            assert!(seen.insert(function.clone()), "{} has two of {function}()", script.display());
        }
    }
}

#[test]
fn demo_says_what_stays() {
    let printed = text(&run(hack("demo").arg("--help")));
    for words in ["What stays", "MB in target/", "Debian packages", "iproute2"] {
        assert!(printed.contains(words), "{words:?} is not in:\n{printed}");
    }
    assert!(!printed.contains("nothing is left"), "{printed}");
}

/// The block of CONNECTIVITY.md that a reader runs in the lab.
fn example_of_the_lab() -> String {
    let page = fs::read_to_string(path("").join("../docs/CONNECTIVITY.md")).unwrap();
    let (_, section) = page.split_once("## In the lab").unwrap();
    let block = section.split("```sh\n").nth(1).unwrap().split("```").next().unwrap();
    assert!(block.contains("delete network"), "{block}");
    block.to_owned()
}

#[test]
fn connectivity_example_works() {
    let lab = HackLab::new();
    lab.succeeds(&["up", "--vfs", "4"]);
    let mut example = Command::new("bash");
    example.args(["-euo", "pipefail", "-c", &example_of_the_lab()]);
    let output = run(example.current_dir(path("").join("..")).env("OFFLOAD_LAB", &lab.name));
    let printed = text(&output);
    assert!(output.status.success() && printed.contains("network/way-out deleted"), "{printed}");
    assert!(printed.contains(" 1 received") && printed.contains("tcp . 8080"), "{printed}");
}

/// What a reader of TUTORIAL.md types: blocks of `sh`, and the lines after prompts in blocks of `console`.
fn typed_in_the_tutorial() -> String {
    let page = fs::read_to_string(path("").join("../docs/TUTORIAL.md")).unwrap();
    let mut typed = Vec::new();
    for block in page.split("```").skip(1).step_by(2) {
        match block.split_once('\n') {
            Some(("sh", text)) => typed.extend(text.lines()),
            Some(("console", text)) => {
                typed.extend(text.lines().filter_map(|line| line.strip_prefix("$ ")));
            }
            _ => panic!("neither typed nor printed: {block}"),
        }
    }
    typed.join("\n")
}

#[test]
fn tutorial_works() {
    let lab = HackLab::new();
    let programs: PathBuf = program("dpuctl").parent().unwrap().into();
    let mut reader = Command::new("bash");
    reader.args(["-uc", &typed_in_the_tutorial()]).current_dir(path("").join(".."));
    let output = run(reader.env("OFFLOAD_LAB", &lab.name).env("OFFLOAD_BIN_DIR", programs));
    let printed = text(&output);
    assert!(output.status.success(), "{printed}");
    let shown = [
        " 3 received",
        "Repaired",
        "VFS_EXHAUSTED",
        "exit code 5",
        "HOST_NOT_CONNECTED",
        "AGENT_UNREACHABLE",
        "the lab is down",
    ];
    for words in shown {
        assert!(printed.contains(words), "{words:?} is not in:\n{printed}");
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
        let output = run(hack(words[0]).args(&words[1..]).current_dir(&folder));
        let printed = text(&output);
        let last = words[words.len() - 1];
        assert!(
            !output.status.success() && printed.contains(&format!("argument {last};")),
            "{printed}"
        );
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
fn soak_refuses_too_many_hosts() {
    for line in [&["--hosts", "0"][..], &["--hosts", "4"], &["--hosts"]] {
        let output = run(hack("soak").args(line));
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(text(&output).starts_with("soak: --hosts needs 1, 2 or 3;"), "{output:?}");
    }
}

#[test]
fn soak_refuses_unknown_hazards() {
    for line in [&["--without", "kills"][..], &["--without"]] {
        let output = run(hack("soak").args(line));
        let printed = text(&output);
        assert_eq!(output.status.code(), Some(1), "{printed}");
        assert!(printed.starts_with("soak: --without needs one of hostile, dying, "), "{printed}");
    }
}

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
    let output = run(command.args(["--logs", "soaks.log", "later.log"]).current_dir(&folder));
    let printed = text(&output);
    assert!(output.status.success(), "{printed}");
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
    let printed = text(&run(hack("reliability").args(["--logs", "fuzz.log"]).current_dir(&folder)));
    for row in [
        "| 11 | aaaaaaaaaa | cni_input |",
        "| 22 | aaaaaaaaaa | in all |",
        "| 100 | bbbbbbbbbb | agent_call |",
        "| 200 | bbbbbbbbbb | in all |",
    ] {
        assert!(printed.contains(row), "{row} is not in:\n{printed}");
    }
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
        let output = run(hack("reliability").args(["--write", "a.log"]).current_dir(&folder));
        let printed = text(&output);
        assert!(!output.status.success() && printed.contains(expected), "{log}: {printed}");
    }
}

#[test]
fn fuzz_targets_are_listed_at_once() {
    let mut bounded = Command::new("timeout");
    let output = run(bounded.arg("10").arg(path("fuzz")).arg("--list"));
    let listed = text(&output);
    assert!(output.status.success() && listed.lines().any(|line| line == "cni_input"), "{listed}");
    let output = run(Command::new("timeout").arg("10").arg(path("fuzz")).arg("nonsense"));
    assert_eq!(text(&output), "fuzz: no target nonsense; see hack/fuzz --list\n");
}

#[test]
fn missing_test_tiers_are_reported() {
    for tier in ["clusters", "nonsense"] {
        let output = run(hack("test").arg(tier));
        assert_eq!(output.status.code(), Some(2));
        assert_eq!(text(&output).lines().count(), 1, "{}", text(&output));
    }
}

/// The lab named `name`.
struct HackLab {
    name: String,
}

impl HackLab {
    fn new() -> Self {
        Self { name: format!("t{}", std::process::id()) }
    }

    fn run(&self, arguments: &[&str]) -> Output {
        run(hack("lab").args(arguments).env("OFFLOAD_LAB", &self.name))
    }

    fn succeeds(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(output.status.success(), "{arguments:?}: {}: {}", output.status, text(&output));
        String::from_utf8(output.stdout).unwrap()
    }

    fn environment(&self) -> BTreeMap<String, String> {
        self.environment_by(&["env"])
    }

    fn environment_by(&self, arguments: &[&str]) -> BTreeMap<String, String> {
        let assignments = self.succeeds(arguments);
        let pairs = assignments.lines().map(|line| line.split_once('=').unwrap());
        pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    }

    fn left(&self) -> String {
        let run =
            |program: &str, arguments: &[&str]| text(&run(Command::new(program).args(arguments)));
        let all =
            [run("ip", &["netns", "list"]), run("ip", &["link"]), run("ls", &["/run"])].concat();
        all.lines().filter(|line| line.contains(&self.name)).collect()
    }
}

impl Drop for HackLab {
    fn drop(&mut self) {
        let _ = self.run(&["down"]);
    }
}

#[test]
fn hack_lab_works_and_leaves_nothing() {
    let lab = HackLab::new();
    lab.succeeds(&["up", "--vfs", "4"]);
    assert!(text(&lab.run(&["up"])).contains("up already"));
    let environment = lab.environment();
    let names = [
        "CNI_PATH",
        "CNI_CONFLIST",
        "AGENT_SOCKET",
        "DPUCTL_CONFIG",
        "HOST_NETNS",
        "DPU_NETNS",
        "AGENT_PID",
        "DPU_SERVICE_PID",
        "STATE_DIR",
    ];
    assert_eq!(environment.keys().map(String::as_str).collect::<Vec<_>>(), {
        let mut sorted = names;
        sorted.sort_unstable();
        sorted
    });
    assert!(Path::new(&environment["CNI_PATH"]).join("host-shim").exists());
    for name in ["CNI_CONFLIST", "AGENT_SOCKET", "DPUCTL_CONFIG", "STATE_DIR"] {
        assert!(Path::new(&environment[name]).exists(), "{name}");
    }
    let mut dpuctl = Command::new(program("dpuctl"));
    let vfs = run(dpuctl.args(["get", "vfs"]).env("DPUCTL_CONFIG", &environment["DPUCTL_CONFIG"]));
    assert!(vfs.status.success(), "{}", text(&vfs));

    for (what, id) in [("agent", "AGENT_PID"), ("service", "DPU_SERVICE_PID")] {
        lab.succeeds(&["restart", what]);
        assert_ne!(lab.environment()[id], environment[id]);
    }
    lab.succeeds(&["down"]);
    assert_eq!(lab.left(), "");
    lab.succeeds(&["down"]);
}

/// Lock for hack/card-check, whose namespaces have the same names in every lab.
fn card_check_turn() -> File {
    let turn = File::create(Path::new(env!("CARGO_TARGET_TMPDIR")).join("card-check")).unwrap();
    turn.lock().unwrap();
    turn
}

/// Runs `hack/card-check` in a lab. Returns its report and whether it succeeded.
fn card_check(lab: &HackLab, arguments: &[&str], variables: &[(&str, &str)]) -> (String, bool) {
    let _turn = card_check_turn();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("report");
    let mut check = hack("card-check");
    check.envs(lab.environment()).envs(variables.iter().copied());
    let output = run(check.args(["--count", "2", "--to"]).arg(&file).args(arguments));
    let printed = text(&output);
    assert!(printed.contains("the report is in "), "{printed}");
    assert!(!text(&run(Command::new("ip").args(["netns", "list"]))).contains("card-check"));
    (fs::read_to_string(file).unwrap(), output.status.success())
}

#[test]
fn card_check_pings_with_each_setting() {
    let lab = HackLab::new();
    lab.succeeds(&["up", "--vfs", "4"]);
    let environment = lab.environment();
    // An agent's socket may have any name.
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("other.sock");
    symlink(&environment["AGENT_SOCKET"], &socket).unwrap();
    let variables = [("AGENT_SOCKET", socket.to_str().unwrap())];
    let (report, is_good) = card_check(&lab, &[], &variables);
    assert!(is_good, "{report}");
    // The software card has no rate tree, the fabric is a bridge, and kernels may lack VLANs and policing.
    let refused =
        ["egress share", "total egress", "ingress rules", "VLAN", "trunk", "egress limit"];
    assert_complete(&report, &refused.map(|setting| (setting, "refused: ")));
    let networks = dpuctl(&environment, &["get", "networks"]);
    assert!(!networks.contains("card-check"), "{networks}");
}

/// The output of dpuctl for the lab's operator.
fn dpuctl(environment: &BTreeMap<String, String>, arguments: &[&str]) -> String {
    let mut dpuctl = Command::new(program("dpuctl"));
    text(&run(dpuctl.args(arguments).env("DPUCTL_CONFIG", &environment["DPUCTL_CONFIG"])))
}

/// A filter for bridges that drops long frames.
const SHORT_FRAMES: &str = "add table bridge short
add chain bridge short forward { type filter hook forward priority 0; }
add rule bridge short forward ip length > 8000 drop";

#[test]
fn card_check_leaves_another_checks_namespaces() {
    let lab = HackLab::new();
    lab.succeeds(&["up", "--vfs", "4"]);
    let _turn = card_check_turn();
    let netns = |arguments: &[&str]| text(&run(Command::new("ip").arg("netns").args(arguments)));
    assert_eq!(netns(&["add", "card-check-2"]), "");
    let folder = tempfile::tempdir().unwrap();
    let mut check = hack("card-check");
    check.envs(lab.environment()).arg("--to").arg(folder.path().join("report"));
    let output = run(&mut check);
    let left = netns(&["list"]);
    assert_eq!(netns(&["delete", "card-check-2"]), "");
    assert!(!output.status.success() && left.contains("card-check-2"), "{left}");
    assert!(text(&output).contains("card-check-2 is there"), "{}", text(&output));
}

#[test]
fn card_check_reports_pings_without_answer() {
    let lab = HackLab::new();
    lab.succeeds(&["up", "--vfs", "4"]);
    let dpu = format!("--net=/run/netns/{}", lab.environment()["DPU_NETNS"]);
    let added = run(Command::new("nsenter").args([&dpu, "nft", SHORT_FRAMES]));
    assert!(added.status.success(), "{}", text(&added));
    let (report, _) = card_check(&lab, &[], &[]);
    let rows = rows(&report);
    let of_long = rows["MTU 9000"];
    assert!(of_long.starts_with("accepted, but no answer to ping from 198.18."), "{report}");
    assert_eq!(rows["nothing special"], "works", "{report}");
}

#[test]
fn card_check_reports_failed_steps() {
    let lab = HackLab::new();
    lab.succeeds(&["up", "--vfs", "1"]);
    let (report, is_good) = card_check(&lab, &["--host", "node-7"], &[]);
    assert!(!is_good, "{report}");
    let rows = rows(&report);
    // The second pod has no VF, and the baseline measurement has none of another host.
    let adds = rows["nothing special"];
    assert!(adds.starts_with("failed: ") && adds.contains("VFS_EXHAUSTED"), "{report}");
    let floor = rows["floor on the host: bare netlink into the pod, with two processes of ip"];
    assert!(floor.starts_with("failed: ") && floor.contains("node-7"), "{report}");
    assert!(!rows["CNI ADD"].contains("failed"), "{report}");
    let left = dpuctl(&lab.environment(), &["get", "attachments"]);
    assert!(!left.contains("card-check"), "{left}");
}

#[test]
fn card_check_reports_a_silent_dpu() {
    let lab = HackLab::new();
    lab.succeeds(&["up", "--vfs", "1"]);
    let (report, is_good) = card_check(&lab, &[], &[("DPUCTL_CONFIG", "/nonexistent")]);
    assert!(!is_good && report.contains("Nothing else was tried."), "{report}");
    assert!(report.contains("failed: ") && report.contains("/nonexistent"), "{report}");
}

#[test]
fn failed_lab_program_is_reported() {
    let lab = HackLab::new();
    lab.succeeds(&["up", "--vfs", "2"]);
    let folder = PathBuf::from(&lab.environment()["STATE_DIR"]).parent().unwrap().to_owned();
    for (what, file) in [("agent", "host-shim.toml"), ("service", "dpu-service.toml")] {
        let path = folder.join(file);
        let good = fs::read_to_string(&path).unwrap();
        fs::write(&path, good.replacen("state_dir", "state_dri", 1)).unwrap();
        let output = lab.run(&["restart", what]);
        let printed = text(&output);
        assert!(!output.status.success() && printed.contains("`state_dir`"), "{printed}");
        assert!(text(&lab.run(&["env"])).contains(&format!("the {what} has ended")));
        fs::write(&path, good).unwrap();
        // Its end is known already.
        let again = lab.run(&["restart", what]);
        assert_eq!(text(&again), format!("{what} runs again\n"));
    }
}

#[test]
fn refused_lab_program_is_reported() {
    let lab = HackLab::new();
    lab.succeeds(&["up", "--vfs", "2"]);
    let folder = PathBuf::from(&lab.environment()["STATE_DIR"]).parent().unwrap().to_owned();
    let path = folder.join("dpu-service.toml");
    let good = fs::read_to_string(&path).unwrap();
    fs::write(&path, good.replacen("\"node-1\"", "\"node-2\"", 1)).unwrap();
    let output = lab.run(&["restart", "service"]);
    let printed = text(&output);
    assert!(!output.status.success() && printed.contains("HOST_UNKNOWN"), "{printed}");
    let output = lab.run(&["restart", "agent"]);
    let printed = text(&output);
    assert!(!output.status.success() && printed.contains("HOST_UNKNOWN"), "{printed}");
    fs::write(&path, good).unwrap();
    assert_eq!(text(&lab.run(&["restart", "service"])), "service runs again\n");
}

#[test]
fn second_start_of_lab_leaves_it_alone() {
    let lab = HackLab::new();
    let printed = thread::scope(|scope| {
        let ups = [(), ()].map(|()| scope.spawn(|| lab.run(&["up", "--vfs", "2"])));
        ups.map(|up| text(&up.join().unwrap()))
    });
    let count = |words: &str| printed.iter().filter(|printed| printed.contains(words)).count();
    assert_eq!(
        (count("the lab is up: 2 VFs"), count("the lab is up already")),
        (1, 1),
        "{printed:?}"
    );
    assert_eq!(count("another hack/lab is at work"), 1, "{printed:?}");
    lab.succeeds(&["restart", "agent"]);
    lab.succeeds(&["down"]);
    assert_eq!(lab.left(), "");
}

#[test]
fn concurrent_labs_do_not_interfere() {
    let labs = ["a", "b", "c"].map(|end| HackLab { name: format!("t{}{end}", std::process::id()) });
    thread::scope(|scope| {
        let ups = labs.each_ref().map(|lab| scope.spawn(|| lab.succeeds(&["up", "--vfs", "2"])));
        for up in ups {
            up.join().unwrap();
        }
    });
    let environments = labs.each_ref().map(HackLab::environment);
    for name in environments[0].keys().filter(|name| *name != "CNI_PATH") {
        let own: BTreeSet<_> = environments.iter().map(|environment| &environment[name]).collect();
        assert_eq!(own.len(), labs.len(), "{name}: {own:?}");
    }
    labs[0].succeeds(&["down"]);
    for environment in &environments[1..] {
        let mut dpuctl = Command::new(program("dpuctl"));
        dpuctl.args(["get", "vfs", "-o", "json"]);
        let vfs = run(dpuctl.env("DPUCTL_CONFIG", &environment["DPUCTL_CONFIG"]));
        let vfs: Value = serde_json::from_slice(&vfs.stdout).unwrap();
        assert_eq!(vfs["vfs"].as_array().map(Vec::len), Some(2), "{vfs}");
    }
}

/// A network of large packets that shares its subnet with the other DPU's.
fn jumbo(of_the_other: &str) -> String {
    let subnet = json!({"cidr": "10.9.0.0/24", "exclude": [of_the_other]});
    json!({"name": "jumbo", "mtu": 9000, "subnets": [subnet]}).to_string()
}

/// Whether a packet of that network's full size passes unfragmented.
fn passes_jumbo(pod: &Netns, address: &str) -> bool {
    let arguments = ["-n", "-q", "-c", "1", "-W", "5", "-M", "do", "-s", "8972", address];
    run(pod.command("ping").args(arguments)).status.success()
}

fn pods_of_two_dpus_reach_each_other(fabric: &str) {
    let lab = HackLab::new();
    lab.succeeds(&["up", "--vfs", "3", "--dpus", "2", "--fabric", fabric]);
    let (here, pods) = (Netns::of_this_process("here"), ["a", "b"].map(Netns::new));
    let mut found: Vec<Vec<String>> = Vec::new();
    let dpus = [(&["env"][..], "10.9.0.128/25"), (&["env", "2"], "10.9.0.0/25")];
    for (pod, (assignments, of_the_other)) in pods.iter().zip(dpus) {
        let environment = lab.environment_by(assignments);
        let file = PathBuf::from(&environment["STATE_DIR"]).join("jumbo.json");
        fs::write(&file, jumbo(of_the_other)).unwrap();
        let mut apply = Command::new(program("dpuctl"));
        apply.args(["apply", "-f"]).arg(&file).env("DPUCTL_CONFIG", &environment["DPUCTL_CONFIG"]);
        let applied = run(&mut apply);
        assert!(applied.status.success(), "{}", text(&applied));
        let attach = |network: &str, interface: &str| {
            let configuration = json!({
                "cniVersion": "1.1.0", "name": network, "type": "host-shim",
                "agentSocket": environment["AGENT_SOCKET"],
            });
            let call = Call::new("ADD", &configuration);
            addresses(&call.of(pod.name(), Some(&pod.path()), interface).execute(&here).result())
        };
        found.push([attach("blue", "eth0"), attach("jumbo", "net1")].concat());
    }
    let [a, b] = &pods;
    for address in &found[1] {
        assert!(a.pings(address), "{fabric}: {address} of {found:?}");
    }
    assert!(found[0].iter().all(|address| b.pings(address)), "{fabric}: {found:?}");
    let large = found[1].last().unwrap();
    assert!(passes_jumbo(a, large), "{fabric}: {large}");
    let process = lab.environment_by(&["env", "2"])["DPU_SERVICE_PID"].clone();
    lab.succeeds(&["restart", "service", "2"]);
    assert_ne!(lab.environment_by(&["env", "2"])["DPU_SERVICE_PID"], process);
    lab.succeeds(&["down"]);
    assert_eq!(lab.left(), "");
}

#[test]
fn two_dpu_lab_pods_reach_each_other() {
    pods_of_two_dpus_reach_each_other("bridge");
}

#[test]
fn two_dpu_ovs_lab_pods_reach_each_other() {
    pods_of_two_dpus_reach_each_other("ovs");
}

#[test]
fn cluster_refuses_a_folder_without_kubelet() {
    let folder = tempfile::tempdir().unwrap();
    let output = run(hack("cluster").arg("up").env("OFFLOAD_KUBERNETES_DIR", folder.path()));
    let printed = text(&output);
    assert!(!output.status.success(), "{printed}");
    let named = format!("OFFLOAD_KUBERNETES_DIR={} has no kubelet", folder.path().display());
    assert!(printed.contains(&named), "{printed}");
}

/// A cached download is used: its folder is named after the versions.
#[test]
fn cluster_versions_match_running_programs() {
    let (programs, cache) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for name in [
        "kubelet",
        "kube-apiserver",
        "kube-controller-manager",
        "kube-scheduler",
        "kube-proxy",
        "etcd",
        "kubectl",
    ] {
        let program = programs.path().join(name);
        fs::write(&program, format!("#!/bin/sh\necho {name} 9.9 \"$@\"\n")).unwrap();
        fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
    }
    let mut recipe = Command::new("sh");
    recipe.args([
        "-c",
        "cat cluster.d/prepare.sh cluster.d/kubernetes.sh debian.sh packages.sh | sha256sum",
    ]);
    let recipe = text(&run(recipe.current_dir(path(""))));
    let tree = cache.path().join(format!("{}-bare", &recipe[..12]));
    fs::create_dir(&tree).unwrap();
    let packages = "etcd-server 3\ncontainerd 1\nrunc 1\ncontainernetworking-plugins 1\n\
                    busybox-static 1\nkubernetes-client 1\niptables 1\nconntrack 1\n";
    fs::write(tree.join("versions"), packages).unwrap();
    let mut versions = hack("cluster");
    versions.arg("versions").env("OFFLOAD_CLUSTER_DIR", cache.path());
    let output = run(versions.env("OFFLOAD_KUBERNETES_DIR", programs.path()));
    let printed = text(&output);
    for line in [
        "kubernetes kubelet 9.9 --version",
        "etcd-server etcd 9.9 --version",
        "containerd 1",
        "kubernetes-client kubectl 9.9 version --client",
    ] {
        assert!(printed.lines().any(|it| it == line), "{line}: {printed}");
    }
    assert!(output.status.success() && !printed.contains("etcd-server 3"), "{printed}");
}

#[test]
fn broken_lab_is_taken_down() {
    let lab = HackLab::new();
    lab.succeeds(&["up", "--vfs", "2"]);
    let environment = lab.environment();
    let _ = run(Command::new("kill").args(["-9", &environment["AGENT_PID"]]));
    let _ = run(Command::new("ip").args(["netns", "delete", &environment["HOST_NETNS"]]));
    lab.succeeds(&["down"]);
    assert_eq!(lab.left(), "");
}
