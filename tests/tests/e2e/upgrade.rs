//! Either program is replaced by another binary while pods run.

use std::{fs, process::Stdio};

use e2e::{
    Lab, Netns, Settings,
    scenarios::{figure, pods::addresses},
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

/// Stops or kills the agent or the service and starts it from another path, while one pod pings another.
fn replaced(replace: impl FnOnce(&mut Lab)) {
    let mut lab = Lab::start(&Settings::default());
    let (a, b) = (Netns::new("a"), Netns::new("b"));
    let _ = lab.add("blue", &a, "eth0").result();
    let of_b = addresses(&lab.add("blue", &b, "eth0").result());
    let mut pinging = a.command("ping");
    pinging.args(["-n", "-q", "-i", "0.02", "-W", "2", &of_b[0]]);
    let pinging = pinging.stdout(Stdio::piped()).spawn().unwrap();

    replace(&mut lab);
    lab.wait_until_good();
    kill(Pid::from_raw(pinging.id().try_into().unwrap()), Signal::SIGINT).unwrap();
    let output = pinging.wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let mut counts = text.split_whitespace().filter_map(|word| word.parse::<u32>().ok());
    let (sent, received) = (counts.next().unwrap(), counts.next().unwrap());
    // The answer to the last ping may be on its way.
    assert!(sent > 1 && received + 1 >= sent, "{text}");

    assert_eq!(lab.add("blue", &b, "eth0").result()["ips"][0]["address"], of_b[0].clone() + "/16");
    let c = Netns::new("c");
    let _ = lab.add("blue", &c, "eth0").result();
    lab.assert_invariants();
    for pod in [&a, &b, &c] {
        lab.del("blue", pod, "eth0").nothing();
    }
    lab.assert_clean_slate();
    figure(1, "programs replaced under running pods");
}

/// Installs a copy of a program at the path of its next start, like the next version.
fn install(lab: &Lab, name: &str) {
    let folder = lab.path().join("bin");
    fs::create_dir_all(&folder).unwrap();
    fs::copy(e2e::program(name), folder.join(name)).unwrap();
}

#[test]
fn service_is_replaced_under_running_pods() {
    replaced(|lab| {
        install(lab, "dpu-service");
        lab.service.stop();
        lab.start_service();
    });
}

#[test]
fn killed_service_is_replaced_under_pods() {
    replaced(|lab| {
        install(lab, "dpu-service");
        lab.service.crash();
        lab.start_service();
    });
}

#[test]
fn agent_is_replaced_under_running_pods() {
    replaced(|lab| {
        install(lab, "host-shim-agent");
        lab.agent.stop();
        lab.start_agent();
    });
}
