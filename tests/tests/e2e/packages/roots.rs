//! The host's programs where nothing else is installed.

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

use e2e::{Lab, Settings, program, scenarios::outages::Pair};

use super::making::says;

/// What a host has: the plugin and the agent.
const PROGRAMS: [&str; 2] = ["host-shim", "host-shim-agent"];

/// What a program may load that is not static. A static one has all of it within.
const RUN_TIME: [&str; 4] = ["libc.so", "libm.so", "libgcc_s.so", "ld-linux"];

/// MiB of both programs, built for tests: own crates without optimisation, no symbols.
const MOST_MIB: u64 = 48;

/// The libraries that a program loads.
fn libraries(program: &Path) -> Vec<PathBuf> {
    let listed = says(Command::new("ldd").arg(program));
    let paths = listed.split_whitespace().filter(|word| word.starts_with('/'));
    paths.map(PathBuf::from).collect()
}

/// Puts a program into a root, with what it loads.
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

/// Has a lab start its host's programs in a root that has them, what they load, and the lab's own folder.
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
        let _ = says(Command::new("strip").arg(&path));
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
