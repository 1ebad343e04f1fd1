//! Checks of documents: codes, examples, commands.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use e2e::{Lab, Settings, program, run};
use offload_proto::{FindingCode, Reason};
use serde_json::Value;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().unwrap()
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The user documents, including README.
fn documents() -> Vec<PathBuf> {
    let folders = ["docs", "docs/runtimes"].map(|name| fs::read_dir(root().join(name)).unwrap());
    let folder = folders.into_iter().flatten().map(|entry| entry.unwrap().path());
    let top = ["README.md", "CONTRIBUTING.md", "MAINTAINERS.md", "CHANGELOG.md"];
    let top = top.map(|name| root().join(name));
    let is_document = |path: &PathBuf| path.extension().is_some_and(|kind| kind == "md");
    folder.filter(is_document).chain(top).collect()
}

/// Fenced blocks of a Markdown text with the info string `kind`.
fn blocks(text: &str, kind: &str) -> Vec<String> {
    let fence = format!("```{kind}\n");
    let bodies = text.split(fence.as_str()).skip(1);
    bodies.map(|body| body.split("```").next().unwrap().to_owned()).collect()
}

#[test]
fn error_documentation_matches_the_code() {
    let text = read("docs/ERRORS.md");
    for reason in Reason::ALL {
        let heading = format!("### {reason}\nCNI {}", reason.cni_code());
        assert!(text.contains(&heading), "docs/ERRORS.md lacks {heading:?}");
    }
    let explained: BTreeSet<_> =
        text.lines().filter_map(|line| line.strip_prefix("### ")).collect();
    let known: BTreeSet<_> = Reason::ALL.iter().map(|reason| reason.as_str()).collect();
    assert_eq!(explained, known);
}

#[test]
fn finding_documentation_matches_the_code() {
    let text = read("docs/TROUBLESHOOTING.md");
    let explained: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("### ")).collect();
    let known: Vec<_> = FindingCode::ALL.iter().map(|finding| finding.as_str()).collect();
    assert_eq!(explained, known);
}

#[test]
fn document_links_are_valid() {
    for path in documents() {
        let text = fs::read_to_string(&path).unwrap();
        for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let file = target.split('#').next().unwrap();
            if file.is_empty() || file.contains("://") {
                continue;
            }
            let there = path.parent().unwrap().join(file);
            assert!(there.exists(), "{} links to {target}", path.display());
        }
    }
}

#[test]
fn readme_names_the_required_rust() {
    let manifest = read("Cargo.toml");
    let version = manifest.lines().find_map(|line| line.strip_prefix("rust-version = "));
    let asked = format!("Rust {} or newer", version.unwrap().trim_matches('"'));
    assert!(read("README.md").contains(&asked), "README.md does not ask for {asked}");
}

/// Keys of a commented example, including commented ones such as `vlan`.
fn keys(example: &str) -> BTreeSet<String> {
    let is_key =
        |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
    let named = example.lines().filter_map(|line| line.trim_start_matches("# ").split_once(" = "));
    named.map(|(key, _)| key.trim().to_owned()).filter(|key| is_key(key)).collect()
}

#[test]
fn reference_has_every_example_key() {
    let reference = read("docs/CONFIGURATION.md");
    for example in ["configs/dpu-service.toml", "configs/host-shim.toml", "configs/dpuctl.toml"] {
        for key in keys(&read(example)) {
            let is_there = [format!("`{key}`"), format!(".{key}`")];
            assert!(is_there.iter().any(|form| reference.contains(form)), "{example}: {key}");
        }
    }
}

/// A description copied from one program's table into the other's would be wrong there.
#[test]
fn key_descriptions_are_not_copied_between_programs() {
    let reference = read("docs/CONFIGURATION.md");
    let tables = reference.split("\n## ").map(|section| {
        let rows = section.lines().filter(|line| line.starts_with("| `"));
        let words = rows.map(|row| row.trim_end_matches([' ', '|']).split(" | ").last().unwrap());
        words.filter(|words| *words != "as the service's").collect::<BTreeSet<_>>()
    });
    let (mut reported, mut copied) = (BTreeSet::new(), Vec::new());
    for table in tables {
        copied.extend(table.intersection(&reported).copied());
        reported.extend(table);
    }
    assert_eq!(copied, [""; 0]);
}

#[test]
fn documented_configurations_are_valid() {
    let lab = Lab::start(&Settings::default());
    let folder = tempfile::tempdir().unwrap();
    for path in documents() {
        for (number, block) in
            blocks(&fs::read_to_string(&path).unwrap(), "toml").iter().enumerate()
        {
            let place = format!("{} block {number}", path.display());
            check_example(&lab, folder.path(), block, &place);
        }
    }
}

