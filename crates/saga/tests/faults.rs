//! Fault injection by files in the folder `OFFLOAD_FAULTS`.
//!
//! A process reads that variable once, so that each test starts this test program again as the program under test.
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a test may")]

use std::{
    convert::Infallible,
    env, fs,
    os::unix::process::ExitStatusExt,
    process::{Command, Output},
};

use saga::{Step, Steps, Way};
use tempfile::TempDir;

const FOLDER: &str = "OFFLOAD_FAULTS";
const SIGKILL: i32 = 9;
const STEPS: &Steps<(), Infallible> = &[&Printed("a"), &Printed("b")];

saga::kill_points! {
    enum KillPoint {
        Begun = "begun",
    }
}

/// A step that prints its runs and undos.
struct Printed(&'static str);

impl Step<()> for Printed {
    type Error = Infallible;

    fn name(&self) -> &'static str {
        self.0
    }

    fn run(&self, (): &mut ()) -> Result<(), Infallible> {
        println!("did: run {}", self.0);
        Ok(())
    }

    fn undo(&self, (): &mut ()) -> Result<(), Infallible> {
        println!("did: undo {}", self.0);
        Ok(())
    }
}

/// The program under test: runs the steps, and repairs them after a success.
fn program() {
    KillPoint::Begun.pass();
    let result = saga::run(STEPS, &mut ()).and_then(|()| saga::repair(STEPS, |_| true, &mut ()));
    match result {
        Ok(()) => println!("did: all"),
        Err(failed) => {
            println!("did: fail {} {:?}", failed.step, failed.source);
        }
    }
}

/// Runs the program with these files in its fault folder. The named test must call [`program`].
fn run_with_faults(test: &str, faults: &[&str]) -> (TempDir, Output) {
    let folder = tempfile::tempdir().unwrap();
    faults.iter().for_each(|fault| fs::write(folder.path().join(fault), "").unwrap());
    let output = run_in(test, &folder);
    (folder, output)
}

fn run_in(test: &str, folder: &TempDir) -> Output {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]).env(FOLDER, folder.path()).output().unwrap()
}

fn is_program() -> bool {
    env::var_os(FOLDER).is_some()
}

/// The output of the program.
fn done(output: &Output) -> Vec<String> {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let done = text.lines().filter_map(|line| line.split_once("did: "));
    done.map(|(_, what)| what.to_owned()).collect()
}

fn left_in(folder: &TempDir) -> Vec<String> {
    let files = fs::read_dir(folder).unwrap().map(|file| file.unwrap().file_name());
    files.map(|name| name.into_string().unwrap()).collect()
}

#[test]
fn step_fails_once_after_its_work() {
    if is_program() {
        return program();
    }
    let test = "step_fails_once_after_its_work";
    let (folder, output) = run_with_faults(test, &["fail-b"]);
    let undone = ["run a", "run b", "undo b", "undo a", "fail b None"];
    assert_eq!(done(&output), undone);
    assert_eq!(left_in(&folder), [""; 0]);
    let all = ["run a", "run b", "run a", "run b", "all"];
    assert_eq!(done(&run_in(test, &folder)), all);
}

#[test]
fn repair_fails_without_undo() {
    if is_program() {
        return program();
    }
    let (_, output) = run_with_faults("repair_fails_without_undo", &["fail-repair-a"]);
    assert_eq!(done(&output), ["run a", "run b", "run a", "fail a None"]);
}

#[test]
fn process_dies_at_each_point() {
    if is_program() {
        return program();
    }
    for (faults, expected) in [
        (&["kill-begun"][..], &[][..]),
        (&["kill-a"], &["run a"]),
        (&["kill-repair-a"], &["run a", "run b", "run a"]),
        (&["fail-b", "kill-undo-b"], &["run a", "run b", "undo b"]),
    ] {
        let (folder, output) = run_with_faults("process_dies_at_each_point", faults);
        assert_eq!(output.status.signal(), Some(SIGKILL), "{faults:?}");
        assert_eq!(done(&output), expected, "{faults:?}");
        assert_eq!(left_in(&folder), [""; 0], "{faults:?}");
    }
}

#[test]
fn trace_lists_the_points_passed() {
    if is_program() {
        return program();
    }
    let (folder, _) = run_with_faults("trace_lists_the_points_passed", &["trace", "fail-b"]);
    let trace = fs::read_to_string(folder.path().join("trace")).unwrap();
    assert_eq!(trace.lines().collect::<Vec<_>>(), ["begun", "a", "b", "undo-b", "undo-a"]);
}

#[test]
fn no_faults_without_the_folder() {
    saga::run(STEPS, &mut ()).unwrap();
}

#[test]
fn kill_points_are_named_by_way_and_step() {
    let points = saga::kill_points(STEPS, &[Way::Run, Way::Repair, Way::Undo]);
    assert_eq!(points, ["a", "b", "repair-a", "repair-b", "undo-a", "undo-b"]);
    assert_eq!(KillPoint::ALL, ["begun"]);
}
