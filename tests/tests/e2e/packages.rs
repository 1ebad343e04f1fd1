//! The packages of `hack/package`, checked and installed with Debian's own programs in separate trees.

mod configurations;
mod copy;
mod images;
mod installed;
mod making;
mod removed;
mod roots;
mod tree;

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::Command,
};

use e2e::run;
use making::{Made, output_of, package, stand_in_folders, text};
use serde_json::Value;

/// Modes and paths in a package.
fn contents(deb: &Path) -> BTreeMap<String, String> {
    let listed = output_of(Command::new("dpkg-deb").arg("--contents").arg(deb));
    let entry = |line: &str| {
        let words: Vec<_> = line.split_whitespace().collect();
        assert_eq!(words[1], "root/root", "{line}");
        (words[5].trim_start_matches('.').to_owned(), words[0].to_owned())
    };
    listed.lines().map(entry).collect()
}

#[test]
fn packages_contain_program_configuration_and_manual() {
    let made = Made::of_stand_ins();
    for (name, files) in [
        (
            "dpu-offload-host",
            &[
                ("/usr/bin/host-shim-agent", "-rwxr-xr-x"),
                ("/usr/lib/cni/host-shim", "-rwxr-xr-x"),
                ("/etc/dpu-offload/host-shim.toml", "-rw-r--r--"),
                ("/usr/lib/systemd/system/dpu-offload-agent.service", "-rw-r--r--"),
                ("/usr/lib/systemd/system/dpu-offload-agent.socket", "-rw-r--r--"),
                ("/usr/lib/systemd/system/dpu-offload-agent@.service", "-rw-r--r--"),
                ("/usr/lib/systemd/system/dpu-offload-agent@.socket", "-rw-r--r--"),
                ("/usr/share/man/man8/host-shim-agent.8.gz", "-rw-r--r--"),
                ("/usr/share/doc/dpu-offload-host/examples/10-dpu-offload.conflist", "-rw-r--r--"),
                ("/usr/share/doc/dpu-offload-host/examples/host-shim.toml", "-rw-r--r--"),
            ][..],
        ),
        (
            "dpu-offload-dpu",
            &[
                ("/usr/bin/dpu-service", "-rwxr-xr-x"),
                ("/etc/dpu-offload/dpu-service.toml", "-rw-r--r--"),
                ("/usr/lib/systemd/system/dpu-offload-service.service", "-rw-r--r--"),
                ("/usr/share/man/man8/dpu-service.8.gz", "-rw-r--r--"),
                ("/usr/share/doc/dpu-offload-dpu/examples/dpu-service.toml", "-rw-r--r--"),
            ],
        ),
        (
            "dpuctl",
            &[
                ("/usr/bin/dpuctl", "-rwxr-xr-x"),
                ("/etc/dpu-offload/dpuctl.toml", "-rw-r--r--"),
                ("/usr/share/man/man1/dpuctl-get-vfs.1.gz", "-rw-r--r--"),
                ("/usr/share/doc/dpuctl/examples/dpu-offload.rules.yml", "-rw-r--r--"),
                ("/usr/share/doc/dpuctl/examples/dpu-offload.test.yml", "-rw-r--r--"),
                ("/usr/share/doc/dpuctl/examples/dpu-offload.json", "-rw-r--r--"),
                ("/usr/share/bash-completion/completions/dpuctl.bash", "-rw-r--r--"),
                ("/usr/share/zsh/vendor-completions/_dpuctl", "-rw-r--r--"),
                ("/usr/share/fish/vendor_completions.d/dpuctl.fish", "-rw-r--r--"),
            ],
        ),
        (
            "dpu-offload-lab",
            &[
                ("/usr/bin/virtual-nic", "-rwxr-xr-x"),
                ("/usr/bin/dpu-offload-lab", "-rwxr-xr-x"),
                ("/usr/share/man/man8/dpu-offload-lab.8.gz", "-rw-r--r--"),
                ("/usr/lib/systemd/system/dpu-offload-card.service", "-rw-r--r--"),
                ("/usr/share/dpu-offload-lab/card.conf", "-rw-r--r--"),
            ],
        ),
    ] {
        for architecture in ["amd64", "arm64"] {
            let contents = contents(&made.deb(name, architecture));
            for (file, mode) in files {
                assert_eq!(contents.get(*file).map(String::as_str), Some(*mode), "{name}: {file}");
            }
            let of_each = [format!("/usr/share/doc/{name}/sbom.cdx.json")];
            assert!(of_each.iter().all(|file| contents.contains_key(file)), "{name}: {contents:?}");
        }
    }
}

#[test]
fn lintian_accepts_the_packages() {
    for made in [Made::of_programs(), Made::of_stand_ins()] {
        let mut lintian = Command::new("lintian");
        lintian.args(["--allow-root", "--fail-on", "error,warning"]).args(made.debs());
        let output = run(&mut lintian);
        assert!(output.status.success() && text(&output).is_empty(), "{}", text(&output));
    }
}

#[test]
fn checksums_cover_every_file() {
    let made = Made::of_stand_ins();
    output_of(
        Command::new("sha256sum")
            .args(["--check", "--strict", "SHA256SUMS"])
            .current_dir(&made.folder),
    );
    let sums = fs::read_to_string(made.folder.join("SHA256SUMS")).unwrap();
    let listed: BTreeSet<_> = sums.lines().map(|line| line[66..].to_owned()).collect();
    let mut there = made.files();
    assert!(there.remove("SHA256SUMS") && there == listed, "{there:?} {listed:?}");
    assert_eq!(there.len(), 4 * 2 * 2 + 2, "{there:?}");
}

