//! The host's programs on a system without other software.

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

use e2e::{Lab, Settings, program, scenarios::outages::Pair};

use super::making::output_of;

/// Programs of a host: plugin and agent.
const PROGRAMS: [&str; 2] = ["host-shim", "host-shim-agent"];

/// Libraries that a non-static program may load.
const RUN_TIME: [&str; 4] = ["libc.so", "libm.so", "libgcc_s.so", "ld-linux"];

/// Limit in MiB for both test builds: own crates without optimisation, no symbols.
const MOST_MIB: u64 = 48;

/// Libraries that a program loads.
fn libraries(program: &Path) -> Vec<PathBuf> {
    let listed = output_of(Command::new("ldd").arg(program));
    let paths = listed.split_whitespace().filter(|word| word.starts_with('/'));
    paths.map(PathBuf::from).collect()
}

/// Copies a program with its libraries into a root.
fn install(root: &Path, path: &Path) {
    for file in libraries(path).iter().map(PathBuf::as_path).chain([path]) {
        let name = file.file_name().unwrap().to_str().unwrap();
        assert!(file == path || RUN_TIME.iter().any(|known| name.starts_with(known)), "{name}");
        let to = match file == path {
            true => root.join("bin").join(name),
            false => root.join(file.strip_prefix("/").unwrap()),
        };
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        let _ = fs::copy(file, to).unwrap();
    }
}

/// Makes a lab start its host's programs in a root with these programs, their libraries and the lab's folder.
fn enclose(root: &Path, lab: &Path) {
    let mounts = ["/proc", "/run/netns", lab.to_str().unwrap()];
    mounts.iter().for_each(|path| fs::create_dir_all(root.join(&path[1..])).unwrap());
    let root = root.display();
    for name in PROGRAMS {
        let script = format!(
            "#!/bin/sh\nexec unshare --mount --propagation slave sh -c '\
             for path in {}; do mount --rbind $path {root}$path || exit; done\n\
             exec chroot {root} /bin/{name} \"$@\"' sh \"$@\"\n",
            mounts.join(" ")
        );
        let file = lab.join("bin").join(name);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, script).unwrap();
        fs::set_permissions(file, Permissions::from_mode(0o755)).unwrap();
    }
}

#[test]
fn host_programs_need_nothing_else_on_the_host() {
    let root = tempfile::tempdir().unwrap();
    PROGRAMS.iter().for_each(|name| install(root.path(), &program(name)));
    let stripped = PROGRAMS.map(|name| {
        let path = root.path().join("bin").join(name);
        let _ = output_of(Command::new("strip").arg(&path));
        fs::metadata(path).unwrap().len()
    });
    let mib = stripped.iter().sum::<u64>() >> 20;
    assert!(mib < MOST_MIB, "{mib} MiB: {stripped:?}");
    let settings = Settings::with_vfs(2);
    let lab = Lab::start_with(&settings, |folder| enclose(root.path(), folder));
    let has = fs::read_link(format!("/proc/{}/root", lab.agent.id())).unwrap();
    assert_eq!(has, root.path());
    Pair::attach(&lab).detach(&lab);
    lab.status().nothing();
}
