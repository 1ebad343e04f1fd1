# The tiers: what each needs, and which profiles of hack/test.d/selection it runs. Sourced by hack/test, never run. A
# function tier_NAME runs the tier of its argument: NAME or NAME-short.
# shellcheck shell=bash

# Time limit for the tests in one virtual machine.
VM_SECONDS=1500

tier_check() {
    check "formatting" cargo fmt --all --check
    units_are_checked
    build_once || return 0
}

tier_unit() {
    build_once || return 0
    # Many wait for certificates to expire and for other times.
    NEXTEST_TEST_THREADS=$((2 * $(nproc))) run_tests unit "tests without privileges"
    [[ $NAME ]] || { title "doc tests" && doc_tests; }
}

tier_model() { build_once && run_tests model "large state spaces of the protocol's model" || return 0; }

tier_netns() {
    namespaces_are_there || { cannot_run netns && return; }
    build_once || return 0
    local omitted=
    has_open_vswitch || { ovs_is_missing netns && omitted=needs-ovs; }
    OMITTED=$omitted in_namespaces netns "tests in private network namespaces"
}

tier_long() {
    namespaces_are_there || { cannot_run "$1" && return; }
    build_once || return 0
    [[ $1 != *-short ]] || { in_namespaces "$1" "kills, cuts, renewals, breakages, soak" && return; }
    tools_of_long_are_there || { cannot_run "$1" && return; }
    check "the example of the Go package" silent hack/go-cni example
    check "the next Debian's go-cni is there" silent hack/go-cni --next prepare
    check "Prometheus is there" silent hack/prometheus
    in_namespaces long "kills, cuts, renewals, breakages, soak, packages, scripts"
}

tier_ovs() {
    namespaces_are_there || { cannot_run ovs && return; }
    has_open_vswitch || { ovs_is_missing ovs && return; }
    build_once || return 0
    OFFLOAD_TEST_FABRIC=ovs in_namespaces ovs "tests on Open vSwitch"
    [[ $NAME ]] || check "the demo on Open vSwitch" hack/demo --fabric ovs
}

tier_ovs-long() {
    namespaces_are_there && need_fabric ovs || { cannot_run "$1" && return; }
    build_once || return 0
    OFFLOAD_TEST_FABRIC=ovs in_namespaces "$1" "more tests on Open vSwitch"
}

tier_demo() {
    namespaces_are_there || { cannot_run demo && return; }
    build_once || return 0
    title "the demo"
    check "the demo as this user" hack/demo
    ((EUID == 0)) || return 0
    check "the demo as an ordinary user" demo_as_nobody
    check "the lab on the machine itself" lab_comes_and_goes
}

tier_rustdoc() {
    title "documentation of the code"
    RUSTDOCFLAGS="-D warnings" check "documentation" cargo doc "${WORKSPACE[@]}" --profile "$PROFILE" --no-deps --lib --quiet
}

tier_dependencies() {
    title "dependencies' licences, sources and advisories"
    command -v cargo-deny >/dev/null || CARGO_PROFILE_DEV_DEBUG=0 cargo install --quiet --locked --debug cargo-deny ||
        { warn "cargo-deny is missing and can't be installed" && cannot_run dependencies && return; }
    check "licences, bans and sources" cargo deny --all-features check licenses bans sources
    # Advisories need their database from the network; everything else must pass wherever this runs.
    if cargo deny --all-features fetch db; then
        check "advisories" cargo deny --all-features check --disable-fetch advisories
    else
        LEFT_OUT+=("advisories: their database can't be reached from here")
    fi
}

tier_kubernetes() {
    namespaces_are_there && is_root "a cluster" || { cannot_run "$1" && return; }
    build_once || return 0
    title "making the cluster ready"
    hack/cluster prepare || { cannot_run "$1" && return; }
    make_ahead
    NEXTEST_TEST_THREADS=1 run_tests "$1" "tests of $(hack/cluster versions | paste -sd,)" hack/cluster run
}

