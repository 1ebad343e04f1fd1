//! The scripts of hack/, run like a person does: here the demo, the lab, and what the documents type into it. Inside
//! private namespaces "the machine" is the test's.

mod arguments;
mod card_check;
mod cluster;
mod figures;
mod test_tiers;
mod two_dpu_labs;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Output},
    thread,
};

use e2e::{program, run};
use serde_json::Value;

fn path(script: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../hack").join(script)
}

/// The folder of the built programs.
fn programs() -> PathBuf {
    program("dpuctl").parent().unwrap().into()
}

fn hack(script: &str) -> Command {
    let mut command = Command::new(path(script));
    command.env("OFFLOAD_BIN_DIR", programs());
    command
}

fn text(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

/// What a script prints that succeeds.
fn succeeds(command: &mut Command) -> String {
    let output = run(command);
    assert!(output.status.success(), "{}: {}", output.status, text(&output));
    text(&output)
}

/// What a script prints that fails.
fn fails(command: &mut Command) -> String {
    let output = run(command);
    assert!(!output.status.success(), "{}", text(&output));
    text(&output)
}

fn assert_prints(printed: &str, expected: &[&str]) {
    for words in expected {
        assert!(printed.contains(words), "{words:?} is not in:\n{printed}");
    }
}

fn write_program(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn demo_prints_few_lines() {
    let printed = succeeds(hack("demo").env("OFFLOAD_USERNS", "1"));
    assert_prints(&printed, &["16 VFs", "mutual TLS", "ping v4", "ping v6", "left      nothing"]);
    assert!(printed.lines().count() <= 16, "{printed}");
}

#[test]
fn demo_says_what_stays() {
    let printed = succeeds(hack("demo").arg("--help"));
    assert_prints(&printed, &["What stays", "MB in target/", "Debian packages", "iproute2"]);
    assert!(!printed.contains("nothing is left"), "{printed}");
}

/// The lab named `name`.
struct HackLab {
    name: String,
}

impl HackLab {
    fn new() -> Self {
        Self { name: format!("t{}", std::process::id()) }
    }

    /// A lab that is up, with so many VFs.
    fn up(vfs: u32) -> Self {
        let lab = Self::new();
        lab.succeeds(&["up", "--vfs", &vfs.to_string()]);
        lab
    }

    fn run(&self, arguments: &[&str]) -> Output {
        run(hack("lab").args(arguments).env("OFFLOAD_LAB", &self.name))
    }

    fn fails(&self, arguments: &[&str]) -> String {
        fails(hack("lab").args(arguments).env("OFFLOAD_LAB", &self.name))
    }

    /// The folder of its configurations.
    fn folder(&self) -> PathBuf {
        PathBuf::from(&self.environment()["STATE_DIR"]).parent().unwrap().to_owned()
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

/// Runs dpuctl as the lab's operator.
fn dpuctl(environment: &BTreeMap<String, String>, arguments: &[&str]) -> Output {
    let mut dpuctl = Command::new(program("dpuctl"));
    run(dpuctl.args(arguments).env("DPUCTL_CONFIG", &environment["DPUCTL_CONFIG"]))
}

#[test]
fn hack_lab_works_and_leaves_nothing() {
    let lab = HackLab::up(4);
    assert!(text(&lab.run(&["up"])).contains("up already"));
    let environment = lab.environment();
    let names = [
        "AGENT_PID",
        "AGENT_SOCKET",
        "CNI_CONFLIST",
        "CNI_PATH",
        "DPUCTL_CONFIG",
        "DPU_NETNS",
        "DPU_SERVICE_PID",
        "HOST_NETNS",
        "STATE_DIR",
    ];
    assert_eq!(environment.keys().collect::<Vec<_>>(), names);
    assert!(Path::new(&environment["CNI_PATH"]).join("host-shim").exists());
    for name in ["CNI_CONFLIST", "AGENT_SOCKET", "DPUCTL_CONFIG", "STATE_DIR"] {
        assert!(Path::new(&environment[name]).exists(), "{name}");
    }
    let vfs = dpuctl(&environment, &["get", "vfs"]);
    assert!(vfs.status.success(), "{}", text(&vfs));

    for (what, id) in [("agent", "AGENT_PID"), ("service", "DPU_SERVICE_PID")] {
        lab.succeeds(&["restart", what]);
        assert_ne!(lab.environment()[id], environment[id]);
    }
    lab.succeeds(&["down"]);
    assert_eq!(lab.left(), "");
    lab.succeeds(&["down"]);
}

#[test]
fn failed_lab_program_is_reported() {
    let lab = HackLab::up(2);
    let folder = lab.folder();
    for (what, file) in [("agent", "host-shim.toml"), ("service", "dpu-service.toml")] {
        let path = folder.join(file);
        let good = fs::read_to_string(&path).unwrap();
        fs::write(&path, good.replacen("state_dir", "state_dri", 1)).unwrap();
        assert_prints(&lab.fails(&["restart", what]), &["`state_dir`"]);
        assert!(text(&lab.run(&["env"])).contains(&format!("the {what} has ended")));
        fs::write(&path, good).unwrap();
        // Its end is known already.
        let again = lab.run(&["restart", what]);
        assert_eq!(text(&again), format!("{what} runs again\n"));
    }
}

#[test]
fn refused_lab_program_is_reported() {
    let lab = HackLab::up(2);
    let path = lab.folder().join("dpu-service.toml");
    let good = fs::read_to_string(&path).unwrap();
    fs::write(&path, good.replacen("\"node-1\"", "\"node-2\"", 1)).unwrap();
    for what in ["service", "agent"] {
        assert_prints(&lab.fails(&["restart", what]), &["HOST_UNKNOWN"]);
    }
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
        let vfs = dpuctl(environment, &["get", "vfs", "-o", "json"]).stdout;
        let vfs: Value = serde_json::from_slice(&vfs).unwrap();
        assert_eq!(vfs["vfs"].as_array().map(Vec::len), Some(2), "{vfs}");
    }
}

#[test]
fn broken_lab_is_taken_down() {
    let lab = HackLab::up(2);
    let environment = lab.environment();
    let _ = run(Command::new("kill").args(["-9", &environment["AGENT_PID"]]));
    let _ = run(Command::new("ip").args(["netns", "delete", &environment["HOST_NETNS"]]));
    lab.succeeds(&["down"]);
    assert_eq!(lab.left(), "");
}

/// The block of CONNECTIVITY.md that a reader runs in the lab.
fn example_of_the_lab() -> String {
    let page = fs::read_to_string(path("../docs/CONNECTIVITY.md")).unwrap();
    let (_, section) = page.split_once("## In the lab").unwrap();
    let block = section.split("```sh\n").nth(1).unwrap().split("```").next().unwrap();
    assert!(block.contains("delete network"), "{block}");
    block.to_owned()
}

#[test]
fn connectivity_example_works() {
    let lab = HackLab::up(4);
    let mut example = Command::new("bash");
    example.args(["-euo", "pipefail", "-c", &example_of_the_lab()]);
    let printed = succeeds(example.current_dir(path("..")).env("OFFLOAD_LAB", &lab.name));
    assert_prints(&printed, &["network/way-out deleted", " 1 received", "tcp . 8080"]);
}

/// What a reader of TUTORIAL.md types: blocks of `sh`, and the lines after prompts in blocks of `console`.
fn typed_in_the_tutorial() -> String {
    let page = fs::read_to_string(path("../docs/TUTORIAL.md")).unwrap();
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
    let mut reader = Command::new("bash");
    reader.args(["-uc", &typed_in_the_tutorial()]).current_dir(path(".."));
    let printed = succeeds(reader.env("OFFLOAD_LAB", &lab.name).env("OFFLOAD_BIN_DIR", programs()));
    let shown = [
        " 3 received",
        "Repaired",
        "VFS_EXHAUSTED",
        "exit code 5",
        "HOST_NOT_CONNECTED",
        "AGENT_UNREACHABLE",
        "the lab is down",
    ];
    assert_prints(&printed, &shown);
}