#[test]
fn agent_units_differ_only_by_dpu() {
    for kind in ["service", "socket"] {
        let unit = |name: &str| {
            let text = read(&format!("configs/systemd/{name}.{kind}"));
            text[text.find("[Unit]").unwrap()..].to_owned()
        };
        let mut template = unit("dpu-offload-agent@");
        for of_instance in [" of DPU %i", "@%i", "-%i"] {
            template = template.replace(of_instance, "");
        }
        assert_eq!(template, unit("dpu-offload-agent"), "{kind}");
    }
}

#[test]
fn second_dpu_conflist_names_its_units_socket() {
    let shown = &blocks(&read("docs/INSTALLATION.md"), "json")[0];
    let shown: Value = serde_json::from_str(shown).unwrap();
    let socket = read("configs/systemd/dpu-offload-agent@.socket");
    let named = socket.lines().find_map(|line| line.strip_prefix("ListenStream=")).unwrap();
    assert_eq!(shown["plugins"][0]["agentSocket"], named.replace("%i", "dpu-2"));
}

#[test]
fn documented_networks_can_be_applied() {
    let lab = Lab::start(&Settings::default());
    let mut examples = vec![read("configs/network.yaml")];
    for path in documents() {
        examples.extend(blocks(&fs::read_to_string(&path).unwrap(), "yaml"));
    }
    assert!(examples.len() > 1);
    let file = lab.path().join("network.yaml");
    for example in examples {
        fs::write(&file, example).unwrap();
        let printed = lab.operator().output(&["apply", "--dry-run", "-f", file.to_str().unwrap()]);
        assert!(printed.contains("created (dry run)"), "{printed}");
    }
}

const HOST: &str = "[[host]]\nname = \"node-1\"\npfs = [\"p0\"]\n";

/// The first line of an example names its program: `# dpu-service.toml`. Certificates are replaced by the lab's. An
/// example of few keys is completed by the host that each service's file needs.
fn check_example(lab: &Lab, folder: &Path, text: &str, place: &str) {
    let (name, role, owner) = match text.lines().next().unwrap_or_default() {
        "# dpu-service.toml" => ("dpu-service", "dpu", "dpu-1"),
        "# host-shim.toml" => ("host-shim-agent", "host", "node-1"),
        "# dpuctl.toml" => return,
        other => panic!("{place}: the first line {other:?} does not say whose file it is"),
    };
    let file = folder.join("example.toml");
    let tls = if text.contains("[tls]") { String::new() } else { lab.pki.section(role, owner) };
    let host = match name {
        "dpu-service" if !text.contains("[[host]]") => HOST,
        _ => "",
    };
    fs::write(&file, format!("{text}\n{tls}\n{host}")).unwrap();
    let mut command = Command::new(program(name));
    let output = run(command.arg("--config").arg(&file).arg("--check-config"));
    let printed = String::from_utf8_lossy(&output.stderr);
    // Files of a production installation are missing here; everything else must be valid.
    let only_certificates = printed.contains("/etc/dpu-offload/tls/");
    assert!(output.status.success() || only_certificates, "{place}: {printed}");
}

/// Whether a word of a command line is a verb, not an option or an object.
fn is_verb(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_lowercase())
        && word.bytes().all(|b| b.is_ascii_lowercase() || b == b'-')
}

#[test]
fn documented_dpuctl_commands_exist() {
    for path in documents() {
        let text = fs::read_to_string(&path).unwrap();
        let lines = blocks(&text, "sh").join("\n");
        for line in lines.lines().filter_map(|line| line.trim().strip_prefix("dpuctl ")) {
            let words: Vec<_> = line.split_whitespace().take_while(|word| is_verb(word)).collect();
            let known = (1..=words.len()).rev().any(|count| {
                let output =
                    run(Command::new(program("dpuctl")).args(&words[..count]).arg("--help"));
                output.status.success()
            });
            assert!(known, "{}: dpuctl {line}", path.display());
        }
    }
}

#[test]
fn documented_scripts_exist() {
    let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_.".contains(c);
    for path in documents() {
        let text = fs::read_to_string(&path).unwrap();
        for rest in text.split("`hack/").skip(1) {
            let name = rest.split(|c| !is_name(c)).next().unwrap();
            let there = root().join("hack").join(name);
            assert!(there.exists(), "{} names hack/{name}", path.display());
        }
    }
}