# make_ahead: prepares the machines of later tiers while a cluster's tests mostly wait, on otherwise idle processors.
make_ahead() {
    ! { wants vm || wants vm-short || wants vm-ovs || wants vm-ovs-short; } || begin_ahead vm hack/vm prepare
    ! { wants arm || wants arm-short; } || begin_ahead arm hack/arm-dpu programs
}

tier_runtime() {
    local profiles=(runtime-own runtime-next)
    [[ $1 != *-short ]] || profiles=(runtime-next)
    namespaces_are_there && is_root runtimes || { cannot_run "$1" && return; }
    build_once || return 0
    title "making the runtimes ready"
    [[ $1 == *-short ]] || hack/runtimes prepare || { cannot_run "$1" && return; }
    hack/runtimes --next versions | paste -sd, || { cannot_run "$1" && return; }
    title "tests of container runtimes"
    at_once with_runtimes "${profiles[@]}"
}

# with_runtimes PROFILE: replaces this process by the tests on that Debian's runtimes. The runtimes keep their
# namespaces in one folder, so that only one test runs at a time.
with_runtimes() {
    local next=()
    export NEXTEST_TEST_THREADS=1
    [[ $1 != runtime-next ]] || next=(--next)
    exec hack/runtimes "${next[@]}" run "${RUNNER[@]}"
}

tier_vm() {
    build_once && machine_is_ready "$1" || return 0
    title "tests in two virtual machines"
    at_once half_in_vm "$1-1" "$1-2"
}

tier_vm-ovs() {
    build_once && machine_is_ready "$1" || return 0
    title "tests on Open vSwitch with the kernel's datapath, in two virtual machines"
    OFFLOAD_TEST_FABRIC=ovs at_once half_in_vm "$1-1" "$1-2"
}

tier_vm-old() {
    build_once || return 0
    title "making the virtual machine with the old kernel ready"
    hack/vm --old prepare || { cannot_run "$1" && return; }
    title "tests with the old kernel, in two virtual machines"
    at_once in_old_vm vm-old vm-old-ovs
}

# half_in_vm PROFILE: replaces this process by every second test, in a machine of its own. It runs one test at a time
# and keeps one processor busy.
half_in_vm() { in_vm hack/vm "$1"; }

# in_old_vm PROFILE: replaces this process by all tests, in a machine with the old kernel.
in_old_vm() {
    [[ $1 != *-ovs ]] || export OFFLOAD_TEST_FABRIC=ovs
    in_vm "hack/vm --old" "$1"
}

# in_vm MACHINE PROFILE
in_vm() {
    export OFFLOAD_TEST_DATAPATH=system NEXTEST_TEST_THREADS=1
    # shellcheck disable=SC2086 # a command and its option
    exec $1 run --timeout "$VM_SECONDS" --again --share "target/nextest/$2" -- "${RUNNER[@]}"
}

# machine_is_ready TIER
machine_is_ready() {
    [[ ! ${MACHINE_IS_READY:-} ]] || return 0
    title "making the virtual machine ready"
    await_ahead vm
    hack/vm prepare || { cannot_run "$1" && return 1; }
    MACHINE_IS_READY=1
    [[ $NAME ]] || try_vm
}

try_vm() {
    check "the virtual machine passes on output and exit code" vm_passes_on
    [[ ${OFFLOAD_TEST_WHOLE:-} ]] || return 0
    check "the virtual machine's time limit ends it" vm_is_limited
    check "the virtual machine that ends boots again" vm_boots_again 'echo b >/proc/sysrq-trigger'
    check "the virtual machine that stands still boots again" vm_boots_again 'kill -STOP -1' --silence 60
}

tier_arm() {
    namespaces_are_there || { cannot_run "$1" && return; }
    build_once || return 0
    title "making the Arm machine ready"
    await_ahead arm
    hack/arm-dpu fetch || { cannot_run "$1" && return; }
    OFFLOAD_ARM_BIN_DIR=${OFFLOAD_ARM_BIN_DIR:-$(hack/arm-dpu programs)} || { cannot_run "$1" && return; }
    export OFFLOAD_ARM_BIN_DIR
    NEXTEST_TEST_THREADS=1 run_tests "$1" "tests beside an Arm machine" in_private_namespaces
}

