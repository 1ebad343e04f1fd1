# The parts of a cluster: unpacked Debian packages, and Kubernetes. Sourced by hack/cluster, never run.
# shellcheck shell=bash

PACKAGES=(etcd-server containerd runc containernetworking-plugins busybox-static kubernetes-client iptables conntrack)

# shellcheck source=hack/debian.sh
source "$ROOT/hack/debian.sh"
# shellcheck source=hack/packages.sh
source "$ROOT/hack/packages.sh"
# shellcheck source=hack/cluster.d/kubernetes.sh
source "$ROOT/hack/cluster.d/kubernetes.sh"

CACHE=${OFFLOAD_CLUSTER_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/dpu-offload/cluster}
RECIPE=$(cat "$ROOT/hack/cluster.d/"{prepare,kubernetes}.sh "$ROOT/hack/debian.sh" "$ROOT/hack/packages.sh" | sha256sum)
# Without Kubernetes if another one is used.
TREE=$CACHE/${RECIPE:0:12}${OFFLOAD_KUBERNETES_DIR:+-bare}

# The caller's Kubernetes must be complete.
need_kubernetes() {
    local program
    [[ ${OFFLOAD_KUBERNETES_DIR:-} ]] || return 0
    for program in "${KUBERNETES_PROGRAMS[@]}"; do
        [[ -x $OFFLOAD_KUBERNETES_DIR/$program ]] ||
            die "OFFLOAD_KUBERNETES_DIR=$OFFLOAD_KUBERNETES_DIR has no $program: it needs ${KUBERNETES_PROGRAMS[*]}"
    done
    OFFLOAD_KUBERNETES_DIR=$(realpath "$OFFLOAD_KUBERNETES_DIR")
}

prepare() {
    no_more "$@"
    [[ ! -e $TREE ]] || return 0
    need apt-get=apt dpkg-deb=dpkg flock=util-linux jq=jq || exit 1
    lock_cache "$CACHE" OFFLOAD_CLUSTER_DIR
    [[ -e $TREE ]] || build_tree
    unlock_cache
}

# The tree gets its name when it is complete.
build_tree() {
    local began=$EPOCHREALTIME work=$CACHE/work version
    rm -rf "$work"
    mkdir -p "$work/tree"
    warn "downloading Debian's ${PACKAGES[*]} into $CACHE"
    prepare_own_apt "$work/apt" "$(dpkg --print-architecture)"
    download "${PACKAGES[@]}"
    unpack "$work/apt/archives" "$work/tree"
    name_iptables "$work/tree/usr/sbin"
    image "$work/tree"
    if [[ ! ${OFFLOAD_KUBERNETES_DIR:-} ]]; then
        add_sources
        version=$(source_version)
        kubernetes "$CACHE/kubernetes-$version-$KUBERNETES_RECIPE" "$work"
        ln -s "../kubernetes-$version-$KUBERNETES_RECIPE" "$work/tree/kubernetes"
        say "kubernetes $version" >>"$work/tree/versions"
    fi
    mv "$work/tree" "$TREE"
    rm -rf "$work"
    warn "the cluster's programs are ready, $(ms_since "$began") ms"
}

# name_iptables FOLDER: the names that installing Debian's package would create.
name_iptables() {
    local name
    for name in ip{,6}tables{,-save,-restore}; do ln -sf xtables-nft-multi "$1/$name"; done
}
