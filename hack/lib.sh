# Shared by the scripts in hack/. Sourced, never run.
# shellcheck shell=bash

# The programs refuse folders that other users may write, which a umask of 002 would create.
umask 022

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# Debian's ordinary users do not have these folders in PATH, but ip, tc and nft are there.
PATH=$PATH:/usr/sbin:/sbin
# Additional features of the packaged programs.
FEATURES=host-shim/otlp,dpu-service/otlp
PROGRAMS=(virtual-nic dpu-service host-shim host-shim-agent dpuctl)

say() { printf '%s\n' "$*"; }
warn() { printf '%s\n' "$*" >&2; }
die() { warn "${0##*/}: $*"; exit 1; }

# Prints the script's leading comment, which is its help text.
usage() { sed -n '2,/^[^#]/{s/^# \{0,1\}//p}' "$0"; }

# wants_help ARGUMENT...: whether any of them asks for help.
wants_help() {
    local argument
    for argument in "$@"; do
        case $argument in -h | --help) return 0 ;; esac
    done
    return 1
}

# no_more ARGUMENT...: ends the script if there is any.
no_more() { (($# == 0)) || die "unknown argument $1; see hack/${0##*/} --help"; }

# number OPTION VALUE: prints the value if it is a whole number of at least 1.
number() {
    [[ ${2:-} =~ ^[1-9][0-9]{0,17}$ ]] || die "$1 needs a number from 1 on; see hack/${0##*/} --help"
    say "$2"
}

# The page that hack/reliability writes, relative to the repository.
RELIABILITY=docs/RELIABILITY.md

# commit: prints the built commit, which figures name as their source. Changes in the page of figures do not count.
commit() {
    local commit changed
    commit=$(git -C "$ROOT" rev-parse --short=10 HEAD 2>/dev/null) || { say "unknown" && return; }
    changed=$(git -C "$ROOT" status --porcelain -- . ":!$RELIABILITY")
    say "$commit${changed:+ with changes}"
}

# The folder of the built programs: OFFLOAD_BIN_DIR, or cargo's folder for builds of that profile.
bin_dir() {
    if [[ -n ${OFFLOAD_BIN_DIR:-} ]]; then
        say "$OFFLOAD_BIN_DIR"
    else
        say "${CARGO_TARGET_DIR:-$ROOT/target}/$1"
    fi
}

# build_programs PROFILE: builds the programs, unless OFFLOAD_BIN_DIR names a folder with them. The profile release
# includes the static plugin.
build_programs() {
    local program packages=()
    if [[ -n ${OFFLOAD_BIN_DIR:-} ]]; then
        for program in "${PROGRAMS[@]}"; do
            [[ -x $OFFLOAD_BIN_DIR/$program ]] || die "no $program in OFFLOAD_BIN_DIR=$OFFLOAD_BIN_DIR"
        done
        return
    fi
    command -v cargo >/dev/null || die "cargo is missing: install Rust from https://rustup.rs"
    need cc=build-essential || exit 1
    for program in "${PROGRAMS[@]}"; do packages+=(--bin "$program"); done
    (cd "$ROOT" && cargo build --profile "$1" --locked --features "$FEATURES" "${packages[@]}") || die "the build failed"
    [[ $1 != release ]] || add_static_plugin "$(bin_dir release)"
}

# add_static_plugin FOLDER: runtimes start the plugin for every call, and loading libraries takes most of its time. A
# static program loads none.
add_static_plugin() {
    local static
    if static=$("$ROOT/hack/cross" --only host-shim "$(uname -m)"); then
        # Replace the file instead of writing into it: cargo has hard links to it.
        install -m 755 "$static/host-shim" "$1/host-shim"
    else
        warn "THE PLUGIN IS NOT STATIC (see the line above): each ADD and DEL takes about 1 ms longer"
    fi
}

# is_static PROGRAM: whether it needs no library. Reads all of readelf's output: with a closed pipe readelf would fail,
# and the pipeline with it, as without a match.
is_static() { ! readelf --program-headers --dynamic "$1" | grep -E 'INTERP|NEEDED' >/dev/null; }

# need COMMAND=PACKAGE...: installs missing commands as root with apt-get. Otherwise it prints what is missing.
need() {
    local pair missing=() packages=()
    for pair in "$@"; do
        command -v "${pair%%=*}" >/dev/null && continue
        missing+=("${pair%%=*}")
        packages+=("${pair##*=}")
    done
    ((${#missing[@]})) || return 0
    install_packages "${packages[@]}" && return 0
    warn "missing: ${missing[*]}; install the packages ${packages[*]}"
    return 1
}

# install_packages PACKAGE...: whether they could be installed. This needs root and apt-get.
install_packages() {
    ((EUID == 0)) && command -v apt-get >/dev/null || return 1
    warn "installing $* (apt-get)"
    export DEBIAN_FRONTEND=noninteractive
    # Another installation may be running.
    local install=(apt-get -o DPkg::Lock::Timeout=300 install -qy --no-install-recommends)
    { "${install[@]}" "$@" || { apt-get update -q && "${install[@]}" "$@"; }; } >/dev/null </dev/null
}

# Runs a command as root of private network, mount and process namespaces, with an empty /run. When the command ends or
# is interrupted, the kernel removes everything inside. An ordinary user also gets a user namespace, and so does root
# with OFFLOAD_USERNS=1 if the kernel allows it.
in_private_namespaces() {
    local user=(--user --map-root-user) entry='mount -t tmpfs -o mode=755 tmpfs /run && exec "$@"'
    if ((EUID == 0)) && ! { [[ ${OFFLOAD_USERNS:-0} == 1 ]] && unshare "${user[@]}" true 2>/dev/null; }; then
        user=()
    fi
    unshare "${user[@]}" --net --mount --pid --fork --kill-child --mount-proc \
        bash -c "$entry" private "$@"
}

# over FOLDER LOWER: writes to the folder stay in the memory of this mount namespace.
over() {
    mkdir -p "/run/overlay$1"/{upper,work}
    mount -t overlay -o "lowerdir=$2,upperdir=/run/overlay$1/upper,workdir=/run/overlay$1/work" overlay "$1"
}

# remove_cgroups NAME: control groups belong to no namespace and outlive the processes of one.
remove_cgroups() {
    find /sys/fs/cgroup -depth -type d \( -path "*/$1" -o -path "*/$1/*" \) -exec rmdir {} + 2>/dev/null || true
}

# Prints why private namespaces are not available, if so.
probe_private_namespaces() {
    local reason
    reason=$(in_private_namespaces true 2>&1) && return 0
    warn "this kernel or container allows no private namespaces (${reason//$'\n'/; }): run as root, or allow user namespaces"
    return 1
}

# wait_until SECONDS WHAT COMMAND...: waits until the command succeeds.
wait_until() {
    local end=$((${EPOCHREALTIME/[^0-9]/} + $1 * 1000000)) what=$2
    shift 2
    until "$@" >/dev/null 2>&1; do
        ((${EPOCHREALTIME/[^0-9]/} < end)) || { warn "gave up waiting for $what"; return 1; }
        sleep 0.02
    done
}

# gone PROCESS: whether it has ended with all its threads, even if it is a zombie.
gone() {
    local threads=("/proc/$1/task/"*)
    [[ ! -e /proc/$1 ]] ||
        { ((${#threads[@]} == 1)) && [[ $(awk '/^State/ {print $2}' "/proc/$1/status" 2>/dev/null) == Z ]]; }
}

# Milliseconds since an earlier $EPOCHREALTIME.
ms_since() { say $(((${EPOCHREALTIME/[^0-9]/} - ${1/[^0-9]/}) / 1000)); }

in_netns() { nsenter --net="/run/netns/$1" "${@:2}"; }

# dpu_name NUMBER: dpu-1, or with OFFLOAD_LAB_DPU=dpu-node dpu-node-1.
dpu_name() { say "${OFFLOAD_LAB_DPU:-dpu}-$1"; }

# make_pki DIR [DPUS]: a development CA with certificates for host node-1, DPU dpu-1 and operator admin, or for that
# many DPUs with a host each.
make_pki() {
    local number
    "$BIN/dpuctl" pki init --dir "$1" --trust-domain dpu-offload.local >/dev/null
    for ((number = 1; number <= ${2:-1}; number++)); do
        "$BIN/dpuctl" pki issue host "node-$number" --dir "$1" >/dev/null
        "$BIN/dpuctl" pki issue dpu "$(dpu_name "$number")" --dir "$1" >/dev/null
    done
    "$BIN/dpuctl" pki issue operator admin --dir "$1" >/dev/null
}

# tls_section PKI NAME
tls_section() {
    cat <<TOML
[tls]
ca = "$1/ca.crt"
certificate = "$1/$2.crt"
key = "$1/$2.key"
trust_domain = "dpu-offload.local"
TOML
}

FABRICS=(bridge ovs)

# known_fabric NAME: prints the name if the fabric exists.
known_fabric() {
    [[ " ${FABRICS[*]} " == *" ${1:-} "* && -n ${1:-} ]] || die "--fabric needs one of ${FABRICS[*]}"
    say "$1"
}

# need_fabric NAME: installs what the fabric needs. Prints what is not available.
need_fabric() {
    [[ $1 == ovs ]] || return 0
    need ovs-vswitchd=openvswitch-switch ethtool=ethtool || return 1
    [[ -c /dev/net/tun ]] && : 2>/dev/null <>/dev/net/tun && return 0
    warn "--fabric ovs needs /dev/net/tun, which can't be opened: run as root, or see that it is there and open to this user"
    return 1
}

# start_open_vswitch DIR NETNS: with sockets in DIR and the userspace datapath, which works on any kernel.
start_open_vswitch() {
    export OVS_RUNDIR=$1 OVS_LOGDIR=$1 OVS_DBDIR=$1
    local quiet=(-vconsole:off -vsyslog:off --no-chdir --pidfile --detach)
    mkdir -p "$1"
    [[ -e $1/conf.db ]] || ovsdb-tool create "$1/conf.db" /usr/share/openvswitch/vswitch.ovsschema
    in_netns "$2" ovsdb-server "${quiet[@]}" --log-file="$1/ovsdb-server.log" --remote="punix:$1/db.sock" "$1/conf.db" &&
        ovs-vsctl --db="unix:$1/db.sock" --no-wait init &&
        in_netns "$2" ovs-vswitchd "${quiet[@]}" --log-file="$1/ovs-vswitchd.log" --disable-system "unix:$1/db.sock"
}

# fabric_keys DIR FABRIC [ONE_OF_TWO]: the keys of the section [fabric].
fabric_keys() {
    say "driver = \"$2\""
    say 'bridge = "br-offload"'
    [[ $2 != ovs ]] || printf '%s\n' "database = \"$1/vswitch/db.sock\"" 'datapath = "netdev"'
    [[ ! ${3:-} ]] || say 'uplinks = ["p0"]'
}

# The halves of the subnets in the tests' networks.
declare -A HALVES=(
    [10.1.0.0/16]="10.1.0.0/17 10.1.128.0/17"
    [fd00:10:1::/64]="fd00:10:1::/65 fd00:10:1:0:8000::/65"
    [10.2.0.0/24]="10.2.0.0/25 10.2.0.128/25"
    [fd00:10:2::/64]="fd00:10:2::/65 fd00:10:2:0:8000::/65"
    [10.4.0.0/30]="10.4.0.0/31 10.4.0.2/31"
)

# networks [ONE_OF_TWO]: the tests' networks. Each of two DPUs leaves half of each subnet to the other.
networks() {
    local line halves
    while IFS= read -r line; do
        say "$line"
        [[ ${1:-} && $line =~ ^cidr\ =\ \"(.*)\"$ ]] || continue
        [[ -n ${HALVES[${BASH_REMATCH[1]}]:-} ]] || die "which are the halves of ${BASH_REMATCH[1]}?"
        read -ra halves <<<"${HALVES[${BASH_REMATCH[1]}]}"
        say "exclude = [\"${halves[2 - $1]}\"]"
    done <"$ROOT/tests/fixtures/networks.toml"
}

# write_service_config DIR VFS [CARD [FABRIC [ONE_OF_TWO]]]: with the tests' networks. ONE_OF_TWO is for the first or
# second of two DPUs that a wire connects.
write_service_config() {
    local driver=veth number=${5:-1}
    [[ ${3:-veth} == veth ]] || driver=devlink
    cat >"$1/dpu-service.toml" <<TOML
listen = "0.0.0.0:7443"
state_dir = "$1/state/service"

$(tls_section "$1/pki" "dpu-$(dpu_name "$number")")

[eswitch]
driver = "$driver"

[fabric]
$(fabric_keys "$1" "${4:-bridge}" "${5:-}")

[[host]]
name = "node-$number"
pfs = ["p0"]

[[pool]]
name = "default"
select = ["p0#0-$(($2 - 1))"]

$(networks "${5:-}")
TOML
}

# write_agent_config DIR [NUMBER]
write_agent_config() {
    local number=${2:-1}
    cat >"$1/host-shim.toml" <<TOML
socket = "$1/agent.sock"
state_dir = "$1/state/agent"
pod_locks = "$1/pods.lock"

[dpu]
endpoint = "192.168.100.2:7443"
name = "$(dpu_name "$number")"

$(tls_section "$1/pki" "host-node-$number")

[vf_source]
kind = "virtual"
TOML
}

# write_dpuctl_config DIR ENDPOINT [NUMBER]
write_dpuctl_config() {
    cat >"$1/dpuctl.toml" <<TOML
endpoint = "$2"
dpu = "$(dpu_name "${3:-1}")"

$(tls_section "$1/pki" operator-admin)
TOML
}

# write_conflist DIR NETWORK
write_conflist() {
    cat >"$1/$2.conflist" <<JSON
{
  "cniVersion": "1.0.0",
  "cniVersions": ["0.4.0", "1.0.0", "1.1.0"],
  "name": "$2",
  "plugins": [
    {
      "type": "host-shim",
      "agentSocket": "$1/agent.sock",
      "capabilities": {
        "mac": true,
        "ips": true,
        "bandwidth": true,
        "dns": true,
        "portMappings": true,
        "deviceID": true,
        "CNIDeviceInfoFile": true,
        "io.kubernetes.cri.pod-annotations": true
      }
    }
  ]
}
JSON
}

# plug_card HOST_NETNS DPU_NETNS VFS LOG CARD FABRIC: the software card; the process stays, $! is its id.
plug_card() {
    local checksums=()
    [[ $6 != ovs || $5 != veth ]] || checksums=(--whole-checksums)
    in_netns "$2" true && in_netns "$1" true
    setsid nsenter --net="/run/netns/$2" "$BIN/virtual-nic" plug --host-netns "$1" --dpu-netns "$2" --vfs "$3" \
        --kind "$5" "${checksums[@]}" </dev/null >>"$4" 2>&1 &
}

# start_program NETNS LOG PROGRAM ARGUMENTS...: in the background; $! is its id.
start_program() {
    setsid nsenter --net="/run/netns/$1" "$BIN/$3" "${@:4}" </dev/null >>"$2" 2>&1 &
}

# cni VERB SOCKET NETWORK [CONTAINER NETNS INTERFACE]: runs the plugin like a runtime, with that agent.
cni() {
    printf '{"cniVersion":"1.1.0","name":"%s","type":"host-shim","agentSocket":"%s"}' "$3" "$2" |
        CNI_COMMAND=$1 CNI_PATH=$BIN CNI_CONTAINERID=${4:-} CNI_NETNS=${5:+/run/netns/$5} CNI_IFNAME=${6:-} \
            "$BIN/host-shim"
}
