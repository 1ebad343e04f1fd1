//! A machine with a software card under systemd, set up by the pages and booted again.

use std::{fs, process::Command};

use e2e::run;

use crate::{
    copy::COPY,
    making,
    pages::{page, reported, shown, writes},
};

/// Boots the copy twice, with systemd as first process. It ends by a reboot, which the kernel turns into a hangup in a
/// PID namespace (`reboot_pid_ns` in kernel/pid_namespace.c). Units of this machine are not started.
const BOOT: &str = r#"
rm -rf etc/systemd/system/*
mkdir -p etc/systemd/system/multi-user.target.wants
cp made/steps.service etc/systemd/system/
ln -s ../steps.service etc/systemd/system/multi-user.target.wants/
ln -s /dev/null etc/systemd/system/getty.target
# A group of its own in each hierarchy: nothing of the machine's groups is left in those of this machine.
enter_groups() {
    awk '$3 ~ /^cgroup/ { print $2 }' /proc/mounts | while read -r folder; do
        for group in "$folder/$OFFLOAD_RUNTIMES_CGROUP" "$folder/$OFFLOAD_RUNTIMES_CGROUP/machine"; do
            mkdir -p "$group"
            # A new group of version 1 has no processors.
            for file in cpuset.cpus cpuset.mems; do
                [ ! -e "$group/$file" ] || cat "$group/../$file" >"$group/$file" || true
            done
        done
        echo "$1" >"$group/cgroup.procs"
    done
}
for boot in first second; do
    cp "made/$boot" made/steps
    status=0
    (
        enter_groups "$BASHPID"
        exec unshare --mount --pid --fork --kill-child --net --uts --ipc --cgroup bash -e made/boot
    ) || status=$?
    cat made/log
    [ $status = 129 ] || { echo "the $boot boot ended with $status" && tail -n 30 made/console && exit 1; }
done
"#;

/// Becomes the first process of a machine, with this machine's control group hierarchies.
const FIRST_PROCESS: &str = r#"
mount -t tmpfs tmpfs dev
for node in null zero full random urandom tty; do
    touch "dev/$node"
    mount --bind "/dev/$node" "dev/$node"
done
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=666 devpts dev/pts
ln -s pts/ptmx dev/ptmx
mount -t proc proc proc
# Each boot has an id of its own, as on a machine.
cat proc/sys/kernel/random/uuid >dev/boot_id
mount --bind dev/boot_id proc/sys/kernel/random/boot_id
mount -t sysfs sysfs sys
mount -t tmpfs tmpfs sys/fs/cgroup
awk '$3 ~ /^cgroup/ { count = split($4, options, ","); print $2, $3, options[count] }' /proc/mounts |
    while read -r folder type option; do
        mkdir -p ".$folder"
        case $type:$option in
            cgroup2:*) mount -t cgroup2 cgroup2 ".$folder" ;;
            *:name=*) mount -t cgroup -o "none,$option" cgroup ".$folder" ;;
            *) mount -t cgroup -o "$option" cgroup ".$folder" ;;
        esac
    done
mount -t tmpfs tmpfs run
pivot_root . before
umount --lazy /before
export container=copy
exec /lib/systemd/systemd --unit=multi-user.target --log-target=console --show-status=0 </dev/null >/made/console 2>&1
"#;

const STEPS: &str = "
[Unit]
Description=what the pages have a person type
After=multi-user.target
SuccessAction=reboot
FailureAction=exit-force

[Service]
Type=oneshot
TimeoutStartSec=120
WorkingDirectory=/made
Environment=HOME=/root DEBIAN_FRONTEND=noninteractive
ExecStart=/bin/bash -ex /made/steps
StandardOutput=truncate:/made/log
StandardError=inherit
";

/// A page's commands without downloads of Debian's packages, which are installed.
fn without_downloads(commands: &str) -> String {
    let is_download = |line: &&str| line.starts_with("apt-get install") && !line.contains("./");
    commands.lines().filter(|line| !is_download(line)).map(|line| format!("{line}\n")).collect()
}

/// The section of containerd's page.
fn pod_that_answers() -> String {
    let containerd = page("runtimes/containerd.md");
    let (_, section) = containerd.split_once("\n## A pod that answers a ping\n").unwrap();
    without_downloads(&(shown(section, "ctr run") + &shown(section, "ctr task delete")))
}

fn first_boot() -> String {
    let containerd = page("runtimes/containerd.md");
    let cni = shown(&containerd, r#"[plugins."io.containerd.grpc.v1.cri".cni]"#);
    [
        &without_downloads(&shown(&page("INSTALLATION.md"), "enable --now dpu-offload-card")),
        "mkdir -p /etc/containerd\n",
        &writes("/etc/containerd/config.toml", &format!("version = 2\n{cni}")),
        &reported(&containerd, "install -D -m 644"),
        // Like its package does.
        "\nsystemctl enable containerd\n",
        &reported(&containerd, "systemctl restart containerd"),
        "\n",
        &pod_that_answers(),
    ]
    .concat()
}

/// The card's program is killed and leaves its links. Its unit removes them and plugs in a new card, and the agent
/// configures the host port again.
const KILLED_CARD: &str = r#"
systemctl kill --signal=KILL dpu-offload-card
timeout 60 bash -c '
    until [ "$(systemctl show -P NRestarts dpu-offload-card)" = 1 ] && systemctl is-active -q dpu-offload-card; do
        sleep 0.1
    done
    until ip -4 -o address show offload0 | grep -q inet; do sleep 0.1; done'
"#;

/// The agent resets the VFs of a card that replaces another in the same boot, before it offers them.
const FREE_VF: &str =
    "timeout 60 bash -c 'until dpuctl get vfs | grep -qw Free; do sleep 0.1; done'\n";

fn second_boot() -> String {
    let installation = page("INSTALLATION.md");
    let steps = shown(&installation, "enable --now dpu-offload-card");
    let pod = pod_that_answers();
    let connected = steps.lines().last().unwrap();
    format!("{connected}\n{pod}{KILLED_CARD}{FREE_VF}{pod}")
}

#[test]
fn software_card_serves_pods_after_reboot_and_kill() {
    let made = making::Made::of_programs();
    let folder = tempfile::tempdir().unwrap();
    let files = [
        ("boot", FIRST_PROCESS.to_owned()),
        ("steps.service", STEPS.to_owned()),
        ("first", first_boot()),
        ("second", second_boot()),
    ];
    let mut copy = Command::new("unshare");
    copy.args(["--mount", "--kill-child", "--fork", "bash", "-c"]);
    copy.arg([COPY, BOOT].concat()).arg("copy").args(made.debs());
    for (name, text) in files {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        copy.arg(path);
    }
    // The installed programs must be used.
    let output = run(copy.env_remove("OFFLOAD_BIN_DIR"));
    let printed = making::text(&output);
    assert!(output.status.success(), "{printed}");
    assert_eq!(printed.matches("3 packets transmitted, 3 received").count(), 3, "{printed}");
}
