//! Packages, made once in a test run.

use std::{
    collections::BTreeSet,
    env,
    fs::{self, DirEntry, File, Permissions},
    os::unix::fs::{FileExt, PermissionsExt},
    path::{Path, PathBuf},
    process::{Command, Output, id},
    time::Duration,
};

use e2e::{program, run};

pub(super) const PROGRAMS: [&str; 5] =
    ["virtual-nic", "dpu-service", "host-shim", "host-shim-agent", "dpuctl"];

/// Offset of the machine field in an ELF header, and its value for arm64.
const MACHINE: u64 = 18;
const AARCH64: &[u8] = &[183, 0];

pub(super) fn text(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

/// The output of a command that must succeed.
pub(super) fn output_of(command: &mut Command) -> String {
    let output = run(command);
    assert!(output.status.success(), "{command:?}: {}", text(&output));
    String::from_utf8(output.stdout).unwrap()
}

/// The folder with the results.
pub(super) struct Made {
    pub(super) folder: PathBuf,
}

impl Made {
    /// Debian packages of the real programs, for this machine's architecture.
    pub(super) fn of_programs() -> Self {
        Self::once("programs", |to| {
            let from = to.with_extension("from");
            fill(&from, |path| {
                let name = path.file_name().unwrap().to_str().unwrap();
                // Strip like a release: test builds may have symbols.
                output_of(Command::new("strip").arg("-o").arg(path).arg(program(name)));
            });
            package(to, &[from]).args(["--only", "deb"]).output().unwrap()
        })
    }

    /// Packages and images for both architectures, of a program that prints its name. Packing takes no time.
    pub(super) fn of_stand_ins() -> Self {
        Self::once("stand-ins", |to| package(to, &stand_in_folders()).output().unwrap())
    }

    /// The first test makes them; the others wait.
    fn once(name: &str, make: impl FnOnce(&Path) -> Output) -> Self {
        let shared = shared();
        let lock = File::create(shared.join(format!("{name}.lock"))).unwrap();
        lock.lock().unwrap();
        let folder = shared.join(name);
        if !folder.join("SHA256SUMS").exists() {
            let output = make(&folder);
            assert!(output.status.success(), "{}", text(&output));
        }
        Self { folder }
    }

    pub(super) fn files(&self) -> BTreeSet<String> {
        let entries = fs::read_dir(&self.folder).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    /// The only file whose name has this start and end.
    pub(super) fn file(&self, beginning: &str, end: &str) -> PathBuf {
        let is_it = |name: &&String| name.starts_with(beginning) && name.ends_with(end);
        let files = self.files();
        let found: Vec<_> = files.iter().filter(is_it).collect();
        assert_eq!(found.len(), 1, "{beginning}{end}: {files:?}");
        self.folder.join(found[0])
    }

    pub(super) fn deb(&self, package: &str, architecture: &str) -> PathBuf {
        self.file(&format!("{package}_"), &format!("_{architecture}.deb"))
    }

    pub(super) fn debs(&self) -> Vec<PathBuf> {
        let debs = self.files().into_iter().filter(|name| name.ends_with(".deb"));
        debs.map(|name| self.folder.join(name)).collect()
    }
}

/// Longer than any test run.
const OLD: Duration = Duration::from_secs(2 * 60 * 60);

/// Folder of this test run. Those of earlier runs are removed.
fn shared() -> PathBuf {
    let run = env::var("NEXTEST_RUN_ID").unwrap_or_else(|_| id().to_string());
    let all = Path::new(env!("CARGO_TARGET_TMPDIR")).join("packages");
    fs::create_dir_all(all.join(&run)).unwrap();
    let is_old = |entry: &DirEntry| {
        let began = entry.metadata().and_then(|metadata| metadata.created());
        began.is_ok_and(|began| began.elapsed().is_ok_and(|age| age > OLD))
    };
    let old = fs::read_dir(&all).unwrap().map(|entry| entry.unwrap()).filter(is_old);
    // Another test may be faster.
    old.for_each(|entry| drop(fs::remove_dir_all(entry.path())));
    all.join(run)
}

/// `hack/package` for these folders of programs.
pub(super) fn package(to: &Path, from: &[PathBuf]) -> Command {
    let mut command = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("../hack/package"));
    command.arg("--to").arg(to).env("CARGO_NET_OFFLINE", "true");
    // Without compression: compressing takes longer than all other work with them.
    command.env("DPKG_DEB_COMPRESSOR_LEVEL", "0");
    for folder in from {
        command.arg("--from").arg(folder);
    }
    command
}

/// Fills a folder with programs that `make` creates.
pub(super) fn fill(folder: &Path, make: impl Fn(&Path)) {
    fs::create_dir_all(folder).unwrap();
    for name in PROGRAMS {
        let path = folder.join(name);
        make(&path);
        fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
    }
    fs::copy(program("manual"), folder.join("manual")).unwrap();
}

/// Builds a static program that prints its name.
fn build_stand_in(path: &Path) {
    let source = path.with_extension("c");
    fs::write(
        &source,
        "#include <stdio.h>\nint main(int c, char **v) { return puts(v[c - 1]) < 0; }\n",
    )
    .unwrap();
    output_of(Command::new("cc").args(["-static", "-s", "-o"]).arg(path).arg(source));
}

/// Stand-ins for this architecture, and a copy whose header says arm64.
pub(super) fn stand_in_folders() -> [PathBuf; 2] {
    let shared = shared();
    let folders =
        ["amd64", "arm64"].map(|architecture| shared.join(format!("stand-ins-{architecture}")));
    let lock = File::create(shared.join("stand-ins-folders.lock")).unwrap();
    lock.lock().unwrap();
    if !folders[1].exists() {
        let model = shared.join("stand-in");
        build_stand_in(&model);
        for folder in &folders {
            fill(folder, |path| assert!(fs::copy(&model, path).unwrap() > 0));
        }
        for name in PROGRAMS {
            let file = File::options().write(true).open(folders[1].join(name)).unwrap();
            file.write_all_at(AARCH64, MACHINE).unwrap();
        }
    }
    folders
}
