//! Behaviour of podman only: a container's own address, a container that stops and starts, and a network that is
//! reloaded.

use e2e::{
    Lab, Settings,
    runtime::{Podman, Runtime},
};

#[test]
fn podman_container_keeps_requested_address() {
    let lab = Lab::start(&Settings::default());
    let podman = Podman::install(&lab);
    let wished = ["--ip", "10.1.9.10", "--mac-address", "02:00:00:00:09:10"];
    let id = podman.run_with("pod", &wished).unwrap();
    let attachment = || lab.operator().get("attachments").pop().unwrap();
    for _ in 0..2 {
        assert_eq!(attachment()["addresses"][0]["address"], "10.1.9.10/16");
        assert_eq!(attachment()["mac"], "02:00:00:00:09:10");
        podman.output(&["restart", "--time", "0", &id]).unwrap();
    }
    podman.remove(&id).unwrap();
    lab.assert_clean_slate();
}

#[test]
fn podman_network_reload_keeps_network() {
    let lab = Lab::start(&Settings::default());
    let podman = Podman::install(&lab);
    let id = podman.run("pod").unwrap();
    let held = || {
        let one = lab.operator().get("attachments").pop().unwrap();
        [one["addresses"].clone(), one["mac"].clone()]
    };
    let before = held();
    for _ in 0..2 {
        podman.output(&["network", "reload", &id]).unwrap();
        assert_eq!(held(), before);
    }
    podman.remove(&id).unwrap();
    lab.assert_clean_slate();
}
