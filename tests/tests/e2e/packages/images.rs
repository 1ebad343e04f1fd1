//! Images, checked against their specification with external tools.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use e2e::run;
use serde_json::Value;
use tempfile::TempDir;

use super::making::{Made, fill, output_of, package, text};

/// The unpacked layout of an image.
struct Layout {
    folder: TempDir,
}

impl Layout {
    fn of(archive: &Path) -> Self {
        let folder = tempfile::tempdir().unwrap();
        unpack(archive, folder.path());
        Self { folder }
    }

    fn json(&self, path: impl AsRef<Path>) -> Value {
        serde_json::from_slice(&fs::read(self.folder.path().join(path)).unwrap()).unwrap()
    }

    /// The blob of a descriptor, after a check of its size and digest.
    fn blob(&self, descriptor: &Value) -> PathBuf {
        let digest = descriptor["digest"].as_str().unwrap().strip_prefix("sha256:").unwrap();
        let path = self.folder.path().join("blobs/sha256").join(digest);
        assert_eq!(fs::metadata(&path).unwrap().len(), descriptor["size"].as_u64().unwrap());
        assert_eq!(digest_of(&path), digest);
        path
    }
}

fn unpack(archive: &Path, folder: &Path) {
    output_of(Command::new("tar").arg("-xf").arg(archive).arg("-C").arg(folder));
}

fn digest_of(path: &Path) -> String {
    output_of(Command::new("sha256sum").arg(path))[..64].to_owned()
}

#[test]
fn image_has_both_architectures_and_valid_digests() {
    let made = Made::of_stand_ins();
    for (name, program) in [("agent", "host-shim-agent"), ("service", "dpu-service")] {
        let layout = Layout::of(&made.file(&format!("dpu-offload-{name}_"), ".oci.tar"));
        assert_eq!(layout.json("oci-layout")["imageLayoutVersion"], "1.0.0");
        let index = layout.json("index.json");
        let all = layout.json(layout.blob(&index["manifests"][0]));
        let manifests = all["manifests"].as_array().unwrap();
        let processors: Vec<_> = manifests
            .iter()
            .map(|manifest| manifest["platform"]["architecture"].as_str().unwrap())
            .collect();
        assert_eq!(processors, ["amd64", "arm64"]);
        for manifest in manifests {
            check_image(&layout, manifest, program);
        }
    }
}

fn check_image(layout: &Layout, descriptor: &Value, program: &str) {
    let manifest = layout.json(layout.blob(descriptor));
    let config = layout.json(layout.blob(&manifest["config"]));
    assert_eq!(config["architecture"], descriptor["platform"]["architecture"]);
    assert_eq!(config["config"]["Entrypoint"][0], format!("/usr/bin/{program}"));
    let packed = layout.blob(&manifest["layers"][0]);
    let layer = layout.folder.path().join("layer");
    fs::write(&layer, output_bytes_of(Command::new("gzip").arg("-dc").arg(packed))).unwrap();
    assert_eq!(config["rootfs"]["diff_ids"][0], format!("sha256:{}", digest_of(&layer)));
    if descriptor["platform"]["architecture"] == "amd64" {
        check_that_it_runs(&layer, program);
    }
}

fn output_bytes_of(command: &mut Command) -> Vec<u8> {
    let output = run(command);
    assert!(output.status.success(), "{command:?}");
    output.stdout
}

/// Runs with only the image's content.
fn check_that_it_runs(layer: &Path, program: &str) {
    let root = tempfile::tempdir().unwrap();
    unpack(layer, root.path());
    let printed = output_of(
        Command::new("chroot").arg(root.path()).args([&format!("/usr/bin/{program}"), "it runs"]),
    );
    assert_eq!(printed, "it runs\n");
}

#[test]
fn dynamic_program_makes_no_image() {
    let folder = tempfile::tempdir().unwrap();
    let from = folder.path().join("from");
    // A program of Debian: dynamic, and quick to copy.
    fill(&from, |path| assert!(fs::copy("/bin/true", path).unwrap() > 0));
    let output = run(package(&folder.path().join("to"), &[from]).args(["--only", "image"]));
    let printed = text(&output);
    assert!(
        !output.status.success() && printed.contains("host-shim-agent is not static"),
        "{printed}"
    );
    assert!(!folder.path().join("to").exists());
}

#[test]
fn image_can_include_libraries() {
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (folder.path().join("from"), folder.path().join("to"));
    fill(&from, |path| assert!(fs::copy("/bin/echo", path).unwrap() > 0));
    output_of(package(&to, &[from]).args(["--only", "image", "--with-libraries"]));
    let layout = Layout::of(&Made { folder: to }.file("dpu-offload-agent_", ".oci.tar"));
    let index = layout.json("index.json");
    let all = layout.json(layout.blob(&index["manifests"][0]));
    check_image(&layout, &all["manifests"][0], "host-shim-agent");
}
