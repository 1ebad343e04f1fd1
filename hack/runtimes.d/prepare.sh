# Debian's packages of container runtimes, unpacked, and an image. Sourced by hack/runtimes, never run.
# shellcheck shell=bash

PACKAGES=(containerd runc podman conmon containernetworking-plugins busybox-static)
IMAGE=localhost/pod:1

# shellcheck source=hack/debian.sh
source "$ROOT/hack/debian.sh"

CACHE=${OFFLOAD_RUNTIMES_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/dpu-offload/runtimes}
RECIPE=$(cat "$ROOT/hack/runtimes.d/prepare.sh" "$ROOT/hack/debian.sh" | sha256sum)
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
    download "$work/apt"
    unpack "$work/apt/archives" "$work/tree"
    image "$work/tree"
    mv "$work/tree" "$TREE"
    rm -rf "$work"
    warn "the runtimes are ready, $(ms_since "$began") ms"
}

# download FOLDER: a package that can't be had ends it, by name.
download() {
    local package
    prepare_own_apt "$1" "$(dpkg --print-architecture)"
    for package in "${PACKAGES[@]}"; do
        [[ -n $(version_of "$package") ]] || die "Debian has no package $package for $(codename)"
    done
    own_apt apt-get install -y --download-only "${PACKAGES[@]}" >/dev/null || die "apt can't get ${PACKAGES[*]}"
}

version_of() { own_apt apt-cache policy "$1" | sed -n 's/^ *Candidate: \([^(].*\)$/\1/p'; }

# unpack ARCHIVES TREE
unpack() {
    local package folder
    mkdir -p "$2"/usr/{bin,sbin,lib,lib64} "$2/etc"
    for folder in bin sbin lib lib64; do ln -s "usr/$folder" "$2/$folder"; done
    for package in "$1"/*.deb; do
        dpkg-deb --fsys-tarfile "$package" |
            tar -x -C "$2" --keep-directory-symlink --exclude='./usr/share/doc' --exclude='./usr/share/locale' ||
            die "${package##*/} can't be unpacked"
        dpkg-deb -f "$package" Package Version | paste -s | awk '{print $2, $4}' >>"$2/versions"
    done
}

# image TREE: an image of BusyBox alone, which sleeps, as an archive that runtimes load without a registry.
image() (
    set -e
    cd "$1"
    mkdir -p image/{bin,etc,proc,sys,dev,tmp}
    install -m 755 bin/busybox image/bin/busybox
    for applet in sh sleep ping ip cat; do ln -s busybox "image/bin/$applet"; done
    tar -c -C image --owner 0 --group 0 . >layer.tar
    rm -r image
    jq -n --arg layer "sha256:$(digest layer.tar)" --arg arch "$(dpkg --print-architecture)" '{
        architecture: $arch, os: "linux", rootfs: {type: "layers", diff_ids: [$layer]},
        config: {Entrypoint: ["/bin/sleep"], Cmd: ["infinity"], Env: ["PATH=/bin"]}}' >config.json
    jq -n --arg image "$IMAGE" '[{Config: "config.json", RepoTags: [$image], Layers: ["layer.tar"]}]' >manifest.json
    tar -c manifest.json config.json layer.tar >image.tar
    rm manifest.json config.json layer.tar
)

digest() { sha256sum "$1" | cut -d' ' -f1; }
