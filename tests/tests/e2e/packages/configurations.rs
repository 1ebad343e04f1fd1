//! Configurations that the packages install in /etc: refused until a site writes its own. Examples are comments.

use std::{fs, path::Path, process::Command};

use e2e::{program, run};
use tempfile::TempDir;

use super::{
    making::{Made, output_of, text},
    tree::architecture,
};

/// EX_CONFIG of sysexits.h.
const BAD_CONFIGURATION: i32 = 78;

/// Packages with the programs of their files, and what the refusal names.
const FILES: [(&str, &str, &str, &str); 2] = [
    ("dpu-offload-dpu", "dpu-service", "dpu-service.toml", "there is no [[host]]"),
    ("dpu-offload-host", "host-shim-agent", "host-shim.toml", "missing key `endpoint` in `dpu`"),
];

/// Files of a package.
fn unpacked(package: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let deb = Made::of_stand_ins().deb(package, &architecture());
    output_of(Command::new("dpkg-deb").arg("--extract").arg(deb).arg(folder.path()));
    folder
}

fn checked(name: &str, file: &Path) -> (Option<i32>, String) {
    let output = run(Command::new(program(name)).arg("--config").arg(file).arg("--check-config"));
    (output.status.code(), text(&output))
}

/// Activates the examples of a file: comments that contain a section or a key.
fn with_examples(text: &str) -> String {
    let is_name = |name: &str| name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
    let is_example = |line: &&str| {
        line.starts_with('[') || line.split_once(" = ").is_some_and(|(key, _)| is_name(key))
    };
    let line = |line: &str| {
        let example = line.strip_prefix("# ").filter(is_example);
        format!("{}\n", example.unwrap_or(line))
    };
    text.lines().map(line).collect()
}

#[test]
fn shipped_configurations_are_refused_in_one_line() {
    for (package, name, file, words) in FILES {
        let folder = unpacked(package);
        let file = folder.path().join("etc/dpu-offload").join(file);
        let (code, printed) = checked(name, &file);
        assert_eq!(code, Some(BAD_CONFIGURATION), "{name}: {printed}");
        assert!(printed.lines().count() == 1 && printed.contains(words), "{name}: {printed}");
    }
}

#[test]
fn shipped_configurations_make_no_network() {
    for (package, _, file, _) in FILES {
        let folder = unpacked(package);
        let text = fs::read_to_string(folder.path().join("etc/dpu-offload").join(file)).unwrap();
        let in_force = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
        let known = ["[dpu]", "[tls]", "ca", "certificate", "key", "trust_domain"];
        for line in in_force {
            let word = line.split(' ').next().unwrap();
            assert!(known.contains(&word), "{file}: {line}");
        }
    }
}

#[test]
fn examples_of_shipped_configurations_are_valid() {
    for (package, name, file, _) in FILES {
        let folder = unpacked(package);
        let path = folder.path().join("etc/dpu-offload").join(file);
        fs::write(&path, with_examples(&fs::read_to_string(&path).unwrap())).unwrap();
        // The file is valid: only the site's certificates are missing.
        let (_, printed) = checked(name, &path);
        assert!(
            printed.contains("/etc/dpu-offload/tls/") && printed.lines().count() == 1,
            "{printed}"
        );
    }
}

#[test]
fn whole_configurations_come_as_examples() {
    for (package, name, file, _) in FILES {
        let folder = unpacked(package);
        let examples = folder.path().join("usr/share/doc").join(package).join("examples");
        let (_, printed) = checked(name, &examples.join(file));
        assert!(printed.contains("/etc/dpu-offload/tls/"), "{name}: {printed}");
    }
}
