# Debian's packages of container runtimes, unpacked, and an image. Sourced by hack/runtimes, never run.
# shellcheck shell=bash

PACKAGES=(containerd runc podman conmon containernetworking-plugins busybox-static)

# shellcheck source=hack/debian.sh
source "$ROOT/hack/debian.sh"
# shellcheck source=hack/packages.sh
source "$ROOT/hack/packages.sh"

CACHE=${OFFLOAD_RUNTIMES_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/dpu-offload/runtimes}
RECIPE=$(cat "$ROOT/hack/runtimes.d/prepare.sh" "$ROOT/hack/debian.sh" "$ROOT/hack/packages.sh" | sha256sum)
TREE=$CACHE/${RECIPE:0:12}

prepare() {
    no_more "$@"
    [[ ! -e $TREE ]] || return 0
    need apt-get=apt dpkg-deb=dpkg flock=util-linux jq=jq || exit 1
    lock_cache "$CACHE" OFFLOAD_RUNTIMES_DIR
    [[ -e $TREE ]] || build_tree
    unlock_cache
}

# The tree gets its name once it is complete.
build_tree() {
    local began=$EPOCHREALTIME work=$CACHE/work
    rm -rf "$work"
    mkdir -p "$work/tree"
    warn "getting Debian's ${PACKAGES[*]} into $CACHE"
    download "$work/apt" "${PACKAGES[@]}"
    unpack "$work/apt/archives" "$work/tree"
    image "$work/tree"
    mv "$work/tree" "$TREE"
    rm -rf "$work"
    warn "the runtimes are ready, $(ms_since "$began") ms"
}