tier_mutants() {
    title "faults that a test must find"
    # hack/mutants takes seeds from 1 on.
    local seed=$((OFFLOAD_TEST_SEED + 1))
    check "no mutant of the crates survives" hack/mutants --sample 20 --seed "$seed" crates
    check "no mutant of the registry survives" hack/mutants --sample 4 --seed "$seed" registry
}

# in_namespaces PROFILE WHAT: most of the tests mostly wait. Two per processor leave a third of it idle, three a sixth;
# with four, some are too slow beside other work.
in_namespaces() {
    OFFLOAD_USERNS=1 NEXTEST_TEST_THREADS=$((3 * $(nproc))) run_tests "$1" "$2" in_private_namespaces
}

cannot_run() { fail "the tier $1 cannot run here; a line above says why"; }

# ovs_is_missing TIER: without Open vSwitch a run without arguments continues; a run that names the tier fails.
ovs_is_missing() {
    local why="install the package openvswitch-switch, and see that /dev/net/tun is open to $(id -un)"
    if [[ ${BY_DEFAULT:-} ]]; then
        LEFT_OUT+=("tests of the tier $1 that need Open vSwitch; $why")
    else
        fail "the tier $1 cannot run whole without Open vSwitch: $why"
    fi
}

# has_open_vswitch: whether its bridges with the userspace datapath work, which needs /dev/net/tun.
has_open_vswitch() {
    command -v ovs-vswitchd >/dev/null || install_packages openvswitch-switch || return 1
    [[ -c /dev/net/tun ]] && : 2>/dev/null <>/dev/net/tun
}

namespaces_are_there() {
    need ip=iproute2 bridge=iproute2 tc=iproute2 ethtool=ethtool ping=iputils-ping nft=nftables jq=jq unshare=util-linux \
        setpriv=util-linux openssl=openssl && need_plugins && probe_private_namespaces
}

# need_plugins: CNI plugins for some of the pods' networks. They are not in PATH.
need_plugins() { PATH=$PATH:/usr/lib/cni need macvlan=containernetworking-plugins host-local=containernetworking-plugins; }

tools_of_long_are_there() {
    need dpkg-shlibdeps=dpkg-dev systemctl=systemd debconf-communicate=debconf strip=binutils lintian=lintian protoc=protobuf-compiler \
        ovs-vswitchd=openvswitch-switch curl=curl && need_grpcio
}

# need_grpcio: for the system's Python, whose client calls the agent in a test.
need_grpcio() {
    local there=(/usr/bin/python3 -c 'import grpc, google.protobuf')
    "${there[@]}" 2>/dev/null && return
    install_packages python3-grpcio python3-protobuf && "${there[@]}" && return
    warn "missing: gRPC for /usr/bin/python3; install the packages python3-grpcio python3-protobuf"
    return 1
}

# is_root WHAT: WHAT needs root.
is_root() { ((EUID == 0)) || { warn "$1 needs root: this is $(id -un)" && return 1; }; }

silent() { "$@" >/dev/null; }

vm_passes_on() {
    local output status=0
    output=$(hack/vm run -- bash -c 'echo out; echo error >&2; exit 42' 2>&1) || status=$?
    [[ $status == 42 && $output == *out* && $output == *error* ]] ||
        { warn "exit code $status, output: $output" && return 1; }
}

vm_is_limited() {
    local output status=0
    output=$(hack/vm run --timeout 5 -- sleep infinity 2>&1) || status=$?
    [[ $status == 124 && $output == *"time limit"* ]] || { warn "exit code $status, output: $output" && return 1; }
}

