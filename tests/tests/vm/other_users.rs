//! Other users of the host. Only here they are real: the namespaces of the other tests have a single user.

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
    path::Path,
    process::Command,
};

use e2e::{Answer, Call, Lab, Settings, program};
use nix::sys::stat::{Mode, umask};

/// User ID of `nobody`.
const OTHER_USER: &str = "65534";

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

/// STATUS by a plugin that another user has started.
fn status_as_other_user(lab: &Lab) -> Answer {
    // Other users may not have access to the build folder.
    let plugin = lab.path().join("host-shim");
    fs::copy(program("host-shim"), &plugin).unwrap();
    let mut command = Command::new("setpriv");
    command.args(["--reuid", OTHER_USER, "--regid", OTHER_USER, "--clear-groups"]).arg(plugin);
    Call::new("STATUS", &lab.configuration("blue")).execute_command(command)
}

#[test]
fn other_users_are_refused_by_the_socket() {
    let lab = Lab::start_with(&Settings::netdevsim(), |folder| {
        set_mode(folder, 0o755);
        // None of the agent's files denies access to others by itself.
        umask(Mode::empty());
    });
    let reported = "only root";
    status_as_other_user(&lab).fails(50, &["Permission denied", "as root"]);
    assert!(!lab.agent.log().contains(reported), "the socket's mode keeps strangers out");

    set_mode(&lab.socket(), 0o666);
    status_as_other_user(&lab).fails(50, &["AGENT_UNREACHABLE"]);
    assert!(lab.agent.log().contains(reported), "{}", lab.agent.log());
    assert!(lab.status().status.success());
}
