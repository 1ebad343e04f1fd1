//! Which files are network namespaces, and work inside one.

use std::{
    fs,
    io::ErrorKind,
    os::unix::fs::symlink,
    panic::{self, AssertUnwindSafe},
    path::Path,
};

use netlink::{Family, Netns, NetnsError, set_sysctl};
use nix::{errno::Errno, sys::stat::Mode, unistd::mkfifo};

use crate::support::TestNetns;

fn refusal(path: &Path) -> NetnsError {
    Netns::open(path).unwrap_err()
}

#[test]
fn namespace_identity_is_independent_of_path() {
    let netns = TestNetns::new();
    let opened = Netns::open(&netns.path()).unwrap();
    assert_eq!(opened.id(), netns.netns.id());
    assert_ne!(opened.id(), Netns::current().unwrap().id());
    let folder = tempfile::tempdir().unwrap();
    let link = folder.path().join("link");
    symlink(netns.path(), &link).unwrap();
    assert_eq!(Netns::open(&link).unwrap().id(), opened.id());
}

#[test]
fn other_files_are_refused_unopened() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::write(at("file"), "").unwrap();
    // Opening the FIFO would block until a writer opens it.
    mkfifo(&at("fifo"), Mode::S_IRWXU).unwrap();
    symlink("nowhere", at("dangling")).unwrap();
    symlink("loop", at("loop")).unwrap();

    let not_a_netns = |path: &Path, wanted: &str| match refusal(path) {
        NetnsError::NotANetns { what, .. } => assert_eq!(what, wanted, "{}", path.display()),
        other => panic!("{}: {other}", path.display()),
    };
    not_a_netns(&at("file"), "a regular file");
    not_a_netns(&at("fifo"), "a FIFO");
    not_a_netns(folder.path(), "a directory");
    not_a_netns(Path::new("/dev/null"), "a device");
    not_a_netns(Path::new("/proc/self/ns/mnt"), "another kind of namespace");
    for missing in [at("dangling"), at("nothing"), at("file").join("below"), "".into()] {
        let refusal = refusal(&missing);
        assert!(matches!(refusal, NetnsError::Missing { .. }), "{refusal}");
        assert!(refusal.is_gone());
    }
    let refusal = refusal(&at("loop"));
    assert!(matches!(refusal, NetnsError::Unreadable { .. }) && !refusal.is_gone(), "{refusal}");
}

#[test]
fn work_runs_inside_and_caller_returns() {
    let netns = TestNetns::new();
    let outside = Netns::current().unwrap().id();
    let inside = netns.netns.run(|| Netns::current().unwrap().id()).unwrap();
    assert_eq!(inside, netns.netns.id());
    assert_eq!(Netns::current().unwrap().id(), outside);
}

#[test]
fn nested_namespaces_unwind_in_order() {
    let (one, other) = (TestNetns::new(), TestNetns::new());
    let here = || Netns::current().unwrap().id();
    let within = || (other.netns.run(here).unwrap(), one.netns.run(here).unwrap(), here());
    let one_s = one.netns.id();
    assert_eq!(one.netns.run(within).unwrap(), (other.netns.id(), one_s, one_s));
}

#[test]
fn panic_in_namespace_is_passed_on() {
    let netns = TestNetns::new();
    let outside = Netns::current().unwrap().id();
    let panicking = || netns.netns.run(|| panic!("on purpose"));
    assert!(panic::catch_unwind(AssertUnwindSafe(panicking)).is_err());
    assert_eq!(Netns::current().unwrap().id(), outside);
}

#[test]
fn command_runs_inside_namespace() {
    let netns = TestNetns::new();
    netns.run("ip link add name inside type veth peer name peer");
    let outside = Netns::current().unwrap().id();
    let show = || Netns::command(&netns.path(), "ip").unwrap();
    let output = show().args(["-o", "link", "show", "inside"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(Netns::current().unwrap().id(), outside);
    // The spawning thread may be another one, and the command may be spawned again.
    let mut command = show();
    command.args(["-o", "link", "show", "inside"]);
    let statuses = std::thread::scope(|scope| {
        scope.spawn(|| [(); 2].map(|()| command.output().unwrap().status)).join().unwrap()
    });
    assert!(statuses.iter().all(std::process::ExitStatus::success), "{statuses:?}");
}

#[test]
fn command_without_namespace_is_not_spawned() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    for (path, wanted) in [
        (folder.path().join("missing"), Errno::ENOENT),
        (file, Errno::EINVAL),
        ("/proc/self/ns/mnt".into(), Errno::EINVAL),
    ] {
        let error = Netns::command(&path, "true").unwrap().spawn().unwrap_err();
        assert_eq!(error.raw_os_error(), Some(wanted as i32), "{}: {error}", path.display());
    }
    let with_zero = Path::new("a\0b");
    assert_eq!(Netns::command(with_zero, "true").unwrap_err().kind(), ErrorKind::InvalidInput);
}

#[test]
fn sysctls_belong_to_the_threads_namespace() {
    let netns = TestNetns::new();
    netns.run("ip link add name vf type veth peer name rep");
    let set = || set_sysctl(Family::V4, "vf", "arp_notify", "1");
    netns.netns.run(set).unwrap().unwrap();
    let shown = netns.run("sysctl -n net.ipv4.conf.vf.arp_notify");
    assert_eq!(shown.trim(), "1");
    assert!(set().unwrap_err().is_not_found(), "it is set in the namespace alone");
}
