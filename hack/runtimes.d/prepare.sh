# Debian's packages of container runtimes, a tree with an image per suite. Sourced by hack/runtimes, never run.
# shellcheck shell=bash

# The machine's own Debian, and the next release.
SUITES=(own next)

packages_of() {
    say containerd runc podman conmon containernetworking-plugins busybox-static
    if [[ $1 == own ]]; then say systemd; else say netavark; fi
}

# shellcheck source=hack/debian.sh
source "$ROOT/hack/debian.sh"
# shellcheck source=hack/packages.sh
source "$ROOT/hack/packages.sh"

CACHE=${OFFLOAD_RUNTIMES_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/dpu-offload/runtimes}
RECIPE=$(cat "$ROOT/hack/runtimes.d/prepare.sh" "$ROOT/hack/debian.sh" "$ROOT/hack/packages.sh" | sha256sum)

tree_of() { say "$CACHE/$1-${RECIPE:0:12}"; }

prepare() {
    local suite
    no_more "$@"
    for suite in "${SUITES[@]}"; do prepare_suite "$suite"; done
    "$ROOT/hack/go-cni" containerd >/dev/null
}

prepare_suite() {
    local tree
    tree=$(tree_of "$1")
    [[ ! -e $tree ]] || return 0
    need apt-get=apt dpkg-deb=dpkg flock=util-linux jq=jq || exit 1
    lock_cache "$CACHE" OFFLOAD_RUNTIMES_DIR
    [[ -e $tree ]] || build_tree "$1" "$tree"
    unlock_cache
}

# build_tree SUITE TREE: the tree gets its name when it is complete.
build_tree() {
    local began=$EPOCHREALTIME work=$CACHE/work packages
    read -ra packages < <(packages_of "$1" | paste -sd' ')
    rm -rf "$work"
    mkdir -p "$work/tree"
    warn "downloading Debian's ${packages[*]} into $CACHE"
    "prepare_$1_apt" "$work/apt" "$(dpkg --print-architecture)"
    download "${packages[@]}"
    unpack "$work/apt/archives" "$work/tree"
    image "$work/tree"
    mv "$work/tree" "$2"
    rm -rf "$work"
    warn "the runtimes are ready, $(ms_since "$began") ms"
}