#[test]
fn packages_are_reproducible() {
    let made = Made::of_stand_ins();
    let folder = tempfile::tempdir().unwrap();
    let mut command = package(folder.path(), &stand_in_folders());
    // As by another user in another folder.
    let output =
        run(command.envs([("TZ", "Asia/Tokyo"), ("LC_ALL", "C.UTF-8"), ("USER", "nobody")]));
    assert!(output.status.success(), "{}", text(&output));
    let sums = |folder: &Path| fs::read_to_string(folder.join("SHA256SUMS")).unwrap();
    assert_eq!(sums(folder.path()), sums(&made.folder));
}

#[test]
fn bill_of_materials_lists_program_crates() {
    let made = Made::of_stand_ins();
    let bill: Value = serde_json::from_str(
        &fs::read_to_string(made.file("dpu-offload-dpu_", "_arm64.cdx.json")).unwrap(),
    )
    .unwrap();
    assert_eq!((&bill["bomFormat"], &bill["specVersion"]), (&"CycloneDX".into(), &"1.5".into()));
    assert_eq!(bill["metadata"]["component"]["name"], "dpu-offload-dpu");
    let components = bill["components"].as_array().unwrap();
    let named = |name: &str| components.iter().find(|component| component["name"] == name);
    for ours in ["journal", "mtls"] {
        assert!(named(ours).is_some_and(|component| component.get("hashes").is_none()), "{ours}");
    }
    let redb = named("redb").expect("the journal's crate");
    let lock =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../Cargo.lock")).unwrap();
    let sum = redb["hashes"][0]["content"].as_str().unwrap();
    assert!(lock.contains(&format!("checksum = \"{sum}\"")), "{redb}");
    assert_eq!(redb["licenses"][0]["expression"], "MIT OR Apache-2.0");
    for foreign in ["tempfile", "proptest", "tonic-prost-build", "clap_mangen"] {
        assert!(named(foreign).is_none(), "{foreign}");
    }
    let known: BTreeSet<_> =
        components.iter().map(|component| &component["bom-ref"]).map(Value::to_string).collect();
    for dependency in bill["dependencies"].as_array().unwrap() {
        let needs = dependency["dependsOn"].as_array().unwrap();
        assert!(needs.iter().all(|needed| known.contains(&needed.to_string())), "{dependency}");
    }
}

#[test]
fn unpackable_programs_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (to, from) = (folder.path().join("to"), folder.path().join("from"));
    fs::create_dir(&from).unwrap();
    for (program, expected) in [("", "no virtual-nic in"), ("#!/bin/sh\n", "no processor")] {
        if !program.is_empty() {
            making::fill(&from, |path| fs::write(path, program).unwrap());
        }
        let output = run(&mut package(&to, std::slice::from_ref(&from)));
        let printed = text(&output);
        assert!(!output.status.success() && printed.contains(expected), "{printed}");
        assert!(printed.lines().count() == 1 && !to.exists(), "{printed}");
    }
}

#[test]
fn contradictory_package_options_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (to, [amd64, _]) = (folder.path().join("to"), stand_in_folders());
    let twice = [amd64.clone(), amd64.clone()];
    let output = run(&mut package(&to, &twice));
    assert!(text(&output).contains("are both for amd64"), "{}", text(&output));
    let output = run(package(&to, &[amd64]).arg("aarch64"));
    assert!(text(&output).contains("the processors"), "{}", text(&output));
    assert!(!to.exists());
}

/// A cargo that lists crates and builds nothing.
const CARGO: &str = r#"#!/bin/sh
[ "$1" != metadata ] || PATH=${PATH#*:} exec cargo "$@"
exit 101
"#;

#[test]
fn manual_pages_come_from_ready_built_programs() {
    let folder = tempfile::tempdir().unwrap();
    let (to, from, tools) =
        (folder.path().join("to"), folder.path().join("from"), folder.path().join("tools"));
    let [with_manual, _] = stand_in_folders();
    making::fill(&from, |path| {
        let stand_in = with_manual.join(path.file_name().unwrap());
        assert!(fs::copy(stand_in, path).unwrap() > 0);
    });
    fs::remove_file(from.join("manual")).unwrap();
    fs::create_dir(&tools).unwrap();
    fs::write(tools.join("cargo"), CARGO).unwrap();
    fs::set_permissions(tools.join("cargo"), fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", tools.display(), env::var("PATH").unwrap());
    let package = || {
        let mut command = package(&to, std::slice::from_ref(&from));
        command.args(["--only", "deb"]).env("PATH", &path).env_remove("OFFLOAD_BIN_DIR");
        command
    };
    let output = run(&mut package());
    let printed = text(&output);
    assert!(
        !output.status.success() && printed.contains("has no manual for this machine"),
        "{printed}"
    );
    let output = run(package().env("OFFLOAD_BIN_DIR", &with_manual));
    let printed = text(&output);
    assert!(output.status.success() && !printed.contains("building"), "{printed}");
    for package in ["dpu-offload-host", "dpu-offload-dpu", "dpuctl", "dpu-offload-lab"] {
        assert!(printed.contains(&format!("package: packing {package} for amd64")), "{printed}");
    }
    let deb = Made { folder: to }.deb("dpu-offload-dpu", "amd64");
    assert!(contents(&deb).contains_key("/usr/share/man/man8/dpu-service.8.gz"));
}
