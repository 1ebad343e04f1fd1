use std::{
    fs::Permissions,
    os::unix::fs::{PermissionsExt, symlink},
};

use tempfile::TempDir;

use super::*;

const CONFLIST: &str = include_str!("../../../configs/10-dpu-offload.conflist");

/// A host's folders, and an image with a plugin and a configuration.
struct Stage {
    folder: TempDir,
}

impl Stage {
    fn new() -> Self {
        let stage = Self { folder: tempfile::tempdir().unwrap() };
        fs::write(stage.path("plugin"), "a plugin").unwrap();
        fs::write(stage.path("list"), CONFLIST).unwrap();
        stage
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn places(&self) -> Places {
        Places { plugin_folder: self.path("bin"), conflist: self.path("net.d/10-it.conflist") }
    }

    fn install(&self) -> Result<String, InstallError> {
        let (plugin, from) = (self.path("plugin"), self.path("list"));
        run(&Task::Install { plugin, from, places: self.places() })
    }

    fn uninstall(&self) -> String {
        run(&Task::Uninstall { places: self.places() }).unwrap()
    }

    fn plugin(&self) -> PathBuf {
        self.path("bin/host-shim")
    }

    fn conflist(&self) -> PathBuf {
        self.places().conflist
    }

    /// The files in both folders of the runtime.
    fn left(&self) -> Vec<String> {
        let folders = ["bin", "net.d"].map(|name| fs::read_dir(self.path(name)));
        let names = folders.into_iter().flatten().flatten().map(|entry| entry.unwrap().file_name());
        names.map(|name| name.into_string().unwrap()).collect()
    }

    fn assert_installed(&self) {
        assert_eq!(fs::read(self.plugin()).unwrap(), fs::read(self.path("plugin")).unwrap());
        assert_eq!(fs::read(self.conflist()).unwrap(), fs::read(self.path("list")).unwrap());
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o7777;
        assert_eq!((mode(&self.plugin()), mode(&self.conflist())), (EXECUTABLE, READABLE));
    }
}

#[test]
fn install_and_uninstall_both_files() {
    let stage = Stage::new();
    let report = stage.install().unwrap();
    stage.assert_installed();
    let lines: Vec<_> = report.lines().collect();
    assert!(lines[0].ends_with("bin/host-shim: written"), "{report}");
    assert!(lines[1].ends_with("net.d/10-it.conflist: written"), "{report}");
    assert!(lines[2].contains("no plugin `loopback`"), "{report}");
    let report = stage.uninstall();
    let lines: Vec<_> = report.lines().collect();
    assert!(lines[0].ends_with("10-it.conflist: removed"), "the configuration first: {report}");
    assert!(lines[1].ends_with("host-shim: removed"), "{report}");
    assert_eq!(stage.left(), [""; 0]);
    assert_eq!(stage.uninstall().matches("was not there").count(), 2);
}

#[test]
fn uninstall_without_folders_succeeds() {
    assert!(Stage::new().uninstall().contains("was not there"));
}

#[test]
fn reinstall_does_not_touch_equal_files() {
    let stage = Stage::new();
    stage.install().unwrap();
    fs::write(stage.path("bin/loopback"), "").unwrap();
    let inode = |path: &Path| fs::metadata(path).unwrap().ino();
    let before = (inode(&stage.plugin()), inode(&stage.conflist()));
    let report = stage.install().unwrap();
    assert_eq!(report.matches(": unchanged\n").count(), 2, "{report}");
    assert_eq!(report.lines().count(), 2, "{report}");
    assert_eq!((inode(&stage.plugin()), inode(&stage.conflist())), before);
}

#[test]
fn install_replaces_a_running_plugin() {
    let stage = Stage::new();
    fs::copy("/proc/self/exe", stage.path("plugin")).unwrap();
    stage.install().unwrap();
    let mut running = std::process::Command::new(stage.plugin());
    let mut running = running.arg("--list").stdout(std::process::Stdio::piped()).spawn().unwrap();
    fs::write(stage.path("plugin"), "a newer one").unwrap();
    stage.install().unwrap();
    stage.assert_installed();
    running.kill().unwrap();
    running.wait().unwrap();
}

#[test]
fn install_replaces_links_and_wrong_modes() {
    let stage = Stage::new();
    stage.install().unwrap();
    fs::set_permissions(stage.plugin(), Permissions::from_mode(0o700)).unwrap();
    let target = stage.path("of-a-package");
    fs::rename(stage.conflist(), &target).unwrap();
    symlink(&target, stage.conflist()).unwrap();
    assert_eq!(stage.install().unwrap().matches(": written\n").count(), 2);
    stage.assert_installed();
    assert!(fs::symlink_metadata(stage.conflist()).unwrap().is_file());
    assert!(target.exists(), "the package's file stays");
}

#[test]
fn leftovers_of_killed_install_are_removed() {
    let stage = Stage::new();
    for folder in ["bin", "net.d"] {
        fs::create_dir(stage.path(folder)).unwrap();
    }
    for unfinished in ["bin/host-shim.new", "net.d/10-it.new"] {
        fs::write(stage.path(unfinished), "much more than will be written there").unwrap();
    }
    stage.install().unwrap();
    stage.assert_installed();
    assert_eq!(stage.left().len(), 2);
    fs::write(stage.path("bin/host-shim.new"), "a").unwrap();
    stage.uninstall();
    assert_eq!(stage.left(), [""; 0]);
}

#[test]
fn uninstall_keeps_a_plugin_in_use() {
    let stage = Stage::new();
    stage.install().unwrap();
    fs::copy(stage.conflist(), stage.path("net.d/20-dpu-2.conflist")).unwrap();
    let report = stage.uninstall();
    assert!(
        report.contains("host-shim: stays, for ") && report.contains("20-dpu-2.conflist"),
        "{report}"
    );
    assert!(stage.plugin().exists() && !stage.conflist().exists());
}

#[test]
fn invalid_conflist_changes_nothing() {
    let stage = Stage::new();
    for (list, why) in [
        ("{", "EOF"),
        (r#"{"type": "host-shim"}"#, "none of its `plugins`"),
        (r#"{"plugins": [{"type": "bridge"}]}"#, "type host-shim"),
    ] {
        fs::write(stage.path("list"), list).unwrap();
        let refused = stage.install().unwrap_err();
        assert!(matches!(&refused, InstallError::NoConflist { .. }), "{refused}");
        assert!(refused.to_string().contains(why), "{refused}");
        assert_eq!(stage.left(), [""; 0]);
    }
}

#[test]
fn missing_install_file_changes_nothing() {
    for missing in ["plugin", "list"] {
        let stage = Stage::new();
        fs::remove_file(stage.path(missing)).unwrap();
        let refused = stage.install().unwrap_err().to_string();
        assert!(refused.contains(stage.path(missing).to_str().unwrap()), "{refused}");
        assert_eq!(stage.left(), [""; 0]);
    }
}

#[test]
fn concurrent_installs_leave_a_whole_plugin() {
    let stage = Stage::new();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| stage.install().unwrap());
        }
    });
    stage.assert_installed();
    assert_eq!(stage.left().len(), 2);
}
