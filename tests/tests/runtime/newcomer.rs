//! A newcomer's steps as the pages describe them: packages, certificates, configurations, containerd, and a container
//! with connectivity in both directions.

use std::{env, fs, process::Command};

use e2e::run;

use crate::{
    copy::COPY,
    making,
    pages::{page, reported, shown, writes},
};

/// Runs a script in the copy, with its own namespaces. A plain chroot would not survive runc's own mounts.
const RUN: &str = r#"
mount --rbind /dev dev
mount -t proc proc proc
mount -t sysfs sysfs sys
mount --rbind /sys/fs/cgroup sys/fs/cgroup
mount -t tmpfs tmpfs run
pivot_root . before
cd /made
umount --lazy /before
exec bash -e ./script
"#;

/// What the pages leave to the system: a way to wait.
const BEFORE: &str = r#"
export CONTAINERD_SNAPSHOTTER=native DEBIAN_FRONTEND=noninteractive
wait_until() {
    local end=$((SECONDS + 30))
    until eval "$1" >/dev/null 2>&1; do
        ((SECONDS < end)) || { echo "still not: $1" && tail -n 20 /tmp/*.log && exit 1; }
        sleep 0.1
    done
}
on_host() { ip netns exec host "$@"; }
apt-get install -y --no-install-recommends ./*.deb
"#;

/// The uplink of the page's DPU, and the world behind it.
const WORLD: &str = "
ip netns add world
ip link add oob_net0 netns dpu type veth peer name eth0 netns world
for side in 'dpu oob_net0 198.51.100.2/24' 'world eth0 198.51.100.1/24' 'world lo 203.0.113.9/32'; do
    set -- $side
    ip -n $1 address add $3 dev $2
    ip -n $1 link set $2 up
done
ip -n dpu route add default via 198.51.100.1
";

/// The page shows the host's certificates; these are the same commands for the DPU and the operator.
const OTHER_CERTIFICATES: &str = "
for kind in crt key; do
    cp -p dpu-dpu-1.$kind /etc/dpu-offload/tls/dpu.$kind
    cp -p operator-admin.$kind /etc/dpu-offload/tls/operator.$kind
done
cd ..
";

/// Replaces an init system.
const START: &str = "
ip netns exec dpu dpu-service --config /etc/dpu-offload/dpu-service.toml >/tmp/service.log 2>&1 &
ip netns exec host host-shim-agent --config /etc/dpu-offload/host-shim.toml >/tmp/agent.log 2>&1 &
nsenter --net=/run/netns/host containerd >/tmp/containerd.log 2>&1 &
wait_until 'on_host dpuctl status && on_host ip link show offload0'
wait_until 'ctr version'
ctr -n default images import image.tar
";

/// The host probes a container, which reaches the world, also after an upgrade of the package.
const TRY: &str = r#"
ctr run --cni --detach --cgroup "$OFFLOAD_RUNTIMES_CGROUP/newcomer" localhost/pod:1 web
pod() { on_host dpuctl get attachments -o json | jq -r '.attachments[] | select(.key.interfaceName == "eth0")'; }
reaches_the_world() { ctr task exec --exec-id "$RANDOM" web /bin/ping -c 1 -W 1 203.0.113.9; }
wait_until '[ "$(pod | jq -r .state)" = ATTACHMENT_STATE_ATTACHED ]'
address=$(pod | jq -r '.addresses[0].address')
wait_until 'on_host ping -c 1 -W 1 "${address%/*}"'
wait_until reaches_the_world
on_host dpuctl doctor
apt-get install -y --reinstall ./dpu-offload-host_*.deb
reaches_the_world
ctr task kill --signal KILL web
wait_until 'ctr containers rm web'
wait_until '[ -z "$(pod)" ]'
on_host dpuctl doctor
echo the pod was there
"#;

/// All steps of the pages, in their order.
fn script() -> String {
    let [installation, connectivity, containerd] =
        ["INSTALLATION.md", "CONNECTIVITY.md", "runtimes/containerd.md"].map(page);
    let (_, certificates) = installation.split_once("\n## Certificates\n").unwrap();
    let card = shown(&installation, "virtual-nic plug --host-netns host --dpu-netns dpu --pfs");
    let cni = shown(&containerd, r#"[plugins."io.containerd.grpc.v1.cri".cni]"#);
    [
        BEFORE,
        &format!("{} >/tmp/card.log 2>&1 &\n", card.trim_end()),
        "wait_until 'grep plugged /tmp/card.log'\n",
        WORLD,
        &shown(certificates, "pki init"),
        "cd pki\n",
        &shown(&installation, "install -D -m 644 ca.crt"),
        OTHER_CERTIFICATES,
        &writes("/etc/dpu-offload/dpu-service.toml", &shown(&connectivity, "# dpu-service.toml")),
        &writes("/etc/dpu-offload/host-shim.toml", &shown(&connectivity, "# host-shim.toml")),
        "mkdir -p /etc/containerd\n",
        &reported(&containerd, "install -D -m 644"),
        "\n",
        &writes("/etc/containerd/config.toml", &format!("version = 2\n{cni}")),
        START,
        TRY,
    ]
    .concat()
}

#[test]
fn documented_steps_give_a_connected_container() {
    let made = making::Made::of_programs();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("script");
    fs::write(&path, script()).unwrap();
    let mut copy = Command::new("unshare");
    copy.args(["--mount", "--net", "--pid", "--fork", "--kill-child", "bash", "-c"]);
    copy.arg([COPY, RUN].concat()).arg("copy");
    copy.args(made.debs()).arg(&path).arg(env::var_os("OFFLOAD_RUNTIMES_IMAGE").unwrap());
    // The installed programs must be used.
    let output = run(copy.env_remove("OFFLOAD_BIN_DIR"));
    let printed = making::text(&output);
    assert!(output.status.success() && printed.contains("the pod was"), "{printed}");
}