# vm_boots_again BREAK [OPTION...]: after its command BREAK has broken the machine, which QEMU may also do itself.
vm_boots_again() {
    local share status=0 command
    share=$(mktemp -d)
    command="[[ ! -e \$OFFLOAD_VM_SHARE/broken ]] || exit 42; : >\$OFFLOAD_VM_SHARE/broken; $1; sleep infinity"
    hack/vm run --again "${@:2}" --share "$share" -- bash -c "$command" 2>/dev/null || status=$?
    rm -r "$share"
    [[ $status == 42 ]] || { warn "exit code $status" && return 1; }
}

# systemd's rating of the units' exposure, from 0.0 (safe) to 10.0: it must not get worse.
units_are_checked() {
    systemd-analyze --help 2>/dev/null | grep -q -e --offline ||
        { LEFT_OUT+=("checks of the systemd units; install systemd 250 or newer") && return; }
    check "the service's unit" unit_is_good configs/systemd/dpu-offload-service.service 28
    check "the agent's unit" unit_is_good configs/systemd/dpu-offload-agent.service 49
    check "the agent's socket" unit_is_understood configs/systemd/dpu-offload-agent.socket
    check "the unit of one of several agents" unit_is_good configs/systemd/dpu-offload-agent@.service 49
    check "the socket of one of several agents" unit_is_understood configs/systemd/dpu-offload-agent@.socket
    check "the software card's unit" unit_is_understood configs/systemd/dpu-offload-card.service
}

# is_understood UNIT: by systemd, together with the other units, whose programs need not be installed.
is_understood() {
    local unit complaints
    for unit in configs/systemd/*; do
        sed 's|^\(Exec[A-Za-z]*\)=/usr/bin/[^ ]*|\1=/bin/true|' "$unit" >"${1%/*}/${unit##*/}"
    done
    complaints=$(systemd-analyze verify "$1" 2>&1 | grep "${1##*/}" || true)
    [[ -z $complaints ]] || { warn "$complaints" && return 1; }
}

unit_is_understood() (
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT
    is_understood "$folder/${1##*/}"
)

# unit_is_good FILE TENTHS: its exposure is at most that. The programs need not be installed.
unit_is_good() (
    set -e
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT
    unit=$folder/${1##*/}
    is_understood "$unit" || exit 1
    verdict=$(systemd-analyze security --offline=true --no-pager --threshold="$2" "$unit") ||
        { warn "${verdict##*$'\n'}" && exit 1; }
    say "${verdict##*→ }"
)

# The programs and scripts are copied to a folder that the user nobody can read: the clone may be in root's home.
demo_as_nobody() (
    set -e
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT
    mkdir "$folder/hack" "$folder/bin"
    cp hack/demo hack/lib.sh "$folder/hack/"
    cp --parents tests/fixtures/networks.toml "$folder/"
    for program in "${PROGRAMS[@]}"; do cp "$OFFLOAD_BIN_DIR/$program" "$folder/bin/"; done
    chmod -R a+rX "$folder"
    OFFLOAD_BIN_DIR=$folder/bin setpriv --reuid=65534 --regid=65534 --clear-groups "$folder/hack/demo"
)

# In the machine's own namespaces, like a person: the lab must leave nothing there.
lab_comes_and_goes() (
    local before
    export OFFLOAD_LAB=labtest
    trap 'hack/lab down >/dev/null' EXIT
    before=$(machine)
    # set -e has no effect in the condition of an `if`.
    hack/lab up --vfs 4 && hack/lab env && follow docs/CONNECTIVITY.md "## In the lab" &&
        hack/lab restart service && hack/lab restart agent && hack/lab down || exit
    [[ $(machine) == "$before" ]] || { warn "the lab left something behind" && exit 1; }
)

# follow PAGE HEADING: runs the first commands below a heading of a page.
follow() {
    local commands
    commands=$(HEADING=$2 awk '$0 == ENVIRON["HEADING"] { below = 1 }
        inside && /^```$/ { exit }
        inside
        below && /^```sh$/ { inside = 1 }' "$1")
    [[ $commands ]] || { warn "$1 has no commands below $2" && exit 1; }
    bash -euo pipefail -c "$commands"
}

machine() { ip netns list | sort && ip -o link show | wc -l && ls -I netns /run; }
