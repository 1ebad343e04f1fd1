//! VFs of a real driver that a kubelet assigns.

use std::process::Command;

use e2e::{Kubelet, Netns, run, wait_for};
use serde_json::json;

use super::{
    card::run_ok,
    drivers::OPEN_DEVICE,
    lab::{LIMIT, Lab},
};

/// A container's view of devices: these nodes in its own /dev, and /dev/null, from which perl reads its program.
const CONTAINER: &str = r#"
set -e
NODES="$NODES /dev/null"
mkdir /tmp/nodes
for node in $NODES; do
    cp --archive "$node" "/tmp/nodes/${node##*/}"
done
mount -t tmpfs tmpfs /dev
mkdir /dev/vfio
for node in $NODES; do
    cp --archive "/tmp/nodes/${node##*/}" "$node"
done
[ "$(find /dev -type c | wc -l)" = 3 ]
exec perl -e "$PROGRAM" "$GROUP" "$VF"
"#;

#[test]
fn container_opens_its_vfio_vf() {
    let kubelet = Kubelet::start();
    let lab = Lab::of_kubelet(2, &kubelet);
    run_ok("modprobe", &["vfio-pci"]);
    let address = lab.card.vf_address(1);
    lab.card.bind(1, "vfio-pci");
    let registered = kubelet.registered();
    kubelet.wait_for_device(&registered, &address, "Healthy");
    wait_for("a VF without a netdev", LIMIT, || {
        (lab.is_free(&address) && lab.vf_in(&lab.host, 1).is_none()).then_some(())
    });
    let nodes = kubelet.allocate(&registered, &[&address]).unwrap();
    let nodes: Vec<_> = nodes.into_iter().map(|node| node.host_path).collect();
    let [group, vfio] = &nodes[..] else { panic!("{nodes:?}") };
    assert_eq!(vfio, "/dev/vfio/vfio");

    let pod = Netns::new("pod");
    let pinned = json!({ "runtimeConfig": { "deviceID": address } });
    let result = lab.call_with("ADD", "blue", &pod, &pinned).result();
    assert_eq!(result["interfaces"][0]["pciID"], address.as_str(), "{result}");
    let mut container = Command::new("unshare");
    container.args(["--mount", "--propagation", "private", "sh", "-c"]);
    container.arg(format!("mount -t tmpfs tmpfs /tmp; {CONTAINER}"));
    container.env("NODES", nodes.join(" ")).env("PROGRAM", OPEN_DEVICE);
    let opened = run(container.env("GROUP", group).env("VF", &address));
    assert_eq!(String::from_utf8_lossy(&opened.stdout), "open\n", "{opened:?}");
    lab.call_with("DEL", "blue", &pod, &pinned).nothing();
    lab.wait_for_free(2);

    // A VF with a netdev needs no node.
    let other = lab.card.vf_address(0);
    kubelet.wait_for_device(&registered, &other, "Healthy");
    assert_eq!(kubelet.allocate(&registered, &[&other]).unwrap(), []);
}
